"""Making and revoking tokens: the one way, for the admin and the commands."""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from django.conf import settings
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from accounts.core.errors import NotIssuable
from accounts.core.secret import ALPHABET, RANDOM_CHARACTERS, SHOWN_CHARACTERS, digest_of, with_checksum
from accounts.models import Caller, Token


def issue(
    caller: Caller, *, groups: Iterable[str] | None = None, expires: datetime | None = None, author: str = ""
) -> tuple[Token, str]:
    """A new Token of `caller` and its secret, which is kept nowhere and cannot be had again.

    `groups` narrows what the token may use; each must be among the caller's. `author` is who made it, for people.
    Raises `NotIssuable`.
    """
    narrower = None if groups is None else sorted(set(groups))
    check(caller, groups=narrower, expires=expires)
    secret = with_checksum("".join(secrets.choice(ALPHABET) for _ in range(RANDOM_CHARACTERS)))
    token = Token.objects.create(
        caller=caller,
        shown=secret[:SHOWN_CHARACTERS],
        digest=digest_of(secret.encode(), settings.TOKEN_PEPPER),
        groups=narrower,
        expires_at=expires,
        created_by=author,
    )
    return token, secret


def check(caller: Caller, *, groups: Sequence[str] | None, expires: datetime | None) -> None:
    """Raises `NotIssuable` for what `issue` would refuse."""
    if groups is not None:
        if not groups:
            raise NotIssuable("groups", "a token needs at least one group, or no restriction at all")
        refused = [name for name in groups if name not in caller.allow and "*" not in caller.allow]
        if refused:
            raise NotIssuable("groups", f"caller '{caller.name}' may not use {', '.join(map(repr, refused))}")
    if expires is not None and expires <= timezone.now():
        raise NotIssuable("expires", "the token would be expired already")


def revoke(token: Token) -> bool:
    """From now on the token is refused, within the time in which processes look. False: it was revoked before."""
    now = timezone.now()
    changed = Token.objects.filter(pk=token.pk, revoked_at=None).update(revoked_at=now)
    if changed:
        token.revoked_at = now
    return bool(changed)


def note_uses(uses: Mapping[str, datetime]) -> None:
    """Moves on when tokens were last used. `uses`: by their first 12 characters.

    The Directory does not know of it, so its version stays: nobody loads it anew.
    """
    with transaction.atomic():
        for shown, at in sorted(uses.items()):
            earlier = Q(last_used_at=None) | Q(last_used_at__lt=at)
            Token._base_manager.filter(earlier, shown=shown).update(last_used_at=at)
