"""What the admin's first page says: how things stand, what is set up, and what comes next. Shows each person what they may see."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone

from accounts.models import Caller, Token
from gateway import standing
from gateway.models import Revision
from reports.rollups import report_zone
from routing.admin import credential
from routing.key_files import is_there
from routing.models import ModelGroup, Provider, ProviderModel, Target

RECENT_REVISIONS = 5
SHOWN_ATTENTION = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """A figure that leads to the list of what it counts."""

    title: str
    number: int
    note: str = ""
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One of the things that must be there before a request is answered."""

    title: str
    text: str
    done: bool
    action: str
    url: str | None
    """`None`: this person may not do it."""
    is_next: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """What is allowed and yet keeps requests from being answered, or wants somebody to look at it."""

    text: str
    url: str | None
    """`None`: no page can change it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A request that this gateway answers, but for the token."""

    group: str
    command: str


def add_overview(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """The theme calls it for the first page."""
    steps = _steps(request)
    complete = all(step.done for step in steps)
    now = timezone.now()
    checks = standing.health(now=now) if _may_view(request, "gateway.revision") else []
    traffic = standing.traffic(now=now) if _may_view(request, "reports.dailyrollup") else None
    needs = [Attention(text=text, url=url) for text, url in standing.needs(checks, traffic)]
    return {
        **context,
        "checks": checks,
        "traffic": traffic,
        "zone": report_zone(),
        "may_find": _may_view(request, "reports.exchange"),
        "serving": Revision.objects.first() if _may_view(request, "gateway.revision") else None,
        "counts": _counts(request),
        "steps": () if complete else steps,
        "attention": [*_attention(request), *needs][:SHOWN_ATTENTION],
        "example": _example(request) if complete else None,
        "revisions": Revision.objects.all()[:RECENT_REVISIONS] if _may_view(request, "gateway.revision") else (),
    }


def good_tokens() -> "QuerySet[Token]":
    """Those that open the gateway now."""
    unexpired = Q(expires_at=None) | Q(expires_at__gt=timezone.now())
    return Token.objects.filter(unexpired, revoked_at=None, caller__active=True)


def _counts(request: HttpRequest) -> list[Count]:
    tokens = good_tokens().count()
    counted = {
        "routing.provider": ("Providers", Provider.objects.count(), ""),
        "routing.providermodel": ("Provider models", ProviderModel.objects.count(), ""),
        "routing.modelgroup": ("Model groups", ModelGroup.objects.count(), ""),
        "accounts.caller": ("Callers", Caller.objects.filter(active=True).count(), "active"),
        "accounts.token": ("Tokens", tokens, "good now"),
    }
    return [
        Count(title=title, number=number, note=note, url=_list(model))
        for model, (title, number, note) in counted.items()
        if _may_view(request, model)
    ]


def _steps(request: HttpRequest) -> list[Step]:
    providers = list(Provider.objects.values_list("pk", flat=True)[:2])
    callers = list(Caller.objects.filter(active=True).values_list("pk", flat=True)[:2])
    of_provider = {"provider": providers[0]} if len(providers) == 1 else {}
    of_caller = {"caller": callers[0]} if len(callers) == 1 else {}
    has_group = ModelGroup.objects.exists()
    steps = [
        _step(
            request,
            "routing.provider",
            "A provider",
            "Whom requests are sent to: its base URL, the API it speaks, and where its key comes from.",
            done=bool(providers),
        ),
        _step(
            request,
            "routing.providermodel",
            "A model of it",
            "The name that goes to the provider, and what is known of it: prices, context window, tools.",
            done=ProviderModel.objects.exists() or Target.objects.exists(),
            fields=of_provider,
        ),
        _step(
            request,
            "routing.modelgroup",
            "A model group",
            "The model name that your applications ask for, the models that may answer, and how one is chosen.",
            done=has_group,
        ),
        _step(
            request,
            "accounts.caller",
            "A caller",
            "Who sends requests: an application or a team, and the groups that it may use.",
            done=bool(callers),
        ),
        _step(
            request,
            "accounts.token",
            "A token for the caller",
            "The secret that the application sends. It is shown once, when it is issued.",
            done=good_tokens().exists(),
            fields=of_caller,
        ),
    ]
    first = next((step for step in steps if not step.done), None)
    return [_marked(step) if step is first else step for step in steps]


def _step(
    request: HttpRequest, model: str, title: str, text: str, *, done: bool, fields: dict[str, Any] | None = None
) -> Step:
    app, name = model.split(".")
    filled_in = f"?{urlencode(fields)}" if fields else ""
    may = request.user.has_perm(f"{app}.add_{name}")
    what = {"providermodel": "model", "modelgroup": "model group"}.get(name, name)
    return Step(
        title=title,
        text=text,
        done=done,
        action=f"Issue a {what}" if name == "token" else f"Add a {what}",
        url=reverse(f"admin:{app}_{name}_add") + filled_in if may else None,
    )


def _marked(step: Step) -> Step:
    return Step(title=step.title, text=step.text, done=step.done, action=step.action, url=step.url, is_next=True)


def _attention(request: HttpRequest) -> list[Attention]:
    found = []
    if _may_view(request, "routing.provider"):
        used = Q(pk__in=Target.objects.values("provider")) | Q(pk__in=Target.objects.values("provider_model__provider"))
        for provider in Provider.objects.filter(used):
            if not is_there(provider.api_key_env, provider.api_key_file):
                text = f"Provider {provider.name} has no key: {credential(provider)}."
                found.append(Attention(text=text, url=reverse("admin:routing_provider_change", args=[provider.pk])))
    if _may_view(request, "routing.modelgroup") and _may_view(request, "accounts.caller"):
        allowed = {
            name for allow in Caller.objects.filter(active=True).values_list("allow", flat=True) for name in allow
        }
        if allowed and "*" not in allowed:
            for group in ModelGroup.objects.exclude(name__in=allowed):
                text = f"No active caller may use the model group {group.name}."
                found.append(Attention(text=text, url=_list("accounts.caller")))
    return found


def _example(request: HttpRequest) -> Example | None:
    """Asks for the first group that the first target's dialect has an endpoint for."""
    if not _may_view(request, "routing.modelgroup"):
        return None
    for group in ModelGroup.objects.prefetch_related("targets__provider", "targets__provider_model__provider"):
        for target in group.targets.all():
            provider = target.provider_model.provider if target.provider_model else target.provider
            path = _PATHS.get(provider.dialect) if provider else None
            if path is not None:
                return Example(group=group.name, command=_command(request.build_absolute_uri(path), group.name))
    return None


_PATHS = {"openai-chat": "/v1/chat/completions", "anthropic": "/v1/messages"}


def _command(url: str, group: str) -> str:
    return (
        f'curl {url} -H "Authorization: Bearer $TOKEN" \\\n'
        "  -H 'Content-Type: application/json' \\\n"
        f'  -d \'{{"model": "{group}", "max_tokens": 200, "messages": [{{"role": "user", "content": "Hello"}}]}}\''
    )


def _list(model: str) -> str:
    return reverse(f"admin:{model.replace('.', '_')}_changelist")


def _may_view(request: HttpRequest, model: str) -> bool:
    app, name = model.split(".")
    return request.user.has_perm(f"{app}.view_{name}")
