"""`exchanges/`: requests as they were answered, newest first, and all that is known of one."""

from collections.abc import Mapping
from typing import Any

from django.db.models import Q, QuerySet
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from reports.api.access import SEES_EXCHANGES, Viewer, viewer_of
from reports.api.errors import ApiError
from reports.api.evidence import EvidenceSerializer
from reports.api.money import Usd
from reports.api.parameters import (
    Cursor,
    Moment,
    NoQuery,
    Paged,
    names,
    next_page,
    number,
    one_of,
    page_size,
    read_parameters,
    utc,
    whole,
)
from reports.api.parts import Next, Words
from reports.api.time_limit import limited_queries
from reports.api.views import Reading, described
from reports.core.rollup import OUTCOMES, USAGE_QUALITIES
from reports.evidence import evidence
from reports.models import Exchange

ROUTING = (
    "target", "provider", "model", "strategy", "mode", "affinity", "tie_break", "propensity", "signals", "matched_terms",
    "flags", "attempt_count", "candidate_count", "exclusion_count", "fell_back",
)  # fmt: skip
"""Columns that tell how a request was routed."""
OPERATOR = ("error_detail", "legal_hold")
"""Columns that are for staff: why a token was refused is told to nobody else."""
SHOWN = (
    "request_id", "started_at", "caller", "project", "environment", "token", "endpoint", "group", "dialect", "stream",
    "revision", "status", "outcome", "error_code", "terminal_marker", "duration_ms", "first_content_ms", "queued_ms",
    "request_bytes", "response_bytes", "input_tokens_estimated", "output_cap", "tool_count", "image_count", "complexity",
    "prompt_features", "input_tokens", "cache_read_tokens", "cache_write_5m_tokens", "cache_write_1h_tokens",
    "output_tokens", "reasoning_tokens", "usage_quality", "prompt_cache", "cost_microdollars", "cost_flags",
)  # fmt: skip


class RoutingSerializer(serializers.ModelSerializer[Exchange]):
    signals = Words(read_only=True, help_text="Names of the enabled signals.")
    matched_terms = Words(read_only=True)
    flags = Words(read_only=True, help_text="Of the decision.")

    class Meta:
        model = Exchange
        fields = ROUTING
        read_only_fields = ROUTING


class OperatorSerializer(serializers.ModelSerializer[Exchange]):
    class Meta:
        model = Exchange
        fields = OPERATOR
        read_only_fields = OPERATOR


class ExchangeSerializer(serializers.ModelSerializer[Exchange]):
    """One request and its whole answer."""

    prompt_features = Words(read_only=True)
    cost_flags = Words(read_only=True)
    cost_usd = Usd(source="cost_microdollars", allow_null=True)
    routing = RoutingSerializer(
        source="*", read_only=True, allow_null=True, help_text="Null for a caller who does not see routing."
    )
    operator = OperatorSerializer(source="*", read_only=True, allow_null=True, help_text="Null for callers.")

    class Meta:
        model = Exchange
        fields = (*SHOWN, "cost_usd", "routing", "operator")
        read_only_fields = SHOWN

    def to_representation(self, instance: Exchange) -> dict[str, Any]:
        viewer: Viewer = self.context["viewer"]
        row: dict[str, Any] = super().to_representation(instance)
        if not viewer.sees_routing:
            row["routing"] = None
        if not viewer.is_staff:
            row["operator"] = None
        return row


class ExchangePageSerializer(serializers.Serializer[Any]):
    next = Next()
    results = ExchangeSerializer(read_only=True, many=True)


NAMES: Mapping[str, str] = {
    "group": "Model group.",
    "caller": "Caller.",
    "project": "Project.",
    "environment": "Environment.",
    "token": "First 12 characters of a token.",
    "endpoint": "Endpoint: chat, messages or count_tokens.",
    "dialect": "Dialect of the request.",
    "error_code": "Code of the error.",
    "target": "Target that served, or was tried last.",
    "provider": "Provider that served, or was tried last.",
    "model": "Provider's model that served, or was tried last.",
    "strategy": "Strategy of the group.",
    "mode": "How the decision was made.",
    "affinity": "What became of the conversation's pin.",
}
"""Columns in which names are looked for."""


class ExchangeQuery(Paged):
    routing = frozenset({"target", "provider", "model", "strategy", "mode", "affinity", "fell_back"})

    outcome = one_of(OUTCOMES, "Outcome.")
    status = serializers.ListField(
        child=serializers.IntegerField(min_value=100, max_value=599),
        required=False,
        max_length=50,
        help_text="Status that the client got. May be given several times.",
    )
    usage_quality = one_of(USAGE_QUALITIES, "Where the token counts come from.")
    stream = serializers.BooleanField(required=False, help_text="Whether it was asked to stream.")
    fell_back = serializers.BooleanField(required=False, help_text="Whether more than one target was tried.")
    cost_known = serializers.BooleanField(required=False, help_text="Whether every price that it needs is known.")
    min_cost_microdollars = number("Costs at least so much.")
    max_cost_microdollars = number("Costs at most so much.")
    min_duration_ms = number("Took at least so long.")
    min_input_tokens = number("At least so many input tokens that were not cached.")
    min_output_tokens = number("At least so many output tokens.")

    def first_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        return {
            "from": Moment(required=False, help_text="Began then or later."),
            "to": Moment(required=False, help_text="Began before."),
            **{name: names(text) for name, text in NAMES.items()},
        }

    def cursor_field(self) -> Cursor:
        return Cursor(utc, whole)


LOOKUPS: Mapping[str, str] = {
    "from": "started_at__gte",
    "to": "started_at__lt",
    **{name: f"{name}__in" for name in (*NAMES, "outcome", "status", "usage_quality")},
    "stream": "stream",
    "fell_back": "fell_back",
    "min_cost_microdollars": "cost_microdollars__gte",
    "max_cost_microdollars": "cost_microdollars__lte",
    "min_duration_ms": "duration_ms__gte",
    "min_input_tokens": "input_tokens__gte",
    "min_output_tokens": "output_tokens__gte",
}


def matching(said: Mapping[str, Any], viewer: Viewer) -> QuerySet[Exchange]:
    """Newest first; after the cursor."""
    rows = viewer.narrow(Exchange.objects.all())
    rows = rows.filter(**{lookup: said[name] for name, lookup in LOOKUPS.items() if name in said})
    if "cost_known" in said:
        rows = rows.filter(cost_microdollars__isnull=not said["cost_known"])
    if "cursor" in said:
        moment, pk = said["cursor"]
        # The first condition alone is one that an index of times can begin with.
        rows = rows.filter(Q(started_at__lte=moment) & (Q(started_at__lt=moment) | Q(pk__lt=pk)))
    return rows.order_by("-started_at", "-pk")


class ExchangeViews(Reading):
    rights = (SEES_EXCHANGES,)
    lookup_value_regex = "[^/]+"
    lookup_field = "request_id"

    @described(
        query=ExchangeQuery,
        answer=ExchangePageSerializer,
        summary="Requests, newest first",
        description="Those that are over. A page goes on where the one before ended, whatever has come in since.",
    )
    def list(self, request: Request) -> Response:
        viewer = viewer_of(request)
        said = read_parameters(ExchangeQuery, request.query_params, viewer)
        size = said.get("page_size", page_size())
        with limited_queries():
            rows = list(matching(said, viewer)[: size + 1])
        more, rows = len(rows) > size, rows[:size]
        last = next_page(request.path, request.query_params, (rows[-1].started_at, rows[-1].pk)) if more else None
        page = {"next": last, "results": rows}
        return Response(ExchangePageSerializer(page, context={"viewer": viewer}).data)

    @described(
        answer=EvidenceSerializer,
        found=True,
        summary="All that is known of one request",
        description="By what the client saw as `x-request-id`; also of one that is under way, or whose end has only now "
        "been written.",
    )
    def retrieve(self, request: Request, request_id: str) -> Response:
        viewer = viewer_of(request)
        read_parameters(NoQuery, request.query_params, viewer)
        with limited_queries():
            found = evidence(request_id)
        who = found.who
        if found.completeness == "unknown" or not viewer.may_see(caller=who["caller"], project=who["project"]):
            raise ApiError("not_found")
        return Response(EvidenceSerializer(found, context={"viewer": viewer}).data)
