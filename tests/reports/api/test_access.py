"""Tokens and sessions: which requests come from whom."""

import dataclasses
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from accounts import tokens
from accounts.models import Caller, Token
from tests.reports.api.ground import Ground

INVALID = {"error": {"code": "invalid_token", "message": "The token is not valid.", "parameters": []}}


def code_of(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_a_token_is_taken_from_either_header_and_authorization_counts_first(ground: Ground) -> None:
    good, bad = ground.secrets["team"], ground.secrets["revoked"]

    def status(**headers: str) -> int:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return int(Client(headers=names).get("/api/exchanges/").status_code)

    assert {
        "bearer": status(authorization=f"Bearer {good}"),
        "any case": status(authorization=f"bEaReR   {good} "),
        "key": status(x_api_key=good),
        "both": status(authorization=f"Bearer {good}", x_api_key=bad),
        "both, the other way": status(authorization=f"Bearer {bad}", x_api_key=good),
        "another scheme": status(authorization=f"Basic {good}"),
        "no scheme": status(authorization=good),
        "odd": status(authorization="Bearer plt_\xe9\x00"),
        "nothing": status(authorization="Bearer "),
    } == {
        "bearer": 200, "any case": 200, "key": 200, "both": 200, "both, the other way": 401, "another scheme": 401,
        "no scheme": 401, "odd": 401, "nothing": 401,
    }  # fmt: skip


def test_a_wrong_token_is_refused_even_beside_a_session(ground: Ground) -> None:
    client = ground.client("admin")
    answer = client.get("/api/exchanges/", headers={"x-api-key": "plt_wrong"})
    assert (answer.status_code, answer.json()) == (401, INVALID)
    assert answer["WWW-Authenticate"] == 'Bearer realm="pilotage"'
    assert client.get("/api/exchanges/").status_code == 200


def test_the_client_is_not_told_what_is_wrong_with_a_token(ground: Ground) -> None:
    answers = [ground.get(who, "exchanges/") for who in ("revoked", "expired", "gone")]
    assert [(each.status_code, each.json()) for each in answers] == [(401, INVALID)] * 3


@pytest.mark.parametrize("name", ["token", "access_token", "api_key", "key", "authorization", "x-api-key"])
def test_a_token_in_the_address_is_no_token(ground: Ground, name: str) -> None:
    secret = ground.secrets["team"]
    assert code_of(ground.get("nobody", "exchanges/", **{name: secret})) == (401, "not_authenticated")
    known = ground.get("admin", "exchanges/", **{name: "plt_0"})
    if name != "token":  # which is the name of a filter, and finds exchanges by 12 characters
        assert code_of(known) == (400, "invalid_parameters")


def test_a_revoked_token_and_an_inactive_caller_are_refused_at_once(ground: Ground) -> None:
    client = ground.client("team")
    assert client.get("/api/exchanges/").status_code == 200
    tokens.revoke(Token.objects.get(shown=ground.secrets["team"][:12]))
    assert client.get("/api/exchanges/").status_code == 401
    Caller.objects.filter(name="rival").update(active=False)
    assert ground.get("rival", "exchanges/").status_code == 401


def test_a_user_who_is_switched_off_is_nobody(ground: Ground) -> None:
    client = ground.client("reader")
    User.objects.filter(username="reader").update(is_active=False)
    assert code_of(client.get("/api/exchanges/")) == (401, "not_authenticated")


def test_requests_are_counted_by_user_and_by_caller(ground: Ground, settings: Any) -> None:
    settings.PILOTAGE = dataclasses.replace(settings.PILOTAGE, api_requests_per_minute=2)
    _, second = tokens.issue(Caller.objects.get(name="team"))

    def statuses(client: Client, count: int) -> list[int]:
        return [client.get("/api/exchanges/").status_code for _ in range(count)]

    assert statuses(ground.client("team"), 1) == [200]
    assert statuses(Client(headers={"x-api-key": second}), 2) == [200, 429]
    assert statuses(ground.client("mate"), 1) == [200]
    assert statuses(ground.client("admin"), 3) == [200, 200, 429]
    refused = ground.get("team", "exchanges/")
    assert code_of(refused) == (429, "too_many_requests")
    assert 1 <= int(refused["Retry-After"]) <= 60
    settings.PILOTAGE = dataclasses.replace(settings.PILOTAGE, api_requests_per_minute=0)
    assert statuses(ground.client("team"), 3) == [200] * 3


def test_nothing_is_kept_on_the_way(ground: Ground) -> None:
    answers = [ground.get(who, "exchanges/") for who in ("team", "admin", "nobody")]
    assert {answer["Cache-Control"] for answer in answers} == {"private, no-store"}
