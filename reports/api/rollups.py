"""`rollups/hourly/` and `rollups/daily/`: sums by hour and by day, with percentiles, oldest first."""

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django.db.models import QuerySet
from django.utils import timezone
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from reports.api.access import SEES_SUMS, Viewer, viewer_of
from reports.api.errors import ApiError, BadParameter
from reports.api.money import usd
from reports.api.parameters import (
    EARLIEST,
    Cursor,
    Day,
    Moment,
    Paged,
    Zone,
    cursor_day,
    names,
    next_page,
    one_of,
    page_size,
    read_parameters,
    utc,
)
from reports.api.parts import Next
from reports.api.periods import (
    LONGEST_DAY,
    LONGEST_HOUR,
    SUMS,
    Page,
    Source,
    Summed,
    days_of,
    end_of_hour,
    hours_of,
    read_page,
)
from reports.api.time_limit import limited_queries
from reports.api.views import Reading, described
from reports.core.latency import Histogram
from reports.core.rollup import AFFINITIES, DIMENSIONS, TIMES, day_of, day_span
from reports.rollup_models import DailyRollup, SlotRollup
from reports.rollups import report_zone

HOURS_WITHOUT_FROM = timedelta(hours=24)
DAYS_WITHOUT_FROM = timedelta(days=29)
"""With today they are thirty."""
ROUTING = frozenset({"provider", "model", "strategy"})
HIDDEN = frozenset({"attempts", "fallbacks", *AFFINITIES})
"""Sums that tell how requests were routed."""
PERCENTILES = {"p50_ms": 0.5, "p90_ms": 0.9, "p95_ms": 0.95, "p99_ms": 0.99}


class LatencySerializer(serializers.Serializer[Any]):
    """Milliseconds. Percentiles are within 4.4 %; null: nothing was measured."""

    count = serializers.IntegerField(read_only=True)
    mean_ms = serializers.FloatField(read_only=True, allow_null=True)
    p50_ms = serializers.FloatField(read_only=True, allow_null=True)
    p90_ms = serializers.FloatField(read_only=True, allow_null=True)
    p95_ms = serializers.FloatField(read_only=True, allow_null=True)
    p99_ms = serializers.FloatField(read_only=True, allow_null=True)


def _hideable() -> serializers.IntegerField:
    return serializers.IntegerField(
        read_only=True, allow_null=True, help_text="Null for a caller who does not see routing."
    )


class SumsSerializer(serializers.ModelSerializer[SlotRollup]):
    by = serializers.DictField(
        child=serializers.CharField(), read_only=True, help_text="The names of `group_by`. Empty: that have none."
    )
    attempts = _hideable()
    fallbacks = _hideable()
    affinity_hit = _hideable()
    affinity_miss = _hideable()
    affinity_expired = _hideable()
    affinity_evicted = _hideable()
    affinity_ineligible = _hideable()
    affinity_disabled = _hideable()
    cost_usd = serializers.RegexField(r"^-?\d+\.\d{6}$", read_only=True, help_text="In dollars, as decimal.")
    duration = LatencySerializer(read_only=True)
    first_content = LatencySerializer(read_only=True)
    queued = LatencySerializer(read_only=True)


_FIELDS = ("by", *SUMS, "cost_usd", *TIMES)


class HourSerializer(SumsSerializer):
    start = serializers.DateTimeField(read_only=True)
    end = serializers.DateTimeField(read_only=True)

    class Meta:
        model = SlotRollup
        fields = ("start", "end", *_FIELDS)
        read_only_fields = fields


class DaySerializer(SumsSerializer):
    day = serializers.DateField(read_only=True)
    start = serializers.DateTimeField(read_only=True)
    end = serializers.DateTimeField(read_only=True)

    class Meta:
        model = SlotRollup
        fields = ("day", "start", "end", *_FIELDS)
        read_only_fields = fields


class HourPageSerializer(serializers.Serializer[Any]):
    zone = serializers.CharField(read_only=True)
    next = Next()
    results = HourSerializer(read_only=True, many=True)


class DayPageSerializer(serializers.Serializer[Any]):
    zone = serializers.CharField(read_only=True)
    made_of = serializers.ChoiceField(
        choices=("days", "slots"), read_only=True, help_text="What was read: sums of days, or of quarters of an hour."
    )
    next = Next()
    results = DaySerializer(read_only=True, many=True)


class RollupQuery(Paged):
    routing = ROUTING

    zone = Zone(required=False, help_text="Whose clocks count. Without it the installation's.")
    group_by = one_of(DIMENSIONS, "What rows are told apart by, in this order. Without it a period has one row.")
    group = names("Model group.")
    caller = names("Caller.")
    project = names("Project.")
    environment = names("Environment.")
    provider = names("Provider.")
    model = names("Provider's model.")
    strategy = names("Strategy of the group.")


class HourlyQuery(RollupQuery):
    def first_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        return {
            "from": Moment(
                required=False, help_text="Quarters that begin then or later; 24 hours before `to` without it."
            ),
            "to": Moment(required=False, help_text="Quarters that begin before; now without it."),
        }

    def cursor_field(self) -> Cursor:
        return Cursor(utc)


class DailyQuery(RollupQuery):
    def first_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        return {
            "from": Day(required=False, help_text="First day; 29 days before `to` without it."),
            "to": Day(required=False, help_text="Last day, included; today without it."),
        }

    def cursor_field(self) -> Cursor:
        return Cursor(cursor_day)


class HourlyViews(Reading):
    rights = (SEES_SUMS,)

    @described(
        query=HourlyQuery,
        answer=HourPageSerializer,
        summary="Sums by hour",
        description="Oldest first. Hours in which nothing happened have no row.",
    )
    def list(self, request: Request) -> Response:
        viewer = viewer_of(request)
        said = _read(HourlyQuery, request, viewer)
        zone = said.get("zone") or report_zone()
        before = said.get("to") or timezone.now()
        first = said.get("from") or before - HOURS_WITHOUT_FROM
        after = said.get("cursor")
        hour = hours_of(zone)
        rows = _matching(SlotRollup.objects.all(), said, viewer).filter(
            slot__gte=first if after is None else max(first, after[0]), slot__lt=before
        )
        source = Source(rows=rows, column="slot", period_of=hour, most_per_period=LONGEST_HOUR)
        page = _page(source, said)

        def times(start: datetime) -> dict[str, Any]:
            return {"start": start, "end": end_of_hour(start, hour)}

        return Response(HourPageSerializer(_answer(page, said, request, viewer, zone, times)).data)


class DailyViews(Reading):
    rights = (SEES_SUMS,)

    @described(
        query=DailyQuery,
        answer=DayPageSerializer,
        summary="Sums by day",
        description="Oldest first. Days of the installation's zone are kept the longest; those of other zones are made "
        "of quarters of an hour, as long as these are kept.",
    )
    def list(self, request: Request) -> Response:
        viewer = viewer_of(request)
        said = _read(DailyQuery, request, viewer)
        zone = said.get("zone") or report_zone()
        last = said.get("to") or day_of(timezone.now(), zone)
        first = said.get("from") or max(last - DAYS_WITHOUT_FROM, EARLIEST)
        if said.get("cursor") is not None:
            first = max(first, said["cursor"][0])
        if zone.key == report_zone().key:
            rows = DailyRollup.objects.filter(zone=zone.key, day__gte=first, day__lte=last)
            source = Source(
                rows=_matching(rows, said, viewer), column="day", period_of=lambda day: day, most_per_period=1
            )
        else:
            within = {"slot__gte": day_span(first, zone).start, "slot__lt": day_span(last, zone).end}
            rows_of_slots = _matching(SlotRollup.objects.filter(**within), said, viewer)
            source = Source(rows=rows_of_slots, column="slot", period_of=days_of(zone), most_per_period=LONGEST_DAY)
        page = _page(source, said)

        def times(day: date) -> dict[str, Any]:
            span = day_span(day, zone)
            return {"day": day, "start": span.start, "end": span.end}

        answer = _answer(page, said, request, viewer, zone, times)
        return Response(DayPageSerializer({**answer, "made_of": "days" if source.column == "day" else "slots"}).data)


def _read(query: type[RollupQuery], request: Request, viewer: Viewer) -> Mapping[str, Any]:
    said = read_parameters(query, request.query_params, viewer)
    group_by = said.get("group_by", ())
    problems = []
    if len(set(group_by)) != len(group_by):
        problems.append(BadParameter(name="group_by", message="A name stands there twice.", expected="each name once"))
    if "cursor" in said and len(said["cursor"]) != 1 + len(group_by):
        expected = "the `group_by` of the page before"
        problems.append(
            BadParameter(name="cursor", message="It is of a list with another group_by.", expected=expected)
        )
    if problems:
        raise ApiError("invalid_parameters", problems)
    if not viewer.sees_routing and (hidden := ROUTING.intersection(group_by)):
        message = f"{', '.join(sorted(hidden))} would tell how requests are routed."
        raise ApiError("routing_hidden", [BadParameter(name="group_by", message=message, expected="other names")])
    return said


def _matching(rows: QuerySet[Any], said: Mapping[str, Any], viewer: Viewer) -> QuerySet[Any]:
    return viewer.narrow(rows).filter(**{f"{name}__in": said[name] for name in DIMENSIONS if name in said})


def _page(source: Source, said: Mapping[str, Any]) -> Page:
    with limited_queries():
        size = said.get("page_size", page_size())
        return read_page(source, said.get("group_by", ()), after=said.get("cursor"), size=size)


def _answer(
    page: Page,
    said: Mapping[str, Any],
    request: Request,
    viewer: Viewer,
    zone: ZoneInfo,
    times: Callable[[Any], dict[str, Any]],
) -> dict[str, Any]:
    group_by = said.get("group_by", ())
    more = page.more and page.rows
    return {
        "zone": zone.key,
        "next": next_page(request.path, request.query_params, page.rows[-1].key) if more else None,
        "results": [{**times(row.key[0]), **_row(row, group_by, viewer)} for row in page.rows],
    }


def _row(row: Summed, group_by: Sequence[str], viewer: Viewer) -> dict[str, Any]:
    return {
        "by": dict(zip(group_by, row.key[1:], strict=True)),
        **{name: row.sums[name] if viewer.sees_routing or name not in HIDDEN else None for name in SUMS},
        "cost_usd": usd(row.sums["cost_microdollars"]),
        **{name: _latency(row.times[name], row.sums[f"{name}_us"]) for name in TIMES},
    }


def _latency(times: Histogram, microseconds: int) -> dict[str, Any]:
    count = times.count
    found = {name: times.percentile(share) for name, share in PERCENTILES.items()}
    found["mean_ms"] = microseconds / 1000 / count if count else None
    return {"count": count, **{name: None if ms is None else round(ms, 3) for name, ms in found.items()}}
