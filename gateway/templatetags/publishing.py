"""What the admin's templates ask of publishing."""

from django import template
from django.http import HttpRequest

from gateway import publish
from routing.core.errors import Problem

register = template.Library()


@register.simple_tag
def pending_problems(request: HttpRequest) -> tuple[Problem, ...]:
    """Why the stored configuration is not published, for those who may see it."""
    user = request.user
    sees = any(user.has_perm(right) for right in ("routing.view_provider", "routing.view_modelgroup"))
    return publish.pending() if sees else ()


@register.simple_tag
def serving_number() -> int | None:
    """The Revision that is served. `None`: none yet."""
    return publish.latest()


@register.filter
def change_kind(line: str) -> str:
    """`added`, `removed` or `changed`, by the first character of a change."""
    return {"+": "added", "-": "removed"}.get(line[:1], "changed")


@register.filter
def change_summary(diff: str) -> str:
    """The first change, and how many more there are."""
    lines = diff.splitlines()
    more = f", and {len(lines) - 1:,} more" if len(lines) > 1 else ""
    first = lines[0] if lines else "none"
    return f"{first if len(first) <= 100 else first[:99] + '…'}{more}"
