"""`decisions/daily/`: how often a day's decisions fell into each bucket."""

from collections.abc import Mapping
from datetime import date, timedelta
from typing import Any

from django.db.models import Q, Sum
from django.utils import timezone
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from reports.api.access import SEES_SUMS, viewer_of
from reports.api.errors import ApiError
from reports.api.parameters import (
    EARLIEST,
    Cursor,
    Day,
    Paged,
    cursor_day,
    names,
    next_page,
    page_size,
    read_parameters,
)
from reports.api.parts import Next
from reports.api.time_limit import limited_queries
from reports.api.views import Reading, described
from reports.core.rollup import day_of
from reports.rollup_models import DecisionBucket
from reports.rollups import report_zone

NAMES: Mapping[str, str] = {
    "dimension": "What is counted, such as mode, exclusion or value.latency_score.",
    "group": "Model group.",
    "bucket": "Bucket of the dimension.",
    "target": "Target.",
    "provider": "Provider.",
    "model": "Provider's model.",
}
ORDER = ("day", *NAMES)
DAYS_WITHOUT_FROM = timedelta(days=29)
"""With today they are thirty."""


class BucketSerializer(serializers.Serializer[Any]):
    day = serializers.DateField(read_only=True)
    dimension = serializers.CharField(read_only=True)
    group = serializers.CharField(read_only=True)
    bucket = serializers.CharField(read_only=True)
    target = serializers.CharField(read_only=True)
    provider = serializers.CharField(read_only=True)
    model = serializers.CharField(read_only=True)
    count = serializers.IntegerField(read_only=True)


class BucketPageSerializer(serializers.Serializer[Any]):
    zone = serializers.CharField(read_only=True, help_text="The installation's: its days are counted.")
    next = Next()
    results = BucketSerializer(read_only=True, many=True)


class BucketQuery(Paged):
    def first_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        return {
            "from": Day(required=False, help_text="First day; 29 days before `to` without it."),
            "to": Day(required=False, help_text="Last day, included; today without it."),
            **{name: names(text) for name, text in NAMES.items()},
        }

    def cursor_field(self) -> Cursor:
        return Cursor(cursor_day, *[str] * len(NAMES))


class DecisionViews(Reading):
    rights = (SEES_SUMS,)

    @described(
        query=BucketQuery,
        answer=BucketPageSerializer,
        summary="Decisions by day and bucket",
        description="For staff alone: buckets are not kept by project. Oldest day first.",
    )
    def list(self, request: Request) -> Response:
        viewer = viewer_of(request)
        if not viewer.is_staff:
            raise ApiError("not_allowed")
        said = read_parameters(BucketQuery, request.query_params, viewer)
        zone = report_zone()
        last = said.get("to") or day_of(timezone.now(), zone)
        first: date = said.get("from") or max(last - DAYS_WITHOUT_FROM, EARLIEST)
        size = said.get("page_size", page_size())
        rows = DecisionBucket.objects.filter(zone=zone.key, day__gte=first, day__lte=last)
        rows = rows.filter(**{f"{name}__in": said[name] for name in NAMES if name in said})
        if "cursor" in said:
            rows = rows.filter(_behind(dict(zip(ORDER, said["cursor"], strict=True))), day__gte=said["cursor"][0])
        with limited_queries():
            # Later generations of a day add to the earlier.
            summed = rows.values(*ORDER).annotate(total=Sum("count")).order_by(*ORDER).values_list(*ORDER, "total")
            found = list(summed[: size + 1])
        page = found[:size]
        more = len(found) > size
        answer = {
            "zone": zone.key,
            "next": next_page(request.path, request.query_params, page[-1][:-1]) if more else None,
            "results": [dict(zip((*ORDER, "count"), row, strict=True)) for row in page],
        }
        return Response(BucketPageSerializer(answer).data)


def _behind(place: Mapping[str, Any]) -> Q:
    """Rows that come later in the order of the place's columns."""
    later = Q()
    for column, value in reversed(list(place.items())):
        later = Q(**{f"{column}__gt": value}) | (Q(**{column: value}) & later if later else Q())
    return later
