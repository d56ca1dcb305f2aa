"""What the API answers when something is wrong: JSON of one shape, whatever it is."""

import dataclasses
import threading
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.test import Client

from reports.api import exchanges
from reports.api.errors import MEANINGS
from tests.reports.api.ground import NOON, Ground
from tests.reports.rows import an_exchange, save

NAME = "a name of at most 255 characters, at most 50 times"
MOMENT = "a time with its offset, such as 2026-11-30T12:00:00Z, from 1970 to 9997"
DAY = "a day, such as 2026-11-30, from 1970 to 9997"
ZONE = "a name of the time zone database, such as Europe/Paris"
CURSOR = "what `next` of an earlier answer holds, with the same parameters beside it"
AMOUNT = "a whole number from 0 to 9007199254740991"

WRONG: list[tuple[str, str, str, str]] = [
    ("exchanges/", "from=yesterday", "'yesterday' is not a time with its offset.", MOMENT),
    ("exchanges/", "from=", "'' is not a time with its offset.", MOMENT),
    ("exchanges/", "from=2026-03-10", "'2026-03-10' is not a time with its offset.", MOMENT),
    ("exchanges/", "to=2026-03-10T12:00:00", "'2026-03-10T12:00:00' is not a time with its offset.", MOMENT),
    ("exchanges/", "to=0001-01-01T00:00:00%2B14:00", "'0001-01-01T00:00:00+14:00' is not a time with its offset.", MOMENT),
    ("exchanges/", "to=9999-12-31T23:59:59-14:00", "'9999-12-31T23:59:59-14:00' is not a time with its offset.", MOMENT),
    ("exchanges/", "stream=perhaps", "Must be a valid boolean.", "true or false"),
    ("exchanges/", "status=99", "Ensure this value is greater than or equal to 100.", "a whole number from 100 to 599, at most 50 times"),
    ("exchanges/", "min_cost_microdollars=0.5", "A valid integer is required.", AMOUNT),
    ("exchanges/", "min_cost_microdollars=9007199254740992", "Ensure this value is less than or equal to 9007199254740991.", AMOUNT),
    ("exchanges/", "group=%00", "Null characters are not allowed.", NAME),
    ("exchanges/", "group=" + "x" * 256, "Ensure this field has no more than 255 characters.", NAME),
    ("exchanges/", "&".join(["group=x"] * 51), "Ensure this field has no more than 50 elements.", NAME),
    ("exchanges/", "page_size=0", "Ensure this value is greater than or equal to 1.", "a whole number from 1 to 1000"),
    ("exchanges/", "page_size=2&page_size=3", "It was given more than once.", "one value"),
    ("exchanges/", "cursor=x", "'x' is not a cursor of this list.", CURSOR),
    ("exchanges/", "cursor=WyJ4Il0=", "'WyJ4Il0=' is not a cursor of this list.", CURSOR),
    ("rollups/hourly/", "zone=Europe/Nowhere", "'Europe/Nowhere' is not a time zone.", ZONE),
    ("rollups/hourly/", "zone=../../etc/passwd", "'../../etc/passwd' is not a time zone.", ZONE),
    ("rollups/hourly/", "zone=", "'' is not a time zone.", ZONE),
    ("rollups/hourly/", "group_by=caller&group_by=caller", "A name stands there twice.", "each name once"),
    ("rollups/daily/", "from=2026-02-30", "'2026-02-30' is not a day.", DAY),
    ("rollups/daily/", "to=1969-12-31", "'1969-12-31' is not a day.", DAY),
    ("rollups/daily/", "to=9999-01-01", "'9999-01-01' is not a day.", DAY),
    ("rollups/daily/", "cursor=WyIyMDI2LTAzLTEwIiwieCJd", "It is of a list with another group_by.", "the `group_by` of the page before"),
    ("decisions/daily/", "cursor=W10=", "'W10=' is not a cursor of this list.", CURSOR),
    ("exchanges/req_1/", "format=json", "There is no such parameter.", "no parameters"),
    ("schema/", "format=yaml", "There is no such parameter.", "no parameters"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "query", "message", "expected"), WRONG)
@pytest.mark.django_db
def test_a_wrong_parameter_is_named_with_what_was_expected(
    client: Client, django_user_model: Any, path: str, query: str, message: str, expected: str
) -> None:
    client.force_login(django_user_model.objects.create_superuser("ada", password="x"))
    answer = client.get(f"/api/{path}?{query}")
    name = query.partition("=")[0]
    problem = {"name": name, "message": message, "expected": expected}
    document = {"code": "invalid_parameters", "message": MEANINGS["invalid_parameters"][1], "parameters": [problem]}
    assert (answer.status_code, answer.json()) == (400, {"error": document})


@pytest.mark.django_db
def test_all_that_is_wrong_is_told_at_once_and_the_nearest_name(client: Client, django_user_model: Any) -> None:
    client.force_login(django_user_model.objects.create_superuser("ada", password="x"))
    problems = client.get("/api/rollups/daily/?form=1&zone=x&page_size=-1").json()["error"]["parameters"]
    assert [(each["name"], each["message"]) for each in problems] == [
        ("form", "There is no such parameter. Did you mean from?"),
        ("zone", "'x' is not a time zone."),
        ("page_size", "Ensure this value is greater than or equal to 1."),
    ]


def test_a_plus_that_was_not_escaped_is_understood(ground: Ground) -> None:
    save([an_exchange(NOON)])
    found = ground.client("admin").get("/api/exchanges/?from=2026-03-10T13:00:00+01:00&to=2026-03-10T12:00:01Z")
    assert len(found.json()["results"]) == 1


ELSEWHERE = ("", "nowhere", "nowhere/", "exchanges/a/b/", "exchanges//", "exchanges/%2e%2e/", "docs/x", "schema.json",
             "rollups/", "rollups/weekly/", "exchanges/x.html/y", "%00", "é/", "admin/", "v1/chat/completions")  # fmt: skip


@pytest.mark.parametrize("who", ["nobody", "admin"])
def test_an_address_that_leads_nowhere_is_told_in_json(ground: Ground, who: str) -> None:
    client = ground.client(who)
    for method in ("get", "post"):
        answers = [getattr(client, method)(f"/api/{path}", headers={"Accept": "text/html"}) for path in ELSEWHERE]
        answers.append(getattr(client, method)("/api"))
        told = {(each.status_code, each["Content-Type"], each.json()["error"]["code"]) for each in answers}
        expected = {(404, "application/json", "not_found")}
        # An id may be anything: it is asked who one is, before it is looked for.
        assert (
            told - {(401, "application/json", "not_authenticated"), (405, "application/json", "method_not_allowed")}
            == expected
        )


def test_an_address_without_its_last_slash_is_served_and_never_redirects(busy: Ground) -> None:
    for path in (
        "exchanges",
        "exchanges/req_team_1",
        "rollups/hourly",
        "rollups/daily",
        "decisions/daily",
        "schema",
        "docs",
    ):
        with_slash, without = busy.get("admin", f"{path}/"), busy.get("admin", path)
        assert (path, without.status_code, without["Content-Type"]) == (path, 200, with_slash["Content-Type"])
        if "json" in without["Content-Type"]:
            assert without.json() == with_slash.json()
    assert busy.client("team").post("/api/exchanges", {"a": 1}).status_code == 405
    assert busy.get("team", "exchanges", frm=1).status_code == 400


def test_accept_changes_nothing_and_head_has_no_body(busy: Ground) -> None:
    client = busy.client("team")
    for accept in ("text/html", "application/xml", "nonsense", "*/*"):
        answer = client.get("/api/exchanges/", headers={"Accept": accept})
        assert (answer.status_code, answer["Content-Type"]) == (200, "application/json")
    head = client.head("/api/exchanges/")
    assert (head.status_code, head.content) == (200, b"")


def test_another_host_name_is_refused_in_json(ground: Ground) -> None:
    answer = ground.client("team").get("/api/exchanges/", headers={"Host": "evil.example"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_request")


def test_a_mistake_of_ours_is_told_in_json_and_logged(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("a secret reason")

    monkeypatch.setattr(exchanges, "matching", broken)
    answer = ground.get("team", "exchanges/")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
    assert b"secret" not in answer.content
    assert "/api/exchanges/ cannot be answered" in caplog.text


def test_a_query_that_takes_too_long_is_given_up(ground: Ground, database: str, settings: Any) -> None:
    save([an_exchange(NOON) for _ in range(2_000)])
    settings.PILOTAGE = dataclasses.replace(settings.PILOTAGE, api_query_seconds=0.05)
    asked = {"min_input_tokens": 99}
    if database.startswith("sqlite"):
        settings.PILOTAGE = dataclasses.replace(settings.PILOTAGE, api_query_seconds=-1.0)
        answer = ground.get("admin", "exchanges/", **asked)
    else:
        with psycopg.connect(database) as other:  # which keeps the table to itself
            other.execute("LOCK TABLE reports_exchange IN ACCESS EXCLUSIVE MODE")
            answer = ground.get("admin", "exchanges/", **asked)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "query_timeout")
    settings.PILOTAGE = dataclasses.replace(settings.PILOTAGE, api_query_seconds=10.0)
    again = ground.get("admin", "exchanges/", **asked)
    assert (again.status_code, again.json()["results"]) == (200, [])


def test_a_database_that_is_written_to_meanwhile_keeps_nobody_waiting(ground: Ground, database: str) -> None:
    """A reader that took SQLite's only writing place would wait for it here, until it gives up."""
    client = ground.client("admin")
    held, done = threading.Event(), threading.Event()

    def write() -> None:
        from django.db import connection, transaction

        with transaction.atomic():
            save([an_exchange(NOON, request_id="req_written")])
            held.set()
            done.wait(10)
        connection.close()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert held.wait(10)
        begun = time.monotonic()
        answer = client.get("/api/exchanges/")
        waited = time.monotonic() - begun
    finally:
        done.set()
        writer.join()
    assert (answer.status_code, answer.json()["results"]) == (200, [])
    assert waited < 5  # the wait for a locked database in these tests


def test_every_code_is_documented_with_its_status() -> None:
    text = (Path(__file__).parents[3] / "docs" / "api.md").read_text()
    assert [code for code, (status, _) in MEANINGS.items() if f"| `{code}` | {status} |" not in text] == []
