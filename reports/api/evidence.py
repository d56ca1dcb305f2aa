"""All that is known of one request, in the API's words."""

from typing import Any

from rest_framework import serializers

from reports.api.access import Viewer
from reports.api.money import Usd
from reports.api.parts import Words
from reports.core.cost import CLASSES
from reports.evidence import Evidence
from reports.models import Attempt, Candidate, Exchange, Exclusion, Transition

PER_MILLION = "Micro-dollars for a million tokens, at admission. Null: unknown."

ROUTING = ("decision", "candidates", "exclusions", "attempts", "transitions", "served_by")
"""Sections that tell how a request was routed: null for a caller who does not see that."""
COMPLETENESS = ("complete", "in_progress", "aborted", "expired", "not_ingested_yet")


class CandidateScoreSerializer(serializers.Serializer[Any]):
    name = serializers.CharField(read_only=True)
    raw = serializers.FloatField(read_only=True, allow_null=True, help_text="In its own unit. Null: no data.")
    value = serializers.FloatField(read_only=True, allow_null=True, help_text="0 to 1.")
    flag = serializers.CharField(read_only=True, allow_null=True)


class CandidateTermSerializer(serializers.Serializer[Any]):
    name = serializers.CharField(read_only=True)
    share = serializers.FloatField(read_only=True, allow_null=True)
    value = serializers.FloatField(read_only=True, allow_null=True)
    preferred_tags = serializers.IntegerField(read_only=True, allow_null=True)
    flag = serializers.CharField(read_only=True, allow_null=True)


class CandidateSerializer(serializers.ModelSerializer[Candidate]):
    """A target that could have served."""

    scores = CandidateScoreSerializer(read_only=True, many=True)
    terms = CandidateTermSerializer(read_only=True, many=True)

    class Meta:
        model = Candidate
        fields = (
            "target", "weight", "observations", "in_flight", "overdue", "dynamic_score", "contrasted_score", "final_score",
            "near_tie", "scores", "terms",
        )  # fmt: skip
        read_only_fields = fields


class ExclusionSerializer(serializers.ModelSerializer[Exclusion]):
    """A target that could not serve, and why."""

    class Meta:
        model = Exclusion
        fields = ("target", "stage", "reason", "detail")
        read_only_fields = fields


class AttemptSerializer(serializers.ModelSerializer[Attempt]):
    """One upstream call."""

    cost_usd = Usd(source="cost_microdollars", allow_null=True)

    class Meta:
        model = Attempt
        fields = (
            "target", "provider", "model", "outcome", "status", "error_code", "started_ms", "duration_ms",
            "first_content_ms", "retry_after_s", "served", "input_tokens", "output_tokens", "cost_microdollars", "cost_usd",
        )  # fmt: skip
        read_only_fields = fields


class TransitionSerializer(serializers.ModelSerializer[Transition]):
    """From a failed attempt to the next target."""

    class Meta:
        model = Transition
        fields = ("from_target", "to_target", "reason")
        read_only_fields = fields


class Section(serializers.ModelSerializer[Exchange]):
    """A part of an exchange's columns. What derives from it says which."""


class WhoSerializer(Section):
    class Meta:
        model = Exchange
        fields = ("caller", "project", "environment", "token")
        read_only_fields = fields


class RequestSerializer(Section):
    legal_hold = serializers.BooleanField(read_only=True, allow_null=True, help_text="Null for callers.")

    class Meta:
        model = Exchange
        fields = ("endpoint", "group", "dialect", "stream", "revision", "request_bytes", "response_bytes", "legal_hold")
        read_only_fields = fields


class ShapeSerializer(Section):
    prompt_features = Words(read_only=True)

    class Meta:
        model = Exchange
        fields = (
            "input_tokens_estimated", "output_cap", "tool_count", "image_count", "complexity", "prompt_features",
            "input_bucket", "output_cap_bucket", "complexity_bucket",
        )  # fmt: skip
        read_only_fields = fields


class DecisionSerializer(Section):
    signals = Words(read_only=True)
    matched_terms = Words(read_only=True)
    flags = Words(read_only=True)

    class Meta:
        model = Exchange
        fields = ("strategy", "mode", "affinity", "tie_break", "propensity", "signals", "matched_terms", "flags")
        read_only_fields = fields


class ServedBySerializer(Section):
    class Meta:
        model = Exchange
        fields = ("target", "provider", "model")
        read_only_fields = fields


class OutcomeSerializer(Section):
    error_detail = serializers.CharField(read_only=True, allow_null=True, help_text="Null for callers.")

    class Meta:
        model = Exchange
        fields = ("outcome", "status", "error_code", "error_detail", "terminal_marker")
        read_only_fields = fields


class TimingsSerializer(Section):
    class Meta:
        model = Exchange
        fields = ("duration_ms", "first_content_ms", "queued_ms")
        read_only_fields = fields


class UsageSerializer(Section):
    class Meta:
        model = Exchange
        fields = ("usage_quality", "prompt_cache")
        read_only_fields = fields


class TokensSerializer(serializers.Serializer[Any]):
    """By class, disjoint but for `reasoning`, which is part of `output`. Null: the provider did not say."""

    input = serializers.IntegerField(read_only=True, allow_null=True, help_text="Not cached.")
    cache_read = serializers.IntegerField(read_only=True, allow_null=True)
    cache_write_5m = serializers.IntegerField(read_only=True, allow_null=True)
    cache_write_1h = serializers.IntegerField(read_only=True, allow_null=True)
    output = serializers.IntegerField(read_only=True, allow_null=True)
    reasoning = serializers.IntegerField(read_only=True, allow_null=True)


class CostLineSerializer(serializers.Serializer[Any]):
    """One step of the arithmetic: tokens times price. A million picodollars are a micro-dollar."""

    token_class = serializers.ChoiceField(read_only=True, choices=CLASSES)
    tokens = serializers.IntegerField(read_only=True)
    price_microdollars = serializers.IntegerField(
        source="price", read_only=True, allow_null=True, help_text=PER_MILLION
    )
    price_usd = Usd(source="price", allow_null=True)
    picodollars = serializers.IntegerField(read_only=True, allow_null=True)


class PricesSerializer(serializers.Serializer[Any]):
    """Micro-dollars for a million tokens of each class, at admission. Null: unknown; 0: free."""

    input_microdollars = serializers.IntegerField(source="input", read_only=True, allow_null=True)
    cache_read_microdollars = serializers.IntegerField(source="cache_read", read_only=True, allow_null=True)
    cache_write_5m_microdollars = serializers.IntegerField(source="cache_write_5m", read_only=True, allow_null=True)
    cache_write_1h_microdollars = serializers.IntegerField(source="cache_write_1h", read_only=True, allow_null=True)
    output_microdollars = serializers.IntegerField(source="output", read_only=True, allow_null=True)


class CostSerializer(serializers.Serializer[Any]):
    cost_microdollars = serializers.IntegerField(
        source="microdollars", read_only=True, allow_null=True, help_text="Null: a price that it needs is unknown."
    )
    cost_usd = Usd(source="microdollars", allow_null=True)
    flags = Words(read_only=True)
    lines = CostLineSerializer(read_only=True, many=True)
    prices = PricesSerializer(read_only=True)


class EvidenceSerializer(serializers.Serializer[Evidence]):
    """All that is known of one request: scalars and names, never a text of anybody's."""

    id = serializers.CharField(read_only=True)
    completeness = serializers.ChoiceField(
        read_only=True,
        choices=COMPLETENESS,
        help_text="in_progress: its end has not come. aborted: its process died. expired: some of its detail is too old "
        "to be kept, see missing. not_ingested_yet: it is not among the lists yet.",
    )
    missing = Words(read_only=True, help_text="Sections that were deleted for their age.")
    started_at = serializers.DateTimeField(read_only=True)
    routing_visible = serializers.SerializerMethodField(
        help_text="False: the caller does not see routing, and the sections that tell of it are null."
    )
    who = WhoSerializer(read_only=True)
    request = RequestSerializer(read_only=True)
    shape = ShapeSerializer(read_only=True)
    decision = DecisionSerializer(read_only=True, allow_null=True)
    candidates = CandidateSerializer(read_only=True, many=True, allow_null=True, help_text="In the order of trying.")
    exclusions = ExclusionSerializer(read_only=True, many=True, allow_null=True)
    attempts = AttemptSerializer(read_only=True, many=True, allow_null=True)
    transitions = TransitionSerializer(read_only=True, many=True, allow_null=True)
    served_by = ServedBySerializer(
        read_only=True, allow_null=True, help_text="The target that served, or was tried last."
    )
    outcome = OutcomeSerializer(read_only=True)
    timings = TimingsSerializer(read_only=True)
    tokens = TokensSerializer(read_only=True)
    usage = UsageSerializer(read_only=True)
    cost = CostSerializer(read_only=True)

    def get_routing_visible(self, found: Evidence) -> bool:
        viewer: Viewer = self.context["viewer"]
        return viewer.sees_routing

    def to_representation(self, instance: Evidence) -> dict[str, Any]:
        viewer: Viewer = self.context["viewer"]
        sections: dict[str, Any] = super().to_representation(instance)
        if not viewer.sees_routing:
            sections.update(
                dict.fromkeys(ROUTING), missing=[each for each in sections["missing"] if each not in ROUTING]
            )
        if not viewer.is_staff:
            sections["request"]["legal_hold"] = sections["outcome"]["error_detail"] = None
        return sections
