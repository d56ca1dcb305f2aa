"""Who asks, and what they may see."""

from dataclasses import dataclass
from typing import Any, TypeVar

from django.conf import settings
from django.contrib.auth.models import AnonymousUser
from django.db.models import Model, QuerySet
from django.utils import timezone
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from accounts.core.directory import Token, find, presented
from accounts.core.errors import Unauthenticated
from accounts.store import directory_of
from reports.api.errors import CHALLENGE, ApiError

M = TypeVar("M", bound=Model)

SEES_SUMS = "reports.view_dailyrollup"
SEES_EXCHANGES = "reports.view_exchange"
"""What staff needs to see sums, and single exchanges: as for the reports' pages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewer:
    key: str
    """Of whom requests are counted together."""
    caller: str | None = None
    """`None`: staff, who sees everything."""
    project: str = ""
    sees_routing: bool = True
    """Targets, providers, models, scores, exclusions, attempts, and how the choice was made."""

    @property
    def is_staff(self) -> bool:
        return self.caller is None

    def narrow(self, rows: QuerySet[M]) -> QuerySet[M]:
        """Those of the rows that are the viewer's: of its project, or of the caller alone when it has none."""
        if self.caller is None:
            return rows
        return rows.filter(project=self.project) if self.project else rows.filter(project="", caller=self.caller)

    def may_see(self, *, caller: str, project: str) -> bool:
        if self.caller is None:
            return True
        return project == self.project and (project != "" or caller == self.caller)


def viewer_of(request: Request) -> Viewer:
    if isinstance(request.auth, Token):
        caller = request.auth.caller
        return Viewer(
            key=f"caller {caller.name}",
            caller=caller.name,
            project=caller.project,
            sees_routing=caller.see_routing,
        )
    return Viewer(key=f"user {request.user.pk}")


class TokenAuthentication(BaseAuthentication):
    """A caller's token, in the headers where the gateway reads it too. It is looked for in the database: one that was
    revoked a moment ago is refused already."""

    def authenticate(self, request: Request) -> tuple[AnonymousUser, Token] | None:
        headers = [
            (name.lower().encode("latin-1"), request.headers[name].encode("latin-1", "replace"))
            for name in ("Authorization", "X-Api-Key")
            if name in request.headers
        ]
        secret = presented(headers)
        if not secret:
            return None
        pepper = settings.TOKEN_PEPPER
        try:
            token = find(directory_of(secret, pepper), secret, pepper, timezone.now().timestamp())
        except Unauthenticated:
            raise ApiError("invalid_token") from None
        return AnonymousUser(), token

    def authenticate_header(self, request: Request) -> str:
        return CHALLENGE


class MayRead(BasePermission):
    """Callers, and staff with one of the view's `rights`. What a caller sees is for `Viewer` to say."""

    def has_permission(self, request: Request, view: Any) -> bool:
        if isinstance(request.auth, Token):
            return True
        user = request.user
        if not user.is_authenticated:
            raise ApiError("not_authenticated")
        return user.is_active and user.is_staff and any(map(user.has_perm, view.rights))


class TokenScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]  # it registers itself
    target_class = TokenAuthentication
    name = ["bearer", "apiKey"]  # noqa: RUF012 - the library's

    def get_security_definition(self, auto_schema: Any) -> list[dict[str, Any]]:
        return [
            {"type": "http", "scheme": "bearer", "bearerFormat": "plt_..."},
            {"type": "apiKey", "in": "header", "name": "x-api-key"},
        ]
