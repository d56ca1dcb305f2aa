"""Making and revoking tokens."""

from datetime import timedelta

import pytest
from django.conf import settings
from django.db import IntegrityError
from django.utils import timezone

from accounts import store, tokens
from accounts.core.directory import find
from accounts.core.errors import NotIssuable, Unauthenticated
from accounts.core.secret import well_formed
from accounts.models import Caller, Token

pytestmark = pytest.mark.django_db


@pytest.fixture
def team() -> Caller:
    return Caller.objects.create(name="team", allow=["chat", "code"])


def test_an_issued_token_opens_the_gateway_in_its_callers_name(team: Caller) -> None:
    row, secret = tokens.issue(team, groups=["code", "chat", "code"], author="me")
    found = find(store.directory_from_rows(), secret, settings.TOKEN_PEPPER, timezone.now().timestamp())
    assert (found.caller.name, found.shown, found.groups) == ("team", secret[:12], frozenset({"chat", "code"}))
    assert (row.shown, row.groups, row.created_by) == (secret[:12], ["chat", "code"], "me")
    assert well_formed(secret.encode())


def test_only_the_first_twelve_characters_and_the_digest_are_kept(team: Caller) -> None:
    row, secret = tokens.issue(team)
    stored = Token.objects.filter(pk=row.pk).values_list().get()
    assert secret[12:] not in repr(stored)
    assert len(bytes(row.digest)) == 32


def test_no_two_tokens_are_alike(team: Caller) -> None:
    assert len({tokens.issue(team)[1] for _ in range(50)}) == 50


def test_no_two_rows_can_have_one_digest(team: Caller) -> None:
    row, _ = tokens.issue(team)
    with pytest.raises(IntegrityError):
        Token.objects.create(caller=team, shown="plt_other000", digest=row.digest)


def test_a_revoked_token_is_refused_and_stays_revoked_since_the_first_time(team: Caller) -> None:
    row, secret = tokens.issue(team)
    assert tokens.revoke(row) is True
    first = Token.objects.get().revoked_at
    assert tokens.revoke(Token.objects.get()) is False
    assert Token.objects.get().revoked_at == first == row.revoked_at
    with pytest.raises(Unauthenticated, match="revoked"):
        find(store.directory_from_rows(), secret, settings.TOKEN_PEPPER, 0)


@pytest.mark.parametrize(
    ("groups", "expires_in", "field", "message"),
    [
        ([], None, "groups", "a token needs at least one group, or no restriction at all"),
        (["chat", "x", "y"], None, "groups", "caller 'team' may not use 'x', 'y'"),
        (None, timedelta(seconds=-1), "expires", "the token would be expired already"),
    ],
)
def test_what_could_never_be_used_is_not_issued(
    team: Caller, groups: list[str] | None, expires_in: timedelta | None, field: str, message: str
) -> None:
    expires = None if expires_in is None else timezone.now() + expires_in
    with pytest.raises(NotIssuable) as error:
        tokens.issue(team, groups=groups, expires=expires)
    assert (error.value.field, str(error.value), Token.objects.count()) == (field, message, 0)


def test_a_caller_of_all_groups_has_tokens_for_any() -> None:
    everything = Caller.objects.create(name="ops", allow=["*"])
    row, _ = tokens.issue(everything, groups=["made-later"])
    assert row.groups == ["made-later"]
