"""Rows to a Document and back.

Rows are read as the file's plain data and then by the file's reader, so that a form, a file and a row are judged by one
set of rules. Where a column stands in the file is said once, in the tables at the end.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from decimal import Decimal
from typing import Any, TypeVar
from urllib.parse import urlsplit

from django.db.models import Model as Row

from routing.core import document
from routing.core.errors import ConfigurationError
from routing.core.reading import read, write
from routing.models import EvaluationMetadata, ModelGroup, Provider, ProviderModel, ScoreTerm, Target

R = TypeVar("R", bound=Row)
Columns = Mapping[str, tuple[str, ...]]
"""Column of a row: where it stands in the file, below the object that the row is."""


def document_from_rows() -> document.Document:
    """All rows, literal keys included. Raises ConfigurationError when a row holds what the file could not say."""
    found, problems = read(document.Document, plain_from_rows())
    if found is None:
        raise ConfigurationError(problems)
    return found


def readable_document() -> document.Document:
    """All rows less the providers and groups that no file could say."""
    plain = plain_from_rows()
    providers = {name: read(document.Provider, each)[0] for name, each in plain["providers"].items()}
    groups = {name: read(document.Group, each)[0] for name, each in plain["models"].items()}
    return document.Document(
        providers={name: each for name, each in providers.items() if each is not None},
        models={name: each for name, each in groups.items() if each is not None},
    )


def plain_from_rows() -> dict[str, Any]:
    """`{"providers": {name: ...}, "models": {name: ...}}`, unjudged, in six queries."""
    catalogue: dict[int, list[ProviderModel]] = {}
    for model in ProviderModel.objects.order_by("name"):
        catalogue.setdefault(model.provider_id, []).append(model)
    groups = ModelGroup.objects.order_by("name").prefetch_related("score_terms", "evaluation_metadata")
    targets: dict[int, list[Target]] = {}
    for target in Target.objects.select_related("provider", "provider_model__provider"):
        targets.setdefault(target.group_id, []).append(target)
    return {
        "providers": {
            provider.name: plain_provider(provider, catalogue.get(provider.pk, ()))
            for provider in Provider.objects.order_by("name")
        },
        "models": {
            group.name: plain_group(
                group, targets.get(group.pk, ()), group.score_terms.all(), group.evaluation_metadata.all()
            )
            for group in groups
        },
    }


def plain_provider(provider: Provider, models: Iterable[ProviderModel]) -> dict[str, Any]:
    """As the file says it, the literal key included."""
    return _plain(provider, PROVIDER) | {"models": {model.name: plain_model(model) for model in models}}


def plain_model(model: ProviderModel) -> dict[str, Any]:
    return _plain(model, PROVIDER_MODEL)


def plain_group(
    group: ModelGroup,
    targets: Iterable[Target],
    terms: Iterable[ScoreTerm],
    evaluations: Iterable[EvaluationMetadata],
) -> dict[str, Any]:
    plain = _plain(group, MODEL_GROUP)
    plain["targets"] = [plain_target(target) for target in targets]
    policy = plain["routing_policy"]["dynamic_score"]
    policy["score_terms"] = [plain_term(term) for term in terms]
    policy["evaluation_metadata"] = [plain_evaluation(evaluation) for evaluation in evaluations]
    return plain


def plain_target(target: Target) -> dict[str, Any]:
    """`overrides` that are not a mapping stand under their own name, which the reader then refuses."""
    if target.provider_model is not None:
        place = {"provider": target.provider_model.provider.name, "model_ref": target.provider_model.name}
    else:
        place = {"provider": target.provider.name} if target.provider else {}
    own = target.overrides if isinstance(target.overrides, dict) else {"overrides": target.overrides}
    clashing = {key: value for key, value in own.items() if key in NOT_OVERRIDES}
    if clashing:
        own = {key: value for key, value in own.items() if key not in clashing} | {"overrides": clashing}
    return own | place | _plain(target, TARGET)


def plain_term(term: ScoreTerm) -> dict[str, Any]:
    return _plain(term, SCORE_TERM)


def plain_evaluation(evaluation: EvaluationMetadata) -> dict[str, Any]:
    return _plain(evaluation, EVALUATION)


def apply_document(wanted: document.Document) -> None:
    """Makes the rows say `wanted` and nothing else. The caller holds the transaction.

    `wanted` must compile: a reference to a provider or model that it does not hold has no place in the rows. A provider
    that names no credential keeps its literal key while its base URL's origin stays, because no exported or published
    Document can say one.
    """
    providers = {name: _apply_provider(name, provider) for name, provider in wanted.providers.items()}
    catalogue = {
        (model.provider_id, model.name): model
        for model in ProviderModel.objects.filter(provider__in=providers.values())
    }
    for name, provider in wanted.providers.items():
        for model_ref, model in provider.models.items():
            key = (providers[name].pk, model_ref)
            row = catalogue.get(key) or ProviderModel(provider=providers[name], name=model_ref)
            catalogue[key] = _save(row, _columns(model, PROVIDER_MODEL))
    now = {name: _comparable(plain) for name, plain in plain_from_rows()["models"].items()}
    for name, group in wanted.models.items():
        if now.get(name) != group:
            _apply_group(name, group, providers, catalogue)
    ModelGroup.objects.exclude(name__in=list(wanted.models)).delete()
    kept = [
        catalogue[providers[name].pk, model_ref].pk
        for name, provider in wanted.providers.items()
        for model_ref in provider.models
    ]
    ProviderModel.objects.exclude(pk__in=kept).delete()
    Provider.objects.exclude(name__in=list(wanted.providers)).delete()


def origin(base_url: str) -> tuple[str, str, int | None] | None:
    """Scheme, host and port: whom a key is sent to. `None`: not a URL."""
    try:
        parts = urlsplit(base_url)
        return parts.scheme, (parts.hostname or "").lower(), parts.port
    except ValueError:
        return None


def literal_keys() -> dict[str, tuple[str, str]]:
    """Base URL and literal key of each provider that has one, by name."""
    rows = Provider.objects.exclude(api_key=None).values_list("name", "base_url", "api_key")
    return {name: (base_url, key or "") for name, base_url, key in rows}


def _comparable(plain: dict[str, Any]) -> document.Group | None:
    return read(document.Group, plain)[0]


def _apply_provider(name: str, provider: document.Provider) -> Provider:
    row = Provider.objects.filter(name=name).first() or Provider(name=name)
    columns = _columns(provider, PROVIDER)
    names_a_credential = provider.api_key or provider.api_key_env or provider.api_key_file
    if row.pk and not names_a_credential and origin(row.base_url) == origin(provider.base_url):
        columns["api_key"] = row.api_key
    return _save(row, columns)


def _apply_group(
    name: str,
    group: document.Group,
    providers: Mapping[str, Provider],
    catalogue: Mapping[tuple[int, str], ProviderModel],
) -> None:
    row = _save(ModelGroup.objects.filter(name=name).first() or ModelGroup(name=name), _columns(group, MODEL_GROUP))
    policy = group.routing_policy.dynamic_score
    row.targets.all().delete()
    row.score_terms.all().delete()
    row.evaluation_metadata.all().delete()
    Target.objects.bulk_create(
        Target(
            group=row,
            position=position,
            provider=None if target.model_ref else providers[target.provider],
            provider_model=catalogue[providers[target.provider].pk, target.model_ref] if target.model_ref else None,
            overrides={key: value for key, value in write(target).items() if key in target.overrides},
            **_columns(target, TARGET),
        )
        for position, target in enumerate(group.targets)
    )
    ScoreTerm.objects.bulk_create(
        ScoreTerm(group=row, position=position, **_columns(term, SCORE_TERM))
        for position, term in enumerate(policy.score_terms)
    )
    EvaluationMetadata.objects.bulk_create(
        EvaluationMetadata(group=row, position=position, **_columns(evaluation, EVALUATION))
        for position, evaluation in enumerate(policy.evaluation_metadata)
    )


def _save(row: R, columns: Mapping[str, Any]) -> R:
    """Writes only what differs."""
    changed = [name for name, value in columns.items() if getattr(row, name) != value]
    for name in changed:
        setattr(row, name, columns[name])
    if row.pk is None:
        row.save(force_insert=True)
    elif changed:
        row.save(update_fields=changed)
    return row


def _plain(row: Row, columns: Columns) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for column, path in columns.items():
        value = getattr(row, column)
        place = plain
        for key in path[:-1]:
            place = place.setdefault(key, {})
        if value is not None:
            place[path[-1]] = value
    return plain


def _columns(value: object, columns: Columns) -> dict[str, Any]:
    return {column: _column(value, path) for column, path in columns.items()}


def _column(value: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        value = getattr(value, key)
    if is_dataclass(value):
        return write(value)
    match value:
        case tuple():
            return list(value)
        case Mapping():
            return dict(value)
        case Decimal():
            return float(value)
        case _:
            return value


def _same(*names: str) -> dict[str, tuple[str, ...]]:
    return {name: (name,) for name in names}


PROVIDER: Columns = {
    **_same("base_url", "dialect", "api_key_env", "api_key_file", "api_key", "auth", "headers"),
    **_same("transport", "proxy_env"),
    **_same("allow_private_addresses", "ca_file", "max_in_flight"),
    **{name: ("timeouts", name) for name in ("connect_ms", "first_byte_ms", "idle_ms", "total_ms", "keepalive_ms")},
    **{name: ("limits", name) for name in ("max_response_bytes", "max_event_bytes")},
}
PROVIDER_MODEL: Columns = _same("model", *(each.name for each in fields(document.ModelFields)))
TARGET: Columns = _same("model", "weight", "tags", "tool_only", "tier", "region", "max_in_flight")
SCORE_TERM: Columns = _same("name", "when", "require_tags", "prefer_tags", "expression", "weights", "share")
EVALUATION: Columns = _same(*(each.name for each in fields(document.EvaluationMetadata)))

_POLICY = ("routing_policy", "dynamic_score")
_NUMBERS = (
    *("min_observations", "observation_window_seconds", "fast_half_life_seconds", "prior_strength", "normalization"),
    *("max_score_adjustment_percent", "contrast", "near_tie", "client_cancellations"),
)
_SIGNALS = ("request_shape", "complexity", "observed_performance", "cost", "evaluation_metadata", "prompt_features")
_THRESHOLDS = (
    *("max_error_rate", "max_timeout_rate", "max_p95_latency_ms", "max_ttfb_ms", "min_output_tokens_per_second"),
    *("fast_min_observations", "latency_min_observations", "confidence_z", "when_all_excluded"),
)
MODEL_GROUP: Columns = {
    **_same("description", "strategy", "model_identity"),
    "attempts_max": ("attempts", "max"),
    "attempts_deadline_ms": ("attempts", "deadline_ms"),
    "retry_percent": ("attempts", "retry_percent"),
    "retry_min_per_second": ("attempts", "retry_min_per_second"),
    "cool_down_default_ms": ("attempts", "cool_down", "default_ms"),
    "cool_down_max_ms": ("attempts", "cool_down", "max_ms"),
    "max_consecutive_failures": ("thresholds", "max_consecutive_failures"),
    "probe_first_seconds": ("thresholds", "probe", "first_seconds"),
    "probe_max_seconds": ("thresholds", "probe", "max_seconds"),
    "probe_successes": ("thresholds", "probe", "successes"),
    **{name: (*_POLICY, name) for name in _NUMBERS},
    **{
        f"affinity_{name}": (*_POLICY, "affinity", name)
        for name in ("enabled", "ttl_seconds", "max_entries", "sliding", "session_header")
    },
    **{each.name: (*_POLICY, "hard_filters", each.name) for each in fields(document.HardFilters)},
    **{f"signal_{name}": (*_POLICY, "signals", name, "enabled") for name in _SIGNALS},
    "prompt_features": (*_POLICY, "signals", "prompt_features", "features"),
    "prompt_scan_bytes": (*_POLICY, "signals", "prompt_features", "max_scan_bytes"),
    **{name: (*_POLICY, "thresholds", name) for name in _THRESHOLDS},
    "threshold_min_observations": (*_POLICY, "thresholds", "min_observations"),
}

NOT_OVERRIDES = frozenset(each.name for each in fields(document.Target)) - frozenset(
    each.name for each in fields(document.ModelFields)
)
