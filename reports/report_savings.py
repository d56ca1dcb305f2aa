"""What the same tokens would have cost elsewhere. Both sides are made of the same requests, or the difference means nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from reports.core.cost import CLASSES, Tokens, cost
from reports.filters import Filters
from reports.price_list import ListPrice, list_prices
from reports.queries import Key, Scope, Sums
from reports.report_usage import NOTHING_HERE, TARGET, TOKENS, name_of, ratio
from reports.tables import Card, Chart, Column, Report, Row, Section, Series, Table

MEASURES = ("requests", "cost_microdollars", "cost_unknown", *TOKENS)
MOST_EXPENSIVE = "the most expensive target seen in the group"


@dataclass(slots=True, kw_only=True)
class Compared:
    """Requests whose cost is known, of one group."""

    requests: int = 0
    microdollars: int = 0
    tokens: list[int] = field(default_factory=lambda: [0] * len(CLASSES))
    """In the order of `CLASSES`, which is that of `TOKENS`."""
    seen: set[str] = field(default_factory=set)
    """Targets."""
    over_time: dict[int, tuple[int, list[int]]] = field(default_factory=dict)
    """Cost and tokens, by bucket."""


@dataclass(slots=True, kw_only=True)
class Books:
    groups: dict[str, Compared] = field(default_factory=dict)
    left_out: int = 0
    """Requests that stand in neither side."""
    unknown: int = 0
    """Of these, those whose cost is not known. The others cannot be told from them any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    name: str
    microdollars: int


def savings(filters: Filters, scope: Scope) -> Report:
    prices = list_prices()
    now = _books(scope.now.sums(MEASURES, by=("group", *TARGET), over_time=True))
    before = _books({(0, *key): sums for key, sums in scope.before.sums(MEASURES, by=("group", *TARGET)).items()})
    baselines = {group: baseline_of(compared, prices, filters.baseline) for group, compared in now.groups.items()}
    total, total_before = _total(now, baselines), _total(before, _baselines(before, prices, filters.baseline))
    chosen = filters.baseline or MOST_EXPENSIVE
    return Report(
        slug="savings",
        title="Savings",
        lead=f"What the requests cost, and what their tokens would have cost with {chosen}.",
        period=filters.words,
        nothing="" if now.groups or now.left_out else NOTHING_HERE,
        notes=[*scope.missing, *_notes(filters, now, baselines, prices)],
        cards=[
            Card(title="Cost", value=total[0], kind="usd", before=total_before[0], note="of the requests compared"),
            Card(title="At the baseline", value=total[1], kind="usd", before=total_before[1]),
            Card(
                title="Saved",
                value=_difference(*total),
                kind="usd",
                before=_difference(*total_before),
                good="more",
            ),
            Card(
                title="Saved share",
                value=_share(*total),
                kind="share",
                before=_share(*total_before),
                good="more",
                note="of the cost at the baseline",
            ),
            Card(title="Not compared", value=now.left_out, kind="count", before=before.left_out, note="requests"),
        ],
        sections=[
            Section(
                title="What is assumed",
                note="That the baseline would have read and written exactly the same number of tokens of each class, with "
                "the same hits in its prompt cache, and answered every request at the first try. Another model counts "
                "and writes tokens differently: read the difference as a size, not as an invoice. Baselines are at the "
                "prices that are entered now, costs at those that held when a request was admitted.",
                tables=(),
            ),
            Section(
                title="Over time",
                chart=_chart(filters, now, baselines, prices),
                tables=[_over_time(filters, now, baselines, prices)],
            ),
            Section(title="By model group", tables=[_by_group(filters, now, baselines)]),
            Section(
                title="The same tokens at every price",
                note="Of all requests that are compared, whatever their group. A model may not be able to serve them all.",
                tables=[_at_every_price(now, prices)],
            ),
        ],
    )


def baseline_of(compared: Compared, prices: Mapping[str, ListPrice], chosen: str) -> Baseline | None:
    """`None`: nothing that could be the baseline has all prices that the tokens need."""
    names = [chosen] if chosen else sorted(compared.seen)
    found = [
        Baseline(name=name, microdollars=microdollars)
        for name in names
        if name in prices and (microdollars := cost_at(compared.tokens, prices[name])) is not None
    ]
    return max(found, key=lambda each: (each.microdollars, each.name), default=None)


def cost_at(tokens: Sequence[int], price: ListPrice) -> int | None:
    microdollars, _ = cost(Tokens(**dict(zip(CLASSES, tokens, strict=True))), price.prices)
    return microdollars


def _baselines(books: Books, prices: Mapping[str, ListPrice], chosen: str) -> dict[str, Baseline | None]:
    return {group: baseline_of(compared, prices, chosen) for group, compared in books.groups.items()}


def _books(sums: Mapping[Key, Sums]) -> Books:
    """Keys: bucket, group, provider, model. A sum with one request of unknown cost is left out as a whole, as its tokens
    cannot be parted."""
    books = Books()
    for (place, group, *target), each in sums.items():
        if not any(target):
            continue  # it was refused: no tokens, no cost
        if each["cost_unknown"]:
            books.left_out += each["requests"]
            books.unknown += each["cost_unknown"]
            continue
        compared = books.groups.setdefault(group, Compared())
        tokens = [each[name] for name in TOKENS]
        compared.requests += each["requests"]
        compared.microdollars += each["cost_microdollars"]
        compared.tokens = [one + other for one, other in zip(compared.tokens, tokens, strict=True)]
        compared.seen.add(name_of(target))
        spent, used = compared.over_time.get(place, (0, [0] * len(CLASSES)))
        compared.over_time[place] = (
            spent + each["cost_microdollars"],
            [one + other for one, other in zip(used, tokens, strict=True)],
        )
    return books


def _total(books: Books, baselines: Mapping[str, Baseline | None]) -> tuple[int | None, int | None]:
    """Of the groups that have a baseline. `None`: none has."""
    compared = [(books.groups[group], baseline) for group, baseline in baselines.items() if baseline is not None]
    if not compared:
        return None, None
    return sum(each.microdollars for each, _ in compared), sum(baseline.microdollars for _, baseline in compared)


def _difference(spent: int | None, baseline: int | None) -> int | None:
    return None if spent is None or baseline is None else baseline - spent


def _share(spent: int | None, baseline: int | None) -> float | None:
    difference = _difference(spent, baseline)
    return None if difference is None or not baseline else difference / baseline


def _notes(
    filters: Filters, books: Books, baselines: Mapping[str, Baseline | None], prices: Mapping[str, ListPrice]
) -> list[str]:
    notes = []
    if books.left_out:
        notes.append(
            f"{books.left_out:,} requests are in neither side: of {books.unknown:,} the cost is not known, as a price is "
            "missing, and the rest was summed up together with these."
        )
    without = sorted(group or "(none)" for group, baseline in baselines.items() if baseline is None)
    if without:
        why = (
            f"{filters.baseline} has no price that their tokens need"
            if filters.baseline in prices
            else f"no prices are entered for {filters.baseline}"
            if filters.baseline
            else "of their targets none has all prices that their tokens need"
        )
        notes.append(f"Without a baseline, and in no sum: {', '.join(without)}; {why}.")
    return notes


def _chart(
    filters: Filters, books: Books, baselines: Mapping[str, Baseline | None], prices: Mapping[str, ListPrice]
) -> Chart:
    spent, at_baseline = _series(filters, books, baselines, prices)
    return Chart(
        shape="lines",
        title="Cost, and what it would have been",
        labels=filters.buckets,
        kind="usd",
        series=[Series(name="Cost", values=spent), Series(name="At the baseline", values=at_baseline)],
    )


def _over_time(
    filters: Filters, books: Books, baselines: Mapping[str, Baseline | None], prices: Mapping[str, ListPrice]
) -> Table:
    spent, at_baseline = _series(filters, books, baselines, prices)
    return Table(
        slug="savings-over-time",
        title="Cost, and what it would have been",
        under_chart=True,
        columns=[
            Column(name="time", title="Hour" if filters.by_hours else "Day"),
            Column(name="cost_usd", title="Cost", kind="usd"),
            Column(name="baseline_usd", title="At the baseline", kind="usd"),
            Column(name="saved_usd", title="Saved", kind="usd"),
        ],
        rows=[
            Row(values=[label, one, other, other - one])
            for label, one, other in zip(filters.buckets, spent, at_baseline, strict=True)
        ],
    )


def _series(
    filters: Filters, books: Books, baselines: Mapping[str, Baseline | None], prices: Mapping[str, ListPrice]
) -> tuple[list[int], list[int]]:
    spent, at_baseline = [0] * len(filters.buckets), [0] * len(filters.buckets)
    for group, baseline in baselines.items():
        if baseline is None:
            continue
        for place, (microdollars, tokens) in books.groups[group].over_time.items():
            if 0 <= place < len(spent):
                spent[place] += microdollars
                at_baseline[place] += cost_at(tokens, prices[baseline.name]) or 0
    return spent, at_baseline


def _by_group(filters: Filters, books: Books, baselines: Mapping[str, Baseline | None]) -> Table:
    rows = []
    for group, compared in sorted(books.groups.items(), key=lambda each: (-each[1].microdollars, each[0])):
        baseline = baselines[group]
        other = None if baseline is None else baseline.microdollars
        rows.append(
            Row(
                values=[
                    group or "(none)",
                    compared.requests,
                    sum(compared.tokens),
                    compared.microdollars,
                    None if baseline is None else baseline.name,
                    other,
                    _difference(compared.microdollars, other),
                    _share(compared.microdollars, other),
                ],
                narrow=filters.query(group=group) if group else "",
            )
        )
    return Table(
        slug="by-group",
        title="By model group",
        columns=[
            Column(name="group", title="Model group"),
            Column(name="requests", title="Requests compared", kind="count"),
            Column(name="tokens", title="Tokens", kind="count"),
            Column(name="cost_usd", title="Cost", kind="usd"),
            Column(name="baseline", title="Baseline"),
            Column(name="baseline_usd", title="At the baseline", kind="usd"),
            Column(name="saved_usd", title="Saved", kind="usd"),
            Column(name="saved_share", title="Saved share", kind="share"),
        ],
        rows=rows,
        empty="No request whose cost is known.",
    )


def _at_every_price(books: Books, prices: Mapping[str, ListPrice]) -> Table:
    tokens = [sum(each.tokens[place] for each in books.groups.values()) for place in range(len(CLASSES))]
    spent = sum(each.microdollars for each in books.groups.values())
    at_price = {name: cost_at(tokens, price) for name, price in prices.items()}
    ordered = sorted(at_price.items(), key=lambda each: (each[1] is None, -(each[1] or 0), each[0]))
    return Table(
        slug="at-every-price",
        title="The same tokens at every price",
        columns=[
            Column(name="target", title="Provider and model"),
            Column(name="cost_usd", title="Would have cost", kind="usd"),
            Column(name="saved_usd", title="Saved", kind="usd"),
            Column(name="saved_share", title="Saved share", kind="share"),
        ],
        rows=[
            Row(values=[name, other, _difference(spent, other), ratio((other or 0) - spent, other or 0)])
            for name, other in ordered
        ],
        note="Unknown: a price is missing for a class of tokens that was used, such as writing to a prompt cache.",
        empty="No prices are entered: enter them with the providers' models.",
    )
