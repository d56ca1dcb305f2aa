"""The sums themselves: grouped by the database, folded here only where SQL has no word for it. Nothing is written."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import date, datetime
from typing import Any, TypedDict

from django.db import connection
from django.db.models import (
    BigIntegerField,
    Case,
    Count,
    F,
    FloatField,
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
from django.db.models.functions import Cast, Floor, Greatest, Least, Ln, Round

from reports.core import latency
from reports.core.buckets import TENTHS, VALUE_PREFIX, Bucket, DecisionGroup, count_decisions
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
    rows = _of_slots(hour, after)
    made: dict[tuple[Any, ...], SlotRollup] = {}
    for row in rows.annotate(**_aliased(_SUMS)):
        names = {name: row[name] for name in DIMENSIONS}
        sums = {name: int(row[f"sum_{name}"]) for name in MEASURES}
        slot = hour + SLOT * row["quarter"]
        made[row["quarter"], *names.values()] = SlotRollup(slot=slot, generation=generation, **names, **sums)
    for time in TIMES:
        column = f"{time}_ms"
        histograms: dict[tuple[Any, ...], Histogram] = {}
        counted = rows.exclude(**{column: None}).values("quarter", *DIMENSIONS, bucket=_latency_bucket(column))
        for *key, bucket, count in counted.annotate(n=Count("*")).values_list("quarter", *DIMENSIONS, "bucket", "n"):
            histograms.setdefault(tuple(key), Histogram()).add(bucket, count)
        for key_of_row, slot_row in made.items():
            setattr(slot_row, time, histograms.get(key_of_row, Histogram()).to_bytes())
    return list(made.values())


def sums_of_day(key: DayKey, span: Span, *, after_slot: int) -> list[DailyRollup]:
    """Sums of the slots in the span that were written after `after_slot`."""
    columns = (*DIMENSIONS, *MEASURES, *TIMES)
    width, end = len(DIMENSIONS), len(DIMENSIONS) + len(MEASURES)
    sums: dict[tuple[str, ...], list[int]] = {}
    times: dict[tuple[str, ...], tuple[Histogram, ...]] = {}
    slots = SlotRollup.objects.filter(slot__gte=span.start, slot__lt=span.end, pk__gt=after_slot).order_by()
    for row in slots.values_list(*columns).iterator(chunk_size=READ_AT_ONCE):
        names, numbers = row[:width], row[width:end]
        if names not in sums:
            sums[names], times[names] = list(numbers), tuple(Histogram() for _ in TIMES)
        else:
            sums[names] = [one + other for one, other in zip(sums[names], numbers, strict=True)]
        for histogram, data in zip(times[names], row[end:], strict=True):
            histogram.merge(Histogram.from_bytes(bytes(data)))
    return [
        DailyRollup(
            **key,
            **dict(zip(DIMENSIONS, names, strict=True)),
            **dict(zip(MEASURES, numbers, strict=True)),
            **{time: histogram.to_bytes() for time, histogram in zip(TIMES, times[names], strict=True)},
        )
        for names, numbers in sums.items()
    ]


def buckets_of_day(key: DayKey, span: Span, *, after: int) -> list[DecisionBucket]:
    """Of the exchanges that started in the span and have a number above `after`."""
    exchanges = Exchange.objects.filter(started_at__gte=span.start, started_at__lt=span.end, pk__gt=after).order_by()
    reach = exchanges.aggregate(first=Min("pk"), last=Max("pk"))
    if reach["first"] is None:
        return []
    counts: Counter[Bucket] = Counter()
    for decided in _decided(exchanges):
        count_decisions(counts, decided)
    # Rows of a day lie close together by the exchange's number: without its bounds all other days were read as well.
    ours = {
        "exchange__started_at__gte": span.start,
        "exchange__started_at__lt": span.end,
        "exchange_id__gte": reach["first"],
        "exchange_id__lte": reach["last"],
    }
    for bucket, count in (
        *_of_exclusions(ours),
        *_of_attempts(ours),
        *_of_transitions(ours),
        *_of_candidates(ours),
        *_of_values(span, reach["first"], reach["last"]),
    ):
        counts[bucket] += count
    return [DecisionBucket(**key, count=count, **bucket._asdict()) for bucket, count in counts.items()]


def _of_slots(hour: datetime, after: int) -> Any:
    quarter = Case(
        *(When(started_at__lt=hour + SLOT * (index + 1), then=Value(index)) for index in range(3)), default=Value(3)
    )
    exchanges = Exchange.objects.filter(started_at__gte=hour, started_at__lt=hour + HOUR, pk__gt=after)
    # The types of Django know no rows of annotations and columns together.
    return exchanges.order_by().annotate(quarter=quarter).values("quarter", *DIMENSIONS)


def _aliased(sums: dict[str, Expression]) -> dict[str, Expression]:
    """Django has no room for a sum with the name of its column."""
    return {f"sum_{name}": expression for name, expression in sums.items()}


def _latency_bucket(column: str) -> Combinable:
    """`latency.bucket_of`, in SQL."""
    steps = Cast(Floor(Ln(F(column) / Value(latency.SMALLEST_MS)) * Value(latency.PER_LOG)), IntegerField())
    return Case(
        When(**{f"{column}__lt": latency.SMALLEST_MS}, then=Value(0)),
        default=Least(steps + Value(1), Value(latency.LAST), output_field=IntegerField()),
        output_field=IntegerField(),
    )


def _tenth(column: str) -> Expression:
    """`buckets.tenth_of`, in SQL; null stays null."""
    tenth = Cast(Floor(Cast(F(column), FloatField()) * Value(10.0)), IntegerField())
    return Case(
        When(**{column: None}, then=None),
        default=Least(Greatest(tenth, Value(0)), Value(9)),
        output_field=IntegerField(),
    )


def _decided(exchanges: "QuerySet[Exchange]") -> Iterator[DecisionGroup]:
    columns = tuple(name for name in DecisionGroup.__struct_fields__ if name != "count")
    grouped = exchanges.values(*columns).annotate(n=Count("*"))
    for *values, count in grouped.values_list(*columns, "n").iterator(chunk_size=READ_AT_ONCE):
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


def _of_candidates(ours: dict[str, Any]) -> Iterator[tuple[Bucket, int]]:
    rows = (
        Candidate.objects.filter(**ours)
        .order_by()
        .annotate(
            first=Case(When(place=0, then=Value(1)), default=Value(0)),
            dynamic=_tenth("dynamic_score"),
            contrasted=_tenth("contrasted_score"),
            final=_tenth("final_score"),
        )
    )
    names = ("exchange__group", "target", "first", "near_tie", "dynamic", "contrasted", "final")
    for group, target, first, near_tie, dynamic, contrasted, final, count in (
        rows.values(*names).annotate(n=Count("*")).values_list(*names, "n")
    ):
        for dimension, tenth in (
            ("dynamic_score", dynamic),
            ("contrasted_score", contrasted),
            ("final_score", final),
            ("chosen_final_score", final if first else None),
        ):
            if tenth is not None:
                yield Bucket(group, dimension, TENTHS[tenth], target), count
        if near_tie:
            yield Bucket(group, "near_tie", "yes", target), count


_VALUES = {
    # Django knows no rows from the inside of JSON.
    "postgresql": """
        SELECT e."group", c.target, s.key,
               LEAST(GREATEST(FLOOR((s.value ->> 1)::double precision * 10), 0), 9)::integer AS tenth, COUNT(*)
        FROM reports_candidate c JOIN reports_exchange e ON e.id = c.exchange_id
             CROSS JOIN LATERAL jsonb_each(c.scores) s
        WHERE e.started_at >= %s AND e.started_at < %s AND c.exchange_id BETWEEN %s AND %s
              AND (s.value ->> 1) IS NOT NULL
        GROUP BY 1, 2, 3, 4""",
    "sqlite": """
        SELECT e."group", c.target, s.key,
               MIN(MAX(CAST(json_extract(s.value, '$[1]') * 10 AS INTEGER), 0), 9) AS tenth, COUNT(*)
        FROM reports_candidate c JOIN reports_exchange e ON e.id = c.exchange_id, json_each(c.scores) s
        WHERE e.started_at >= %s AND e.started_at < %s AND c.exchange_id BETWEEN %s AND %s
              AND json_extract(s.value, '$[1]') IS NOT NULL
        GROUP BY 1, 2, 3, 4""",
}


def _of_values(span: Span, first: int, last: int) -> Iterator[tuple[Bucket, int]]:
    start, end = (connection.ops.adapt_datetimefield_value(moment) for moment in (span.start, span.end))
    with connection.cursor() as cursor:
        cursor.execute(_VALUES[connection.vendor], [start, end, first, last])
        for group, target, name, tenth, count in cursor.fetchall():
            yield Bucket(group, f"{VALUE_PREFIX}{name}", TENTHS[tenth], target), count
