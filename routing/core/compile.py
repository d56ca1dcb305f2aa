"""A Document to a Catalog: every reference resolved, every default filled in, every contradiction reported at once."""

import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from decimal import Decimal
from typing import Final
from urllib.parse import urlsplit

from routing.core import catalog
from routing.core.document import (
    Dialect,
    Document,
    DynamicScore,
    Group,
    Model,
    ModelFields,
    Provider,
    Reasoning,
    Target,
    ToolSupport,
)
from routing.core.errors import ConfigurationError, Problem
from routing.core.policy import Evaluations, compile_policy, doubts, evaluations
from routing.core.reading import below, suggestion


def compile_document(document: Document, *, revision: int = 0, created: int = 0) -> catalog.Catalog:
    """Raises ConfigurationError with every problem. `created`: Unix seconds."""
    problems: list[Problem] = []
    providers = {
        name: _provider(name, provider, f"providers.{name}", problems) for name, provider in document.providers.items()
    }
    groups = {
        name: _group(name, group, f"models.{name}", document, providers, problems)
        for name, group in document.models.items()
    }
    if problems:
        raise ConfigurationError(problems)
    return catalog.Catalog(revision=revision, created=created, groups=groups, providers=providers)


def warnings(document: Document) -> list[Problem]:
    """What may be meant, but most often is not. Nothing here keeps a Document from being published."""
    found: list[Problem] = []
    for name, provider in document.providers.items():
        parts = _split(provider.base_url)
        secret = provider.api_key_env or provider.api_key_file or provider.api_key
        if secret and parts is not None and parts.scheme == "http" and not is_loopback(parts.host):
            found.append(Problem(f"providers.{name}.base_url", "the credential is sent unencrypted; use https"))
    ignored: list[Problem] = []
    providers = {name: _provider(name, provider, "", ignored) for name, provider in document.providers.items()}
    for name, group in document.models.items():
        compiled = _group(name, group, "", document, providers, ignored)
        path = f"models.{name}.routing_policy.dynamic_score"
        found.extend(doubts(group.routing_policy.dynamic_score, compiled, path))
    return found


def is_loopback(host: str) -> bool:
    """Whether a URL's host is literally this machine: 127.0.0.0/8 in four numbers, ::1 or localhost."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


RESERVED_HEADERS: Final = frozenset(
    {
        "accept-encoding",
        "authorization",
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "cookie",
        "expect",
        "host",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "x-api-key",
    }
)
"""Written by the gateway itself, or meant for one connection only."""


# Providers.


def _provider(name: str, declared: Provider, path: str, problems: list[Problem]) -> catalog.Provider:
    auth = declared.auth or ("x-api-key" if declared.dialect == "anthropic" else "bearer")
    _check_base_url(declared.base_url, f"{path}.base_url", problems)
    _check_credentials(declared, path, problems)
    _check_headers(declared.headers, f"{path}.headers", problems)
    if declared.proxy_env is not None:
        if declared.transport != "httpx":
            problems.append(Problem(f"{path}.proxy_env", "is used only with transport: httpx"))
        elif _OWN_VARIABLE.fullmatch(declared.proxy_env):
            problems.append(Problem(f"{path}.proxy_env", "names a setting of the gateway itself"))
    if declared.ca_file == "":
        problems.append(Problem(f"{path}.ca_file", "must not be empty"))
    for model_ref, model in declared.models.items():
        _check_model_fields(model, declared.dialect, f"{path}.models.{model_ref}", problems)
    timeouts = declared.timeouts
    return catalog.Provider(
        name=name,
        base_url=declared.base_url.rstrip("/"),
        dialect=declared.dialect,
        api_key_env=declared.api_key_env,
        api_key_file=declared.api_key_file,
        api_key=declared.api_key,
        auth=auth,
        headers=tuple(declared.headers.items()),
        transport=declared.transport,
        proxy_env=declared.proxy_env,
        allow_private_addresses=declared.allow_private_addresses,
        ca_file=declared.ca_file,
        max_in_flight=declared.max_in_flight,
        timeouts=catalog.ProviderTimeouts(
            connect_s=timeouts.connect_ms / 1000,
            first_byte_s=timeouts.first_byte_ms / 1000,
            idle_s=timeouts.idle_ms / 1000,
            total_s=timeouts.total_ms / 1000,
            keepalive_s=timeouts.keepalive_ms / 1000,
        ),
        max_response_bytes=declared.limits.max_response_bytes,
        max_event_bytes=declared.limits.max_event_bytes,
    )


class _Url:
    """The parts of a base URL that are looked at."""

    __slots__ = ("host", "path", "plain", "scheme")

    def __init__(self, url: str) -> None:
        """Raises ValueError for what no URL parser takes."""
        parts = urlsplit(url)
        self.scheme = parts.scheme
        self.host = parts.hostname or ""
        self.path = parts.path
        self.plain = parts.port != 0 and "@" not in parts.netloc and not parts.netloc.endswith(":")


def _split(url: str) -> _Url | None:
    try:
        return _Url(url)
    except ValueError:
        return None


_URL_CHARACTERS = re.compile(r"[!$%&'()*+,\-./0-9:;=@A-Z\[\]_a-z~]+")
_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252})")
_ENDPOINTS = ("/chat/completions", "/completions", "/messages", "/responses", "/models", "/embeddings")


def _check_base_url(url: str, path: str, problems: list[Problem]) -> None:
    if "?" in url or "#" in url:
        problems.append(Problem(path, "must not have a query or a fragment"))
        return
    parts = _split(url) if _URL_CHARACTERS.fullmatch(url) else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.host:
        problems.append(Problem(path, "must be an http or https URL such as https://inference.example/v1"))
    elif not parts.plain:
        problems.append(Problem(path, "must not have a user name, a password or an empty port"))
    elif ":" not in parts.host and not _HOST_NAME.fullmatch(parts.host):
        problems.append(Problem(path, "has a host that is neither a name nor an address"))
    else:
        end = next((end for end in _ENDPOINTS if parts.path.rstrip("/").endswith(end)), None)
        if end is not None:
            problems.append(Problem(path, f"must end before {end}, which the gateway adds itself"))


_KEY = re.compile(r"[!-~]+")


def _check_credentials(declared: Provider, path: str, problems: list[Problem]) -> None:
    given = [name for name in ("api_key_env", "api_key_file", "api_key") if getattr(declared, name) is not None]
    problems.extend(Problem(f"{path}.{name}", f"only one of {', '.join(given)} may be given") for name in given[1:])
    if given and declared.auth == "none":
        problems.append(Problem(f"{path}.auth", f"none never sends the credential of {given[0]}"))
    if declared.api_key_env is not None and _OWN_VARIABLE.fullmatch(declared.api_key_env):
        problems.append(
            Problem(f"{path}.api_key_env", "names a setting of the gateway itself, which no provider may see")
        )
    if declared.api_key_file == "":
        problems.append(Problem(f"{path}.api_key_file", "must not be empty"))
    if declared.api_key is None:
        return
    parts = _split(declared.base_url)
    if parts is None or not is_loopback(parts.host):
        message = "is allowed only where base_url is literally loopback; use api_key_env or api_key_file"
        problems.append(Problem(f"{path}.api_key", message))
    elif not _KEY.fullmatch(declared.api_key):
        problems.append(Problem(f"{path}.api_key", "must be visible ASCII characters"))


_OWN_VARIABLE = re.compile(r"PILOTAGE_\w*|DATABASE_URL|REDIS_URL|DJANGO_\w*", re.IGNORECASE)
"""Holds what the gateway's own secrets are made from: a provider's host must never receive it."""

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"[!-~]([ \t!-~]*[!-~])?")


def _check_headers(headers: Mapping[str, str], path: str, problems: list[Problem]) -> None:
    seen: set[str] = set()
    for name, value in headers.items():
        place = below(path, name)
        lower = name.lower()
        if not _HEADER_NAME.fullmatch(name):
            problems.append(Problem(place, "is not a header name"))
        elif lower in RESERVED_HEADERS:
            problems.append(Problem(place, "is written by the gateway itself"))
        elif lower in seen:
            problems.append(Problem(place, "is given twice"))
        seen.add(lower)
        if not _HEADER_VALUE.fullmatch(value):
            problems.append(Problem(place, "must be one line of ASCII text without spaces around it"))


# Models.

_PRICES: Final = (
    "input_price_per_million_usd",
    "output_price_per_million_usd",
    "cached_input_price_per_million_usd",
    "cache_write_price_per_million_usd",
    "cache_write_1h_price_per_million_usd",
)


def _check_model_fields(declared: ModelFields, dialect: Dialect, path: str, problems: list[Problem]) -> None:
    """What is given in one place: a catalogue entry, or a target's own fields."""
    for name in _PRICES:
        price: Decimal | None = getattr(declared, name)
        if price is not None and price.scaleb(6) % 1:
            problems.append(Problem(f"{path}.{name}", "must be a whole number of micro-dollars (at most 6 decimals)"))
    if declared.output_token_field is not None and dialect != "openai-chat":
        problems.append(Problem(f"{path}.output_token_field", f"has no meaning in the dialect {dialect}"))
    if not declared.input_modalities:
        problems.append(Problem(f"{path}.input_modalities", "must name at least one"))
    for each in fields(ToolSupport):
        words: tuple[str, ...] | None = getattr(declared.tool_support, each.name)
        _check_words(words or (), f"{path}.tool_support.{each.name}", problems)
    if declared.reasoning is not None:
        _check_reasoning(declared.reasoning, f"{path}.reasoning", problems)
    validation = declared.validation
    if validation is not None and validation.workload is None:
        scored = [name for name in ("quality_score", "pass_rate") if getattr(validation, name) is not None]
        if scored:
            problems.append(Problem(f"{path}.validation.workload", f"must be given with {scored[0]}"))


def _check_reasoning(declared: Reasoning, path: str, problems: list[Problem]) -> None:
    low, high = declared.min_budget_tokens, declared.max_budget_tokens
    if low is not None and high is not None and low > high:
        problems.append(Problem(f"{path}.min_budget_tokens", f"must not be above max_budget_tokens ({high:,})"))
    if not declared.supported and declared != Reasoning(supported=False):
        problems.append(Problem(f"{path}.supported", "must be true when more is said about reasoning"))
    _check_words(declared.efforts, f"{path}.efforts", problems)


def _check_words(words: Iterable[str], path: str, problems: list[Problem]) -> None:
    for number, word in enumerate(words):
        if not word or word != word.strip():
            problems.append(Problem(f"{path}[{number}]", "must be a word without spaces around it"))


# Groups and targets.


def _group(
    name: str,
    declared: Group,
    path: str,
    document: Document,
    providers: Mapping[str, catalog.Provider],
    problems: list[Problem],
) -> catalog.Group:
    if not declared.targets:
        problems.append(Problem(f"{path}.targets", "must name at least one target"))
    dynamic_score: DynamicScore = declared.routing_policy.dynamic_score
    known_quality = evaluations(dynamic_score)
    targets = tuple(_targets(declared.targets, f"{path}.targets", document, providers, known_quality, problems))
    attempts, cool_down = declared.attempts, declared.attempts.cool_down
    if cool_down.default_ms > cool_down.max_ms:
        message = f"must not be above max_ms ({cool_down.max_ms:,})"
        problems.append(Problem(f"{path}.attempts.cool_down.default_ms", message))
    health, probe = declared.thresholds, declared.thresholds.probe
    if probe.first_seconds > probe.max_seconds:
        message = f"must not be above max_seconds ({probe.max_seconds:g})"
        problems.append(Problem(f"{path}.thresholds.probe.first_seconds", message))
    policy = compile_policy(dynamic_score, f"{path}.routing_policy.dynamic_score", problems)
    # Only where every target could be resolved, lest one missing provider looks like many contradictions.
    if declared.strategy == "dynamic_score" and targets and len(targets) == len(declared.targets):
        _check_hard_filters(policy.hard_filters, targets, f"{path}.routing_policy.dynamic_score.hard_filters", problems)
    header = policy.affinity.session_header
    if header in RESERVED_HEADERS:
        place = f"{path}.routing_policy.dynamic_score.affinity.session_header"
        problems.append(Problem(place, "says nothing about the conversation"))
    return catalog.Group(
        name=name,
        strategy=declared.strategy,
        targets=targets,
        description=declared.description,
        model_identity=declared.model_identity,
        attempts=catalog.AttemptPolicy(
            max=attempts.max,
            deadline_s=attempts.deadline_ms / 1000,
            retry_share=attempts.retry_percent / 100,
            retry_min_per_second=float(attempts.retry_min_per_second),
            cool_down_default_s=cool_down.default_ms / 1000,
            cool_down_max_s=cool_down.max_ms / 1000,
        ),
        health=catalog.HealthPolicy(
            max_consecutive_failures=health.max_consecutive_failures,
            probe_first_s=float(probe.first_seconds),
            probe_max_s=float(probe.max_seconds),
            probe_successes=probe.successes,
        ),
        score=policy,
    )


def _check_hard_filters(
    filters: catalog.HardFilters, targets: tuple[catalog.Target, ...], path: str, problems: list[Problem]
) -> None:
    """A filter that no target of the group can ever pass refuses what it was to protect."""
    hopeless = {
        "require_tool_support_when_tools_present": ("tools", all(each.tools is False for each in targets)),
        "require_forced_tool_choice_support": (
            "a forced tool choice",
            all(each.forced_tool_choice is False for each in targets),
        ),
        "require_structured_output_support": (
            "structured output",
            all(each.structured_outputs is False for each in targets),
        ),
        "require_reasoning_support_when_requested": ("reasoning", all(each.reasoning is None for each in targets)),
        "require_honors_max_tokens_when_caller_capped": (
            "a cap on output tokens",
            all(each.honors_max_tokens is False for each in targets),
        ),
    }
    for name, (what, never) in hopeless.items():
        if never and getattr(filters, name):
            problems.append(Problem(f"{path}.{name}", f"no target of the group supports {what}"))


def _targets(
    declared: tuple[Target, ...],
    path: str,
    document: Document,
    providers: Mapping[str, catalog.Provider],
    known_quality: Evaluations,
    problems: list[Problem],
) -> Iterator[catalog.Target]:
    """Targets that cannot be resolved are left out."""
    ids: set[str] = set()
    for position, target in enumerate(declared):
        place = f"{path}[{position}]"
        provider = document.providers.get(target.provider)
        if provider is None:
            hint = suggestion(target.provider, tuple(document.providers))
            problems.append(Problem(f"{place}.provider", f"unknown provider {target.provider[:64]!a}{hint}"))
        _check_words(target.tags, f"{place}.tags", problems)
        _check_model_fields(target, provider.dialect if provider else "openai-chat", place, problems)
        model = _model(target, provider, place, problems)
        if provider is None or model is None:
            continue
        reference = target.model_ref or model.model
        base = identity = f"{target.provider}/{reference}"
        repetition = 1
        while identity in ids:
            repetition += 1
            identity = f"{base}#{repetition}"
        ids.add(identity)
        yield _target(identity, position, reference, target, model, providers[target.provider], known_quality)


def _model(target: Target, provider: Provider | None, path: str, problems: list[Problem]) -> Model | None:
    """The target's model with what the target overrides. `None`: a problem was added, or the provider is unknown."""
    if (target.model_ref is None) == (target.model is None):
        which = "only one of model_ref and model may" if target.model else "model_ref or model must"
        problems.append(Problem(f"{path}.model_ref", f"{which} be given"))
        return None
    if provider is None:
        return None
    if target.model_ref is None:
        assert target.model is not None
        return Model(model=target.model, **{name: getattr(target, name) for name in _MODEL_FIELDS})
    known = provider.models.get(target.model_ref)
    if known is None:
        hint = suggestion(target.model_ref, tuple(provider.models))
        message = f"unknown model_ref {target.model_ref[:64]!a} of provider '{target.provider}'{hint}"
        problems.append(Problem(f"{path}.model_ref", message))
        return None
    if not target.overrides:
        return known
    own = target.overrides
    return Model(model=known.model, **{name: getattr(target if name in own else known, name) for name in _MODEL_FIELDS})


_MODEL_FIELDS: Final = tuple(each.name for each in fields(ModelFields))


def _target(
    identity: str,
    position: int,
    reference: str,
    declared: Target,
    model: Model,
    provider: catalog.Provider,
    known_quality: Evaluations,
) -> catalog.Target:
    tools, forced, structured = _tool_abilities(model.tool_support, provider.dialect)
    quality, quality_until = _quality(declared.provider, reference, model, known_quality)
    return catalog.Target(
        id=identity,
        position=position,
        provider=provider,
        model=model.model,
        model_ref=reference,
        model_key=f"{provider.name}/{model.model}",
        weight=float(declared.weight),
        tags=frozenset(declared.tags),
        tool_only=declared.tool_only,
        tier=declared.tier,
        region=declared.region,
        max_in_flight=declared.max_in_flight,
        input_price=_dollars_per_token(model.input_price_per_million_usd),
        output_price=_dollars_per_token(model.output_price_per_million_usd),
        cached_input_price=_dollars_per_token(model.cached_input_price_per_million_usd),
        input_price_microusd_per_million=_microdollars(model.input_price_per_million_usd),
        output_price_microusd_per_million=_microdollars(model.output_price_per_million_usd),
        cached_input_price_microusd_per_million=_microdollars(model.cached_input_price_per_million_usd),
        cache_write_price_microusd_per_million=_microdollars(model.cache_write_price_per_million_usd),
        cache_write_1h_price_microusd_per_million=_microdollars(model.cache_write_1h_price_per_million_usd),
        context_tokens=model.context_tokens,
        max_output_tokens=model.max_output_tokens,
        max_request_bytes=model.max_request_bytes,
        input_modalities=frozenset(model.input_modalities),
        tools=tools,
        forced_tool_choice=forced,
        structured_outputs=structured,
        honors_max_tokens=model.honors_max_tokens,
        output_token_field=model.output_token_field,
        drops_stream_options="stream_options" in model.unsupported_request_features,
        renames_developer_role="developer_role" in model.unsupported_request_features,
        reasoning=_reasoning(model.reasoning),
        quality=quality,
        quality_until=quality_until,
    )


def _dollars_per_token(price: Decimal | None) -> float | None:
    return None if price is None else float(price.scaleb(-6))


def _microdollars(price: Decimal | None) -> int | None:
    return None if price is None else int(price.scaleb(6))


_TOOL_WORDS: Final[Mapping[Dialect, tuple[str, str]]] = {
    "openai-chat": ("openai_chat", "tools"),
    "openai-responses": ("openai_responses", "function"),
    "anthropic": ("anthropic_messages", "client_tools"),
}
"""The list of `tool_support` that speaks of a dialect, and the word in it that means tools."""


def _tool_abilities(support: ToolSupport, dialect: Dialect) -> tuple[bool | None, bool | None, bool | None]:
    """Tools, forced tool choice, structured output. A list that is there and lacks the word says no."""
    key, word = _TOOL_WORDS[dialect]
    words: tuple[str, ...] | None = getattr(support, key)
    if words is None:
        return None, None, None
    tools = word in words
    return tools, tools and "tool_choice" in words, "structured_outputs" in words or "json_schema" in words


def _reasoning(declared: Reasoning | None) -> catalog.Reasoning | None:
    if declared is None or not declared.supported:
        return None
    return catalog.Reasoning(
        always_on=declared.always_on,
        control=declared.control,
        efforts=frozenset(declared.efforts),
        min_budget_tokens=declared.min_budget_tokens,
        max_budget_tokens=declared.max_budget_tokens,
        signing_family=declared.signing_family,
    )


_NOT_VALIDATED: Final = frozenset({"failed", "stale", "expired", "pending"})


def _quality(provider: str, reference: str, model: Model, known: Evaluations) -> tuple[float | None, float | None]:
    """The policy's own figure goes first; a validation's status speaks for the validation's figures alone."""
    found = known.get((provider, reference)) or known.get((provider, model.model))
    if found is not None:
        return found
    validation = model.validation
    if validation is None or validation.status in _NOT_VALIDATED:
        return None, None
    return validation.pass_rate if validation.quality_score is None else validation.quality_score, None
