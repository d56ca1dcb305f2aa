"""The admin's pages for callers and tokens."""

import re
from datetime import timedelta

import pytest
from django.conf import settings
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.contrib.sessions.models import Session
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from accounts import groups, store, tokens
from accounts.core.directory import find
from accounts.core.secret import well_formed
from accounts.models import Caller, Token

pytestmark = pytest.mark.django_db

SECRET = re.compile(r"plt_[0-9A-Za-z]{38}")


@pytest.fixture(autouse=True)
def known_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "_source", lambda: ["code", "chat"])


@pytest.fixture
def team() -> Caller:
    return Caller.objects.create(name="team", allow=["chat"])


def as_someone_who_may(client: Client, *permissions: str) -> Client:
    user = User.objects.create_user("clerk", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="accounts", codename__in=permissions))
    client.force_login(user)
    return client


def errors(response: object) -> dict[str, list[str]]:
    form = response.context["adminform"].form  # type: ignore[attr-defined]  # the test client adds it
    return {field: list(map(str, found)) for field, found in form.errors.items()}


ADD_TOKEN = "/admin/accounts/token/add/"
ADD_CALLER = "/admin/accounts/caller/add/"


def test_an_issued_token_is_on_the_answers_page_and_nowhere_else(admin_client: Client, team: Caller) -> None:
    response = admin_client.post(ADD_TOKEN, {"caller": team.pk, "only_groups": ["chat"], "expires_in": "30d"})
    (secret,) = set(SECRET.findall(response.content.decode()))
    assert (response.status_code, well_formed(secret.encode())) == (200, True)
    assert "no-store" in response["Cache-Control"]
    row = Token.objects.get()
    assert (row.caller, row.shown, row.groups, row.created_by) == (team, secret[:12], ["chat"], "admin")
    assert row.expires_at is not None
    assert timedelta(days=29) < row.expires_at - timezone.now() < timedelta(days=31)
    found = find(store.directory_from_rows(), secret, settings.TOKEN_PEPPER, timezone.now().timestamp())
    assert found.caller.name == "team"

    rest = secret[12:]
    for page in ("admin:index", "admin:accounts_token_changelist"):
        assert rest not in admin_client.get(reverse(page)).content.decode()
    for page in ("admin:accounts_token_change", "admin:accounts_token_history"):
        assert rest not in admin_client.get(reverse(page, args=[row.pk])).content.decode()
    assert rest not in "".join(str(session.get_decoded()) for session in Session.objects.all())
    assert rest not in "".join(map(repr, LogEntry.objects.values_list()))
    assert rest not in repr(Token.objects.values_list().get())
    assert rest not in "".join(morsel.output() for morsel in response.cookies.values())


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"only_groups": ["code"]}, {"only_groups": ["caller 'team' may not use 'code'"]}),
        (
            {"expires_in": "soon"},
            {
                "expires_in": [
                    "'soon' is not a length of time; expected a whole number and m, h, d or w, from 1m to 5200w: 30d"
                ]
            },
        ),
        ({"caller": ""}, {"caller": ["This field is required."]}),
        (
            {"only_groups": ["other"]},
            {"only_groups": ["Select a valid choice. other is not one of the available choices."]},
        ),
    ],
)
def test_a_mistake_is_said_beside_its_field_and_nothing_is_issued(
    admin_client: Client, team: Caller, fields: dict[str, object], expected: dict[str, list[str]]
) -> None:
    response = admin_client.post(ADD_TOKEN, {"caller": team.pk, **fields})
    assert (errors(response), Token.objects.count()) == (expected, 0)


def test_a_token_is_revoked_on_its_page_and_that_cannot_be_undone(admin_client: Client, team: Caller) -> None:
    row, _ = tokens.issue(team)
    page = reverse("admin:accounts_token_change", args=[row.pk])
    assert admin_client.post(page, {}).status_code == 302
    assert Token.objects.get().revoked_at is None
    assert admin_client.post(page, {"revoke": "on"}).status_code == 302
    first = Token.objects.get().revoked_at
    assert first is not None
    assert 'name="revoke"' not in admin_client.get(page).content.decode()
    admin_client.post(page, {"revoke": "on"})
    admin_client.post(page, {})
    assert Token.objects.get().revoked_at == first


def test_several_tokens_are_revoked_from_the_list(admin_client: Client, team: Caller) -> None:
    rows = [tokens.issue(team)[0] for _ in range(3)]
    tokens.revoke(rows[0])
    response = admin_client.post(
        reverse("admin:accounts_token_changelist"),
        {"action": "revoke_chosen", "_selected_action": [rows[0].pk, rows[1].pk]},
        follow=True,
    )
    assert "1 of 2 tokens revoked." in response.content.decode()
    assert [Token.objects.get(pk=row.pk).revoked_at is None for row in rows] == [False, False, True]


def test_nothing_of_a_token_can_be_edited(admin_client: Client, team: Caller) -> None:
    row, secret = tokens.issue(team)
    other = Caller.objects.create(name="other")
    before = Token.objects.values().get()
    admin_client.post(
        reverse("admin:accounts_token_change", args=[row.pk]),
        {
            "digest": "00" * 32,
            "shown": "plt_xxxxxxxx",
            "caller": other.pk,
            "groups": "[]",
            "expires_at": "",
            "revoked_at": "",
        },
    )
    assert Token.objects.values().get() == before
    assert secret[:12] == before["shown"]


def test_the_list_shows_what_a_token_is_good_for(admin_client: Client, team: Caller) -> None:
    idle = Caller.objects.create(name="idle", active=False)
    tokens.issue(team)
    tokens.revoke(tokens.issue(team)[0])
    tokens.issue(idle)
    Token.objects.filter(pk=tokens.issue(team)[0].pk).update(expires_at=timezone.now())
    page = admin_client.get(reverse("admin:accounts_token_changelist")).content.decode()
    for word in ("good", "revoked", "caller inactive", "expired", "all that the caller may use"):
        assert word in page
    assert re.search(r"\b20\d\d-\d\d-\d\d \d\d:\d\d UTC\b", page)


def test_a_whole_token_in_the_search_finds_its_row(admin_client: Client, team: Caller) -> None:
    row, secret = tokens.issue(team)
    other, _ = tokens.issue(team)
    page = admin_client.get(reverse("admin:accounts_token_changelist"), {"q": secret}).content.decode()
    assert f"/admin/accounts/token/{row.pk}/change/" in page
    assert f"/admin/accounts/token/{other.pk}/change/" not in page


@pytest.mark.parametrize(
    ("fields", "allow", "tags"),
    [
        ({"allowed_groups": ["chat", "code"], "tag_words": "a, b,a, "}, ["chat", "code"], ["a", "b"]),
        ({"all_groups": "on"}, ["*"], []),
        ({}, [], []),
    ],
)
def test_a_caller_is_made(admin_client: Client, fields: dict[str, object], allow: list[str], tags: list[str]) -> None:
    response = admin_client.post(ADD_CALLER, {"name": "team", "project": "p", "active": "on", **fields})
    assert response.status_code == 302
    made = Caller.objects.values("name", "project", "environment", "active", "allow", "tags", "see_routing").get()
    assert made == {
        "name": "team",
        "project": "p",
        "environment": "",
        "active": True,
        "allow": allow,
        "tags": tags,
        "see_routing": False,
    }


def test_a_group_that_is_gone_stays_chosen_until_it_is_taken_out(admin_client: Client) -> None:
    caller = Caller.objects.create(name="team", allow=["chat", "gone"])
    page = reverse("admin:accounts_caller_change", args=[caller.pk])
    assert "gone (no such group)" in admin_client.get(page).content.decode()
    admin_client.post(page, {"name": "team", "active": "on", "allowed_groups": ["chat", "gone"]})
    assert Caller.objects.get().allow == ["chat", "gone"]
    admin_client.post(page, {"name": "team", "active": "on", "allowed_groups": ["chat"]})
    assert Caller.objects.get().allow == ["chat"]


@pytest.mark.parametrize("name", ["", "Team", "-team", "te am", "team\n", "x" * 65, "tëam"])
def test_a_name_that_the_file_could_not_hold_is_refused_beside_its_field(admin_client: Client, name: str) -> None:
    response = admin_client.post(ADD_CALLER, {"name": name, "active": "on"})
    if name == "team\n":  # the form strips what surrounds it
        assert (response.status_code, Caller.objects.get().name) == (302, "team")
    else:
        assert (list(errors(response)), Caller.objects.count()) == (["name"], 0)


@pytest.mark.parametrize(
    ("permissions", "see", "issue", "revoke"),
    [
        ((), 403, 403, False),
        (("view_token", "view_caller"), 200, 403, False),
        (("view_token", "add_token"), 200, 200, False),
        (("view_token", "change_token"), 200, 403, True),
    ],
)
def test_a_person_does_what_they_may_and_no_more(
    client: Client, team: Caller, permissions: tuple[str, ...], see: int, issue: int, revoke: bool
) -> None:
    row, _ = tokens.issue(team)
    person = as_someone_who_may(client, *permissions)
    assert person.get(reverse("admin:accounts_token_changelist")).status_code == see
    assert person.post(ADD_TOKEN, {"caller": team.pk}).status_code == issue
    person.post(reverse("admin:accounts_token_change", args=[row.pk]), {"revoke": "on"})
    person.post(reverse("admin:accounts_token_changelist"), {"action": "revoke_chosen", "_selected_action": [row.pk]})
    assert (Token.objects.get(pk=row.pk).revoked_at is not None) is revoke


def test_nobody_issues_a_token_by_a_link_or_from_another_site(admin_user: User, team: Caller) -> None:
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(admin_user)
    assert strict.post(ADD_TOKEN, {"caller": team.pk}).status_code == 403
    assert strict.get(ADD_TOKEN, {"caller": team.pk}).status_code == 200
    assert Token.objects.count() == 0
