"""What a million tokens of each known model costs now. Who keeps prices tells them here, as reports know no routing."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from reports.core.cost import Prices


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPrice:
    provider: str
    model: str
    """As it goes to the provider, and stands in records."""
    prices: Prices

    @property
    def name(self) -> str:
        return f"{self.provider}/{self.model}"


_source: Callable[[], Iterable[ListPrice]] | None = None


def register(source: Callable[[], Iterable[ListPrice]]) -> None:
    """`source` gives the prices as they are now. Called once, when the apps are ready."""
    global _source
    _source = source


def list_prices() -> dict[str, ListPrice]:
    """By `provider/model`, those with an input and an output price. Of two entries of one name the dearer holds."""
    known: dict[str, ListPrice] = {}
    for each in _source() if _source is not None else ():
        if each.prices.input is None or each.prices.output is None:
            continue
        before = known.get(each.name)
        if before is None or _size(each) > _size(before):
            known[each.name] = each
    return dict(sorted(known.items()))


def _size(price: ListPrice) -> int:
    return (price.prices.input or 0) + (price.prices.output or 0)
