"""Rows to the Directory that processes serve from, and to and from the callers of a configuration file."""

from collections.abc import Mapping

from django.db import transaction
from django.db.models import QuerySet

from accounts.core.directory import Caller, Directory, Token
from accounts.core.document import CallerEntry
from accounts.core.secret import digest_of, well_formed
from accounts.models import Caller as CallerRow
from accounts.models import DirectoryVersion
from accounts.models import Token as TokenRow


def directory_version() -> int:
    """A number that is another one after every change of a caller or token. One query of one row."""
    return DirectoryVersion.objects.filter(pk=1).values_list("number", flat=True).first() or 0


def directory_from_rows() -> Directory:
    """All callers and tokens as of now. Its version was read first: it may hold later changes, never lack earlier ones."""
    version = directory_version()
    return Directory(version=version, tokens=_tokens(TokenRow.objects.order_by("pk")))


def directory_of(secret: bytes, pepper: bytes) -> Directory:
    """The part of the Directory in which a presented secret can be found, as of now: for who serves no requests, and
    need not hold them all. One query, none for text that is no token."""
    rows = TokenRow.objects.filter(digest=digest_of(secret, pepper)) if well_formed(secret) else None
    return Directory(version=0, tokens={} if rows is None else _tokens(rows))


def _tokens(rows: QuerySet[TokenRow]) -> dict[bytes, Token]:
    callers: dict[str, Caller] = {}
    tokens: dict[bytes, Token] = {}
    # Plain tuples, no model objects: this shares the interpreter with running requests (0.1 s for ten thousand tokens).
    values = rows.values_list(
        "caller__name", "shown", "digest", "groups", "expires_at", "revoked_at",
        "caller__project", "caller__environment", "caller__active", "caller__allow", "caller__tags",
        "caller__see_routing",
    )  # fmt: skip
    for name, shown, stored, groups, expires_at, revoked_at, project, environment, active, allow, tags, see in values:
        caller = callers.get(name)
        if caller is None:
            caller = callers[name] = Caller(
                name=name,
                project=project,
                environment=environment,
                active=active,
                allow=frozenset(allow),
                tags=frozenset(tags),
                see_routing=see,
            )
        digest = bytes(stored)
        tokens[digest] = Token(
            caller=caller,
            shown=shown,
            digest=digest,
            expires_at=None if expires_at is None else expires_at.timestamp(),
            revoked=revoked_at is not None,
            groups=None if groups is None else frozenset(groups),
        )
    return tokens


def callers_from_rows() -> dict[str, CallerEntry]:
    """Every caller as the configuration file says it, by name."""
    return {
        row.name: CallerEntry(
            project=row.project,
            environment=row.environment,
            allow=tuple(row.allow),
            active=row.active,
            see_routing=row.see_routing,
            tags=tuple(row.tags),
        )
        for row in CallerRow.objects.order_by("name")
    }


@transaction.atomic
def apply_callers(entries: Mapping[str, CallerEntry]) -> None:
    """Makes the callers as the file says them. One that it does not name becomes inactive; tokens stay as they are."""
    rows = {row.name: row for row in CallerRow.objects.select_for_update()}
    for name, entry in entries.items():
        row = rows.pop(name) if name in rows else CallerRow(name=name)
        wanted = {
            "project": entry.project,
            "environment": entry.environment,
            "allow": list(entry.allow),
            "active": entry.active,
            "see_routing": entry.see_routing,
            "tags": list(entry.tags),
        }
        if row._state.adding or any(getattr(row, field) != value for field, value in wanted.items()):
            for field, value in wanted.items():
                setattr(row, field, value)
            row.save()
    for row in rows.values():
        if row.active:
            row.active = False
            row.save(update_fields=["active"])
