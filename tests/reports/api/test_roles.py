"""Who may read what, generated from the URL configuration: roles x addresses x parameters."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.urls import URLPattern

from reports.api import urls
from reports.api.decisions import BucketQuery
from reports.api.exchanges import ExchangeQuery
from reports.api.parameters import Query
from reports.api.rollups import DailyQuery, HourlyQuery
from reports.core.rollup import DIMENSIONS
from reports.models import Exchange
from tests.reports.api.ground import CALLERS, PROJECTS, REPORT, USERS, Ground

ON_ONE_DATABASE = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
"""Hundreds of requests, whose conditions are put together before any database sees them."""
ADDRESSES = {
    "exchange-list": "exchanges/",
    "exchange-detail": "exchanges/req_team_1/",
    "hourly-rollup-list": "rollups/hourly/",
    "daily-rollup-list": "rollups/daily/",
    "daily-decision-list": "decisions/daily/",
    "report-list": "reports/",
    "report-run-list": f"reports/{REPORT}/runs/",
    "schema": "schema/",
    "docs": "docs/",
    "elsewhere": "nowhere/",
}
EVERYBODY = {
    "admin",
    "reader",
    "auditor",
    "accountant",
    "planner",
    "team",
    "mate",
    "open",
    "rival",
    "loner",
    "other-loner",
}
ALLOWED: dict[str, set[str]] = {
    "exchange-list": EVERYBODY - {"accountant", "planner"},
    "exchange-detail": {"admin", "reader", "auditor", "team", "mate", "open"},
    "hourly-rollup-list": EVERYBODY - {"auditor"},
    "daily-rollup-list": EVERYBODY - {"auditor"},
    "daily-decision-list": {"admin", "reader", "accountant", "planner"},
    "report-list": {"admin", "planner"},
    "report-run-list": {"admin", "planner"},
    "schema": EVERYBODY,
    "docs": EVERYBODY,
    "elsewhere": set(),
}
ROLES = ("nobody", "admin", *USERS, *CALLERS, "revoked", "expired")
UNKNOWN = {"nobody", "gone", "revoked", "expired"}
ACTIVE = tuple(name for name in CALLERS if name != "gone")

MARCH = {"from": "2026-03-01", "to": "2026-03-31"}
TENTH = {"from": "2026-03-10T00:00:00Z", "to": "2026-03-11T00:00:00Z"}
LISTS: dict[str, tuple[type[Query], dict[str, Any]]] = {
    "exchanges/": (ExchangeQuery, {}),
    "rollups/hourly/": (HourlyQuery, {**TENTH, "group_by": ["project", "caller"]}),
    "rollups/daily/": (DailyQuery, {**MARCH, "group_by": ["project", "caller"]}),
    "decisions/daily/": (BucketQuery, MARCH),
}
"""Parameters by address, and those with which it shows whose its rows are."""


def names_of(query: type[Query]) -> list[str]:
    return [str(name) for name in query().fields]


def names() -> list[str]:
    return [str(pattern.name) for pattern in urls.urlpatterns if isinstance(pattern, URLPattern)]


def expected(name: str, role: str) -> int:
    if name == "elsewhere":
        return 404
    if role in UNKNOWN:
        return 401
    if role in ALLOWED[name]:
        return 200
    # To a caller, another's exchange is none at all.
    return 404 if name == "exchange-detail" and role in CALLERS else 403


def test_every_address_has_an_expected_status_for_every_role() -> None:
    assert list(ADDRESSES) == names() == list(ALLOWED)


def test_every_cell_of_roles_and_addresses_is_as_expected(busy: Ground) -> None:
    cells = {(name, role): busy.get(role, path).status_code for name, path in ADDRESSES.items() for role in ROLES}
    assert cells == {(name, role): expected(name, role) for name in ADDRESSES for role in ROLES}


def test_nothing_but_reading_is_possible_for_anybody(busy: Ground) -> None:
    answers = {
        (name, role, method): getattr(busy.client(role), method)(f"/api/{path}").status_code
        for name, path in ADDRESSES.items()
        for role in ("nobody", "admin", "clerk", "team", "revoked")
        for method in ("post", "put", "patch", "delete", "options")
        if (name, method) != ("report-run-list", "post")  # by which a report is ordered
    }
    assert set(answers.values()) == {404, 405}
    assert {name for (name, _, _), status in answers.items() if status == 404} == {"elsewhere"}


def values_of(name: str, caller: str) -> list[Any]:
    """What somebody of another project would try, of the exchanges of `caller`."""
    values: dict[str, list[Any]] = {
        "from": ["2026-03-01T00:00:00Z", "2026-03-01"],
        "to": ["2026-03-31T00:00:00Z", "2026-03-31"],
        "group": ["chat", ""],
        "caller": [caller, "", [caller, "team"]],
        "project": [PROJECTS[caller], "", [PROJECTS[caller], "search"]],
        "environment": [f"env-{caller}"],
        "token": [f"plt_{caller}"[:12]],
        "endpoint": ["chat"],
        "dialect": ["openai-chat"],
        "error_code": [f"error_{caller}", ""],
        "target": ["paris/m"],
        "provider": [f"paris-{caller}"],
        "model": ["m"],
        "strategy": ["dynamic_score"],
        "mode": ["score"],
        "affinity": ["affinity_miss"],
        "outcome": ["success", ["success", "refused"]],
        "status": ["200"],
        "usage_quality": ["reported"],
        "stream": ["true", "false"],
        "fell_back": ["true", "false"],
        "cost_known": ["true", "false"],
        "min_cost_microdollars": ["0"],
        "max_cost_microdollars": ["1000000"],
        "min_duration_ms": ["0"],
        "min_input_tokens": ["0"],
        "min_output_tokens": ["0"],
        "page_size": ["1", "1000"],
        "zone": ["Asia/Kathmandu"],
        "group_by": [["project", "caller", each] for each in DIMENSIONS if each not in ("project", "caller")],
        "dimension": ["mode"],
        "bucket": ["score"],
        "cursor": [],
    }
    return values[name]


def rows_of(ground: Ground, role: str, path: str, parameters: dict[str, Any]) -> Iterator[dict[str, Any]]:
    answer = ground.get(role, path, **parameters)
    if answer.status_code == 200:
        yield from answer.json()["results"]
    else:
        assert answer.status_code in (400, 403), (path, parameters, answer.content)


@ON_ONE_DATABASE
@pytest.mark.parametrize("path", LISTS)
def test_no_parameter_shows_a_caller_what_is_anothers(busy: Ground, path: str) -> None:
    query, whose = LISTS[path]
    roles = ("team", "open", "rival", "loner", "other-loner")
    seen: dict[str, set[tuple[str, str]]] = {role: set() for role in roles}
    tried = set()
    for role in roles:
        for name in names_of(query):
            values = [value for victim in ("team", "rival", "loner") for value in values_of(name, victim)]
            for value in {repr(value): value for value in values}.values():
                tried.add(name)
                for row in rows_of(busy, role, path, {**whose, name: value}):
                    who = row.get("by", row)
                    seen[role].add((who["project"], who["caller"]))
    assert tried == set(names_of(query)) - {"cursor"}
    projects = {role: {(PROJECTS[each], each) for each in ACTIVE if PROJECTS[each] == PROJECTS[role]} for role in roles}
    alone = {role: {("", role)} for role in ("loner", "other-loner")}
    nothing: dict[str, set[Any]] = {role: set() for role in roles}
    assert seen == (nothing if path == "decisions/daily/" else {**projects, **alone})


@pytest.mark.parametrize("path", ["exchanges/", "rollups/hourly/", "rollups/daily/"])
def test_a_cursor_of_everybodys_list_shows_a_caller_nothing_of_others(busy: Ground, path: str) -> None:
    _, whose = LISTS[path]
    page = busy.get("admin", path, **whose, page_size=2).json()
    while page["next"]:
        answer = busy.client("team").get(page["next"])
        shown = {row.get("by", row)["project"] for row in answer.json()["results"]}
        assert shown <= {"search"}
        page = busy.client("admin").get(page["next"]).json()


def test_sums_without_names_are_of_the_callers_project_alone(busy: Ground) -> None:
    counts = {
        role: [busy.get(role, path, **span).json()["results"][0]["requests"] for path, span in
               (("rollups/hourly/", TENTH), ("rollups/daily/", MARCH), ("rollups/daily/", {**MARCH, "zone": "Asia/Kathmandu"}))]
        for role in ("admin", *ACTIVE)
    }  # fmt: skip
    own = {"admin": 18, "team": 9, "mate": 9, "open": 9, "rival": 3, "loner": 3, "other-loner": 3}
    assert counts == {role: [count] * 3 for role, count in own.items()}


def test_an_exchange_of_another_project_is_told_like_one_that_never_was(busy: Ground) -> None:
    exchanges = list(Exchange.objects.values_list("request_id", "project", "caller"))
    seen = {
        (role, request_id): (answer.status_code, b"" if answer.status_code == 200 else answer.content)
        for role in ("team", "rival", "loner")
        for request_id, _, _ in exchanges
        for answer in [busy.get(role, f"exchanges/{request_id}/")]
    }
    unknown = busy.get("team", "exchanges/req_never/")
    nothing = (404, unknown.content)
    assert unknown.status_code == 404
    assert seen == {
        (role, request_id): (200, b"") if project == PROJECTS[role] and (project or caller == role) else nothing
        for role in ("team", "rival", "loner")
        for request_id, project, caller in exchanges
    }


def hidden(document: dict[str, Any], names: set[str]) -> set[str]:
    return {name for name in names if document[name] is None}


def test_routing_is_shown_to_callers_who_see_it_and_to_staff(busy: Ground) -> None:
    sections = {"decision", "candidates", "exclusions", "attempts", "transitions", "served_by"}
    assert hidden(busy.get("team", "exchanges/req_open_1/").json(), sections) == sections
    assert hidden(busy.get("open", "exchanges/req_team_1/").json(), sections) == set()
    assert hidden(busy.get("admin", "exchanges/req_team_1/").json(), sections) == set()
    rows = {role: busy.get(role, "exchanges/").json()["results"][0]["routing"] for role in ("team", "open", "admin")}
    assert (rows["team"], rows["open"]["target"], rows["admin"]["target"]) == (None, "paris/m", "paris/m")
    sums = {role: busy.get(role, "rollups/daily/", **MARCH).json()["results"][0] for role in ("team", "open")}
    counts = {"attempts", "fallbacks", "affinity_hit", "affinity_miss", "affinity_expired", "affinity_evicted",
              "affinity_ineligible", "affinity_disabled"}  # fmt: skip
    assert (hidden(sums["team"], counts), hidden(sums["open"], counts)) == (counts, set())


def test_why_a_token_was_refused_and_what_is_held_is_for_staff(busy: Ground) -> None:
    def shown(role: str) -> tuple[Any, ...]:
        found = busy.get(role, "exchanges/req_open_1/").json()
        row = next(
            each for each in busy.get(role, "exchanges/").json()["results"] if each["request_id"] == "req_open_1"
        )
        return row["operator"], found["request"]["legal_hold"], found["outcome"]["error_detail"]

    assert shown("open") == (None, None, None)
    assert shown("auditor") == ({"error_detail": "revoked", "legal_hold": False}, False, "revoked")


ROUTING = {
    "exchanges/": {"target", "provider", "model", "strategy", "mode", "affinity", "fell_back"},
    "rollups/hourly/": {"provider", "model", "strategy"},
    "rollups/daily/": {"provider", "model", "strategy"},
}


@ON_ONE_DATABASE
@pytest.mark.parametrize("path", ROUTING)
def test_who_does_not_see_routing_cannot_ask_for_it_either(busy: Ground, path: str) -> None:
    query, _ = LISTS[path]
    refused = {
        name
        for name in names_of(query)
        for value in values_of(name, "team")
        if name != "group_by" and busy.get("team", path, **{name: value}).status_code == 403
    }
    by = {name for name in DIMENSIONS if busy.get("team", path, group_by=name).status_code == 403}
    assert refused == ROUTING[path]
    assert by == (set() if path == "exchanges/" else ROUTING[path])
    assert busy.get("open", path, provider="paris-open").status_code == 200
