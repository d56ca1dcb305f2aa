"""The prices that are entered now, for the reports: of the providers' catalogues and of targets outside them."""

from collections.abc import Iterator, Mapping
from typing import Any

from reports.core.cost import Prices
from reports.price_list import ListPrice
from routing.models import ProviderModel, Target

_COLUMNS = {
    "input": "input_price_per_million_usd",
    "cache_read": "cached_input_price_per_million_usd",
    "cache_write_5m": "cache_write_price_per_million_usd",
    "cache_write_1h": "cache_write_1h_price_per_million_usd",
    "output": "output_price_per_million_usd",
}


def entered_prices() -> Iterator[ListPrice]:
    """Takes two statements."""
    for model in ProviderModel.objects.select_related("provider"):
        said = {name: getattr(model, name) for name in _COLUMNS.values()}
        yield ListPrice(provider=model.provider.name, model=model.model, prices=_prices(said))
    for target in Target.objects.filter(provider_model=None).select_related("provider"):
        if target.provider is not None and target.model:
            yield ListPrice(provider=target.provider.name, model=target.model, prices=_prices(target.overrides))


def _prices(said: Mapping[str, Any]) -> Prices:
    return Prices(**{name: _microdollars(said.get(column)) for name, column in _COLUMNS.items()})


def _microdollars(dollars: object) -> int | None:
    return round(dollars * 1_000_000) if isinstance(dollars, int | float) and not isinstance(dollars, bool) else None
