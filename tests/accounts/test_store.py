"""Callers and tokens between rows, the Directory and the configuration file, on both databases."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from django.test.utils import CaptureQueriesContext

from accounts import store
from accounts.core.directory import Caller, Directory, Token
from accounts.core.document import CallerEntry
from accounts.models import Caller as CallerRow
from accounts.models import Token as TokenRow

pytestmark = pytest.mark.usefixtures("database")


def caller_row(name: str = "team", **fields: Any) -> CallerRow:
    return CallerRow.objects.create(name=name, **fields)


def token_row(caller: CallerRow, first: str = "a", **fields: Any) -> TokenRow:
    return TokenRow.objects.create(caller=caller, shown=f"plt_{first * 8}", digest=first.encode() * 32, **fields)


def test_the_directory_is_every_token_with_its_caller() -> None:
    team = caller_row(project="p", environment="prod", allow=["chat", "*"], tags=["x"], see_routing=True)
    gone = caller_row("gone", active=False)
    token_row(team, "a", groups=["chat"], expires_at=datetime(2030, 1, 1, tzinfo=UTC))
    token_row(team, "b")
    token_row(gone, "c", revoked_at=datetime(2026, 1, 1, tzinfo=UTC))
    directory = store.directory_from_rows()
    expected_team = Caller(
        name="team",
        project="p",
        environment="prod",
        allow=frozenset({"chat", "*"}),
        tags=frozenset({"x"}),
        see_routing=True,
    )
    expected = [
        Token(
            caller=expected_team,
            shown="plt_aaaaaaaa",
            digest=b"a" * 32,
            expires_at=1893456000.0,
            groups=frozenset({"chat"}),
        ),
        Token(caller=expected_team, shown="plt_bbbbbbbb", digest=b"b" * 32),
        Token(caller=Caller(name="gone", active=False), shown="plt_cccccccc", digest=b"c" * 32, revoked=True),
    ]
    assert directory == Directory(version=store.directory_version(), tokens={row.digest: row for row in expected})
    assert directory.tokens[b"a" * 32].caller is directory.tokens[b"b" * 32].caller


def test_an_empty_database_has_an_empty_directory() -> None:
    assert store.directory_from_rows() == Directory(version=0, tokens={})


CHANGES: dict[str, Callable[[CallerRow, TokenRow], object]] = {
    "saving a new caller": lambda caller, token: caller_row("other"),
    "saving a caller": lambda caller, token: caller.save(),
    "saving a token": lambda caller, token: token.save(),
    "updating tokens": lambda caller, token: TokenRow.objects.update(revoked_at=datetime(2026, 1, 1, tzinfo=UTC)),
    "updating a caller's tokens": lambda caller, token: caller.tokens.update(groups=[]),
    "updating callers": lambda caller, token: CallerRow.objects.filter(pk=caller.pk).update(active=False),
    "creating many": lambda caller, token: CallerRow.objects.bulk_create([CallerRow(name="x"), CallerRow(name="y")]),
    "updating many": lambda caller, token: CallerRow.objects.bulk_update([caller], ["active"]),
    "creating or updating": lambda caller, token: CallerRow.objects.update_or_create(
        name="team", defaults={"project": "p"}
    ),
    "deleting a token": lambda caller, token: token.delete(),
    "deleting tokens": lambda caller, token: TokenRow.objects.all().delete(),
    "deleting a caller with its tokens": lambda caller, token: caller.delete(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_every_change_moves_the_version(change: Callable[[CallerRow, TokenRow], object]) -> None:
    caller = caller_row()
    token = token_row(caller)
    before = store.directory_version()
    change(caller, token)
    assert store.directory_version() > before


def test_a_change_that_is_taken_back_takes_the_version_back() -> None:
    caller = caller_row()
    before = store.directory_version()
    with transaction.atomic():
        caller.save()
        assert store.directory_version() > before
        transaction.set_rollback(True)
    assert store.directory_version() == before


def test_a_change_whose_version_cannot_move_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    caller = caller_row()

    def refuse() -> None:
        raise DatabaseError("disk full")

    monkeypatch.setattr("accounts.models.DirectoryVersion.advance", refuse)
    with pytest.raises(DatabaseError):
        CallerRow.objects.filter(pk=caller.pk).update(active=False)
    caller.active = False
    with pytest.raises(DatabaseError):
        caller.save()
    assert CallerRow.objects.get().active is True


def test_the_version_is_one_query_of_one_row_by_its_key() -> None:
    caller_row()
    with CaptureQueriesContext(connection) as queries:
        store.directory_version()
    assert len(queries) == 1
    assert "LIMIT 1" in queries[0]["sql"]


def test_callers_come_back_from_rows_as_they_were_applied() -> None:
    entries = {
        "a": CallerEntry(project="p", environment="prod", allow=("chat", "other"), see_routing=True, tags=("t", "s")),
        "b": CallerEntry(allow=("*",), active=False),
    }
    store.apply_callers(entries)
    assert store.callers_from_rows() == entries
    assert list(store.callers_from_rows()) == ["a", "b"]


def test_a_caller_that_is_not_named_becomes_inactive_and_keeps_its_tokens() -> None:
    team, other = caller_row(allow=["chat"]), caller_row("other", project="old")
    token_row(team)
    store.apply_callers({"other": CallerEntry(project="new")})
    assert store.callers_from_rows() == {
        "other": CallerEntry(project="new"),
        "team": CallerEntry(allow=("chat",), active=False),
    }
    assert [token.caller.active for token in store.directory_from_rows().tokens.values()] == [False]
    assert CallerRow.objects.get(name="other").pk == other.pk


def test_applying_what_is_there_already_changes_nothing() -> None:
    store.apply_callers({"a": CallerEntry(allow=("chat",))})
    before = store.directory_version()
    store.apply_callers({"a": CallerEntry(allow=("chat",))})
    assert store.directory_version() == before
