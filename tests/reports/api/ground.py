"""Two projects, callers and users of every kind, and what is asked of the API in their name."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.contrib.auth.models import Permission, User
from django.test import Client
from django.utils import timezone

from accounts import tokens
from accounts.models import Caller
from reports.rollups import roll
from reports.scheduled_models import ReportDefinition
from tests.reports.rows import an_exchange, save

NOON = datetime(2026, 3, 10, 12, tzinfo=UTC)
LATER = datetime(2027, 1, 1, tzinfo=UTC)
REPORT = 7
"""Id of the one scheduled report that there is."""
CALLERS: dict[str, dict[str, Any]] = {
    "team": {"project": "search"},
    "mate": {"project": "search"},
    "open": {"project": "search", "see_routing": True},
    "rival": {"project": "ads", "see_routing": True},
    "loner": {"project": ""},
    "other-loner": {"project": "", "see_routing": True},
    "gone": {"project": "search", "active": False},
}
"""By name. `open` sees routing, `gone` is inactive; the loners have no project."""
PROJECTS = {name: said["project"] for name, said in CALLERS.items()}
USERS: dict[str, tuple[bool, tuple[str, ...]]] = {
    "reader": (True, ("view_exchange", "view_dailyrollup")),
    "auditor": (True, ("view_exchange",)),
    "accountant": (True, ("view_dailyrollup",)),
    "planner": (True, ("view_dailyrollup", "view_reportdefinition", "view_reportrun")),
    "clerk": (True, ()),
    "visitor": (False, ("view_exchange", "view_dailyrollup")),
}
"""Whether one is staff, and what for. Beside them there is `admin`, a superuser."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    secrets: dict[str, str]
    """Tokens by caller; `revoked` and `expired` too."""

    def client(self, who: str) -> Client:
        """`who`: a caller, a user, `revoked`, `expired`, or `nobody`."""
        if who in self.secrets:
            return Client(headers={"Authorization": f"Bearer {self.secrets[who]}"})
        client = Client()
        if who in USERS or who == "admin":
            client.force_login(User.objects.get(username=who))
        return client

    def headers(self, who: str) -> dict[str, str]:
        """For a client that is not Django's, and keeps its cookies for itself."""
        if who in self.secrets:
            return {"Authorization": f"Bearer {self.secrets[who]}"}
        cookies = self.client(who).cookies.values()
        return {"X-Cookie": "; ".join(f"{each.key}={each.value}" for each in cookies)} if cookies else {}

    def get(self, who: str, path: str, **parameters: Any) -> Any:
        return self.client(who).get(f"/api/{path}", parameters)


def prepare() -> Ground:
    """Callers, tokens and users, without any exchange."""
    rows = {name: Caller.objects.create(name=name, allow=["*"], **said) for name, said in CALLERS.items()}
    secrets = {name: tokens.issue(row)[1] for name, row in rows.items()}
    revoked, secrets["revoked"] = tokens.issue(rows["team"])
    tokens.revoke(revoked)
    expired, secrets["expired"] = tokens.issue(rows["team"])
    expired.expires_at = timezone.now() - timedelta(seconds=1)
    expired.save()
    User.objects.create_superuser("admin", password="x")
    for name, (staff, permissions) in USERS.items():
        user = User.objects.create_user(name, is_staff=staff)
        user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    return Ground(secrets=secrets)


def happened(count: int = 3) -> None:
    """`count` exchanges of each active caller, a quarter of an hour apart from noon on, with detail, summed; and a
    report that nobody has asked for yet."""
    exchanges = [
        an_exchange(
            NOON + timedelta(minutes=15 * number, microseconds=place),
            request_id=f"req_{name}_{number}",
            caller=name,
            project=PROJECTS[name],
            environment=f"env-{name}",
            token=f"plt_{name}"[:12],
            error_detail="revoked" if number == 1 else "",
            error_code=f"error_{name}" if number == 1 else "",
            cost_microdollars=None if number == 2 else 1_000 + number,
            stream=number == 0,
            fell_back=number == 1,
            provider=f"paris-{name}",
            signals=["cost"],
        )
        for number in range(count)
        for place, name in enumerate(CALLERS)
        if name != "gone"
    ]
    save(exchanges, detail=True)
    roll(now=LATER)
    ReportDefinition.objects.create(pk=REPORT, name="Usage", report="usage")
