"""The sums themselves: grouped by the database, folded here only where SQL has no word for it. Nothing is written."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import date, datetime
from typing import Any, TypedDict

from django.db.models import (
    Aggregate,
    BigIntegerField,
    Case,
    CharField,
    Count,
    F,
    Func,
    IntegerField,
    Max,
    Min,
    Q,
    QuerySet,
    Sum,
    Value,
    When,
)
from django.db.models.expressions import Combinable, Expression
from django.db.models.functions import Cast, Floor, Least, Length, Ln, Round

from reports.core import latency
from reports.core.buckets import Bucket, DecisionGroup, count_decisions, count_digits
from reports.core.latency import Histogram
from reports.core.rollup import AFFINITIES, DIMENSIONS, HOUR, OUTCOMES, SLOT, TIMES, USAGE_QUALITIES, Span
from reports.models import Attempt, Candidate, Exchange, Exclusion, Transition
from reports.rollup_models import DailyRollup, DecisionBucket, SlotRollup

READ_AT_ONCE = 2_000
"""Rows that are fetched from the database in one go."""

_TOKENS = (
    "input_tokens",
    "cache_read_tokens",
    "cache_write_5m_tokens",
    "cache_write_1h_tokens",
    "output_tokens",
    "reasoning_tokens",
)


class DayKey(TypedDict):
    """Columns that the rows of one day and generation have in common."""

    zone: str
    day: date
    generation: int


class _Joined(Aggregate):
    """The texts of a group's rows, one after the other in any order. A list of the database's own would be parsed."""

    function = "STRING_AGG"
    output_field = CharField()

    def __init__(self, text: Any, **how: Any) -> None:
        super().__init__(text, Value(""), **how)

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, function="GROUP_CONCAT", **context)


class _Character(Func):
    """The one with this number."""

    function = "CHR"
    output_field = CharField()

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, function="CHAR", **context)


def _counting(field: str, words: Sequence[str], prefix: str = "") -> dict[str, Expression]:
    return {f"{prefix}{word}": Count("pk", filter=Q(**{field: word})) for word in words}


def _summing(column: str) -> Expression:
    return Sum(column, default=0)


_SUMS: dict[str, Expression] = {
    "requests": Count("*"),
    "streamed": Count("pk", filter=Q(stream=True)),
    **_counting("outcome", OUTCOMES),
    "attempts": _summing("attempt_count"),
    "fallbacks": Count("pk", filter=Q(fell_back=True)),
    "cost_microdollars": _summing("cost_microdollars"),
    "cost_unknown": Count("pk", filter=Q(cost_microdollars=None)),
    **{name: _summing(name) for name in _TOKENS},
    "images": _summing("image_count"),
    "request_bytes": _summing("request_bytes"),
    "response_bytes": _summing("response_bytes"),
    **_counting("usage_quality", USAGE_QUALITIES, "usage_"),
    **_counting("prompt_cache", ("read", "written"), "prompt_cache_"),
    **_counting("affinity", AFFINITIES),
    **{f"{time}_us": Sum(Cast(Round(F(f"{time}_ms") * Value(1000.0)), BigIntegerField()), default=0) for time in TIMES},
}
MEASURES: tuple[str, ...] = tuple(_SUMS)
"""Columns of a rollup row that add up as numbers; `TIMES` merge as histograms."""


def slots_of_hour(hour: datetime, *, after: int, generation: int) -> list[SlotRollup]:
    """Sums of the exchanges that started in the hour of UTC and have a number above `after`."""
    times = {f"all_{time}": _joined_buckets(f"{time}_ms") for time in TIMES}
    rows = _of_slots(hour, after).annotate(**{f"sum_{name}": measure for name, measure in _SUMS.items()}, **times)
    columns = ("quarter", *DIMENSIONS, *(f"sum_{name}" for name in MEASURES), *times)
    names = (*DIMENSIONS, *MEASURES)
    return [
        SlotRollup(
            slot=hour + SLOT * quarter,
            generation=generation,
            **dict(zip(names, values, strict=False)),
            **{time: _histogram(joined) for time, joined in zip(TIMES, values[len(names) :], strict=True)},
        )
        for quarter, *values in rows.values_list(*columns)
    ]


def sums_of_day(key: DayKey, span: Span, *, after_slot: int) -> list[DailyRollup]:
    """Sums of the slots in the span that were written after `after_slot`."""
    slots = SlotRollup.objects.filter(slot__gte=span.start, slot__lt=span.end, pk__gt=after_slot).order_by()
    width = len(DIMENSIONS)
    times: dict[tuple[str, ...], tuple[Histogram, ...]] = {}
    for row in slots.values_list(*DIMENSIONS, *TIMES).iterator(chunk_size=READ_AT_ONCE):
        histograms = times.setdefault(row[:width], tuple(Histogram() for _ in TIMES))
        for histogram, data in zip(histograms, row[width:], strict=True):
            histogram.merge(Histogram.from_bytes(bytes(data)))
    sums = slots.values(*DIMENSIONS).annotate(**{f"sum_{name}": Sum(name) for name in MEASURES})
    return [
        DailyRollup(
            **key,
            **dict(zip(DIMENSIONS, row, strict=False)),
            **{name: int(number) for name, number in zip(MEASURES, row[width:], strict=True)},
            **{time: histogram.to_bytes() for time, histogram in zip(TIMES, times[row[:width]], strict=True)},
        )
        for row in sums.values_list(*DIMENSIONS, *(f"sum_{name}" for name in MEASURES))
    ]


def buckets_of_day(key: DayKey, span: Span, *, after: int) -> list[DecisionBucket]:
    """Of the exchanges that started in the span and have a number above `after`."""
    counts: Counter[Bucket] = Counter()
    for columns in _DECIDED:
        for decided in _decided(_exchanges(span, after), columns):
            count_decisions(counts, decided)
    for hour in span.hours():  # what is read of candidates at once is bounded by an hour
        part = Span(start=max(hour, span.start), end=min(hour + HOUR, span.end))
        # Of the bare number, PostgreSQL would look for the first and last along all days.
        reach = _exchanges(part, after).aggregate(first=Min(F("pk") + 0), last=Max(F("pk") + 0))
        if reach["first"] is None:
            continue
        # Rows of an hour lie close together by the exchange's number: without its bounds all others were read as well.
        ours = {
            "exchange__started_at__gte": part.start,
            "exchange__started_at__lt": part.end,
            "exchange_id__gte": reach["first"],
            "exchange_id__lte": reach["last"],
        }
        _count_candidates(counts, ours)
        for bucket, count in (*_of_exclusions(ours), *_of_attempts(ours), *_of_transitions(ours)):
            counts[bucket] += count
    return [DecisionBucket(**key, count=count, **bucket._asdict()) for bucket, count in counts.items()]


def _exchanges(span: Span, after: int) -> "QuerySet[Exchange]":
    return Exchange.objects.filter(started_at__gte=span.start, started_at__lt=span.end, pk__gt=after).order_by()


def _of_slots(hour: datetime, after: int) -> Any:
    quarter = Case(
        *(When(started_at__lt=hour + SLOT * (index + 1), then=Value(index)) for index in range(3)), default=Value(3)
    )
    # The types of Django know no rows of annotations and columns together.
    return _exchanges(Span(start=hour, end=hour + HOUR), after).annotate(quarter=quarter).values("quarter", *DIMENSIONS)


def _joined_buckets(column: str) -> Expression:
    """A character for each time: that of its bucket, from 1 on, as databases have none with the number 0."""
    return _Joined(_Character(_latency_bucket(column) + Value(1)), filter=~Q(**{column: None}))


def _histogram(joined: str | None) -> bytes:
    return Histogram({ord(character) - 1: count for character, count in Counter(joined or "").items()}).to_bytes()


def _latency_bucket(column: str) -> Combinable:
    """`latency.bucket_of`, in SQL."""
    steps = Cast(Floor(Ln(F(column) / Value(latency.SMALLEST_MS)) * Value(latency.PER_LOG)), IntegerField())
    return Case(
        When(**{f"{column}__lt": latency.SMALLEST_MS}, then=Value(0)),
        default=Least(steps + Value(1), Value(latency.LAST), output_field=IntegerField()),
        output_field=IntegerField(),
    )


_TARGET = ("group", "target", "provider", "model")
_DECIDED = (
    (*_TARGET, "strategy", "mode", "tie_break", "affinity", "outcome", "error_code", "error_detail", "signals"),
    (*_TARGET, "input_bucket", "output_cap_bucket", "complexity_bucket", "cost_flags"),
    (*_TARGET, "matched_terms", "flags"),
)
"""Columns of `DecisionGroup` that are grouped by at a time: all of them at once make nearly as many groups as rows."""


def _decided(exchanges: "QuerySet[Exchange]", columns: tuple[str, ...]) -> Iterator[DecisionGroup]:
    grouped = exchanges.values(*columns).annotate(n=Count("*"))
    for *values, count in grouped.values_list(*columns, "n"):
        yield DecisionGroup(count=count, **dict(zip(columns, values, strict=True)))


def _of_exclusions(ours: dict[str, Any]) -> Iterator[tuple[Bucket, int]]:
    rows = Exclusion.objects.filter(**ours).order_by().values("exchange__group", "target", "stage", "reason")
    for group, target, stage, reason, count in rows.annotate(n=Count("*")).values_list(
        "exchange__group", "target", "stage", "reason", "n"
    ):
        yield Bucket(group, "exclusion", f"{stage}/{reason}", target), count


def _of_attempts(ours: dict[str, Any]) -> Iterator[tuple[Bucket, int]]:
    names = ("exchange__group", "target", "provider", "model", "outcome", "error_code")
    rows = Attempt.objects.filter(**ours).order_by().values(*names).annotate(n=Count("*"))
    for group, target, provider, model, outcome, error_code, count in rows.values_list(*names, "n"):
        yield Bucket(group, "attempt", outcome, target, provider, model), count
        if error_code:
            yield Bucket(group, "attempt_error", error_code, target, provider, model), count


def _of_transitions(ours: dict[str, Any]) -> Iterator[tuple[Bucket, int]]:
    names = ("exchange__group", "from_target", "to_target", "reason")
    rows = Transition.objects.filter(**ours).order_by().values(*names).annotate(n=Count("*"))
    for group, left, tried, reason, count in rows.values_list(*names, "n"):
        yield Bucket(group, "fallback", reason, left), count
        yield Bucket(group, "fallback_to", reason, tried), count


def _count_candidates(counts: Counter[Bucket], ours: dict[str, Any]) -> None:
    """Their digits come joined to one text a target: to count in it takes a hundredth of what rows of it would take."""
    names = ("exchange__group", "target", "first", "each")
    rows = (
        Candidate.objects.filter(**ours)
        .order_by()
        .annotate(first=Case(When(place=0, then=Value(1)), default=Value(0)), each=Length("digits"))
        .values(*names)
        .annotate(near_ties=Count("place", filter=Q(near_tie=True)), all_digits=_Joined("digits"))
    )
    for group, target, first, each, near_ties, digits in rows.values_list(*names, "near_ties", "all_digits"):
        if each:
            count_digits(counts, group, target, digits, each=each, first=bool(first))
        if near_ties:
            counts[Bucket(group, "near_tie", "yes", target)] += near_ties
