"""Builders of configuration for tests: a test names only what matters to it.

`some_...` gives compiled pieces (routing.core.catalog), as `decide` and the relay read them; `declared_...` and
`some_document` give the plain data before compiling (routing.core.document).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from routing.core import catalog, document
from routing.core.expressions import compile_expression


def some_provider(
    name: str = "house",
    *,
    base_url: str = "http://127.0.0.1:9001/v1",
    dialect: document.Dialect = "openai-chat",
    **fields: Any,
) -> catalog.Provider:
    return catalog.Provider(name=name, base_url=base_url, dialect=dialect, **fields)


def some_target(
    name: str = "paris",
    *,
    provider: catalog.Provider | None = None,
    weight: float = 1.0,
    tags: Iterable[str] = (),
    prices: tuple[float, float] | None = None,
    **fields: Any,
) -> catalog.Target:
    """A target whose id and model are both `name`; its provider is one of its own, also called `name`.

    `prices`: dollars for a million input and output tokens.
    """
    provider = provider or some_provider(name)
    if prices is not None:
        fields["input_price"] = prices[0] / 1_000_000
        fields["output_price"] = prices[1] / 1_000_000
        fields["input_price_microusd_per_million"] = round(prices[0] * 1_000_000)
        fields["output_price_microusd_per_million"] = round(prices[1] * 1_000_000)
    model = fields.pop("model", name)
    return catalog.Target(
        id=fields.pop("id", name),
        position=fields.pop("position", 0),
        provider=provider,
        model=model,
        model_ref=fields.pop("model_ref", model),
        model_key=fields.pop("model_key", f"{provider.name}/{model}"),
        weight=weight,
        tags=frozenset(tags),
        **fields,
    )


def some_term(
    expression: str | None = "cost_score",
    *,
    name: str = "term",
    require_tags: Iterable[str] = (),
    prefer_tags: Iterable[str] = (),
    share: float = 1.0,
    **when: Any,
) -> catalog.ScoreTerm:
    """A compiled term; `when`: the fields of catalog.When."""
    compiled = None if expression is None else compile_expression(expression)
    return catalog.ScoreTerm(
        name=name,
        when=catalog.When(**when),
        require_tags=frozenset(require_tags),
        prefer_tags=frozenset(prefer_tags),
        expression=None if compiled is None else compiled.evaluate,
        source="" if compiled is None else compiled.source,
        names=frozenset() if compiled is None else compiled.names,
        weights={} if compiled is None else compiled.weights,
        share=share,
    )


def some_group(
    targets: Sequence[catalog.Target | str] = ("paris", "london", "rome"),
    *,
    name: str = "chat",
    strategy: document.Strategy = "dynamic_score",
    policy: catalog.ScorePolicy | None = None,
    **fields: Any,
) -> catalog.Group:
    """A compiled group; targets given by name are made, and all are numbered in the order given."""
    made = (some_target(each) if isinstance(each, str) else each for each in targets)
    return catalog.Group(
        name=name,
        strategy=strategy,
        targets=tuple(replace(target, position=position) for position, target in enumerate(made)),
        score=policy or catalog.ScorePolicy(),
        **fields,
    )


def some_catalog(*groups: catalog.Group, revision: int = 1, created: int = 1_700_000_000) -> catalog.Catalog:
    """A Catalog of these groups (of one `some_group()` when none is given) and the providers of their targets."""
    groups = groups or (some_group(),)
    return catalog.Catalog(
        revision=revision,
        created=created,
        groups={group.name: group for group in groups},
        providers={target.provider.name: target.provider for group in groups for target in group.targets},
    )


def declared_provider(
    models: Mapping[str, document.Model] | Iterable[str] = ("small",),
    *,
    base_url: str = "http://127.0.0.1:9001/v1",
    dialect: document.Dialect = "openai-chat",
    **fields: Any,
) -> document.Provider:
    if not isinstance(models, Mapping):
        models = {name: document.Model(model=name) for name in models}
    return document.Provider(base_url=base_url, dialect=dialect, models=models, **fields)


def declared_target(model_ref: str | None = "small", *, provider: str = "house", **fields: Any) -> document.Target:
    """`overrides` names the model fields given here, as the reader would."""
    own = frozenset(fields) & frozenset(document.ModelFields.__dataclass_fields__)
    return document.Target(provider=provider, model_ref=model_ref, **{"overrides": own, **fields})


def declared_group(
    targets: Sequence[document.Target] | None = None,
    *,
    strategy: document.Strategy = "dynamic_score",
    policy: document.DynamicScore | None = None,
    **fields: Any,
) -> document.Group:
    if policy is not None:
        fields["routing_policy"] = document.RoutingPolicy(dynamic_score=policy)
    chosen = (declared_target(),) if targets is None else tuple(targets)
    return document.Group(strategy=strategy, targets=chosen, **fields)


def some_document(
    *groups: document.Group,
    providers: Mapping[str, document.Provider] | None = None,
    models: Mapping[str, document.Group] | None = None,
) -> document.Document:
    """Groups given without names are called `chat`, `chat2`, `chat3` ..; the provider is `house` with the model `small`."""
    if models is None:
        given = groups or (declared_group(),)
        models = {"chat" if number == 1 else f"chat{number}": group for number, group in enumerate(given, 1)}
    return document.Document(
        providers={"house": declared_provider()} if providers is None else providers,
        models=models,
    )
