"""How many statements an answer takes: as many for one row as for many."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from reports.rollups import roll
from tests.reports.api.ground import LATER, NOON, Ground, happened
from tests.reports.rows import an_exchange, save

MARCH = "from=2026-03-01&to=2026-03-31&group_by=caller"
TENTH = "from=2026-03-10T00:00:00Z&to=2026-03-11T00:00:00Z&group_by=caller"
READS = {
    "exchanges/?page_size=2": 1,
    "exchanges/?group=chat&caller=team&min_cost_microdollars=1": 1,
    "exchanges/req_team_1/": 5,
    "exchanges/req_never/": 5,
    f"rollups/hourly/?{TENTH}": 3,
    f"rollups/daily/?{MARCH}": 3,
    f"rollups/daily/?{MARCH}&zone=Asia/Kathmandu": 3,
    "schema/": 0,
    "docs/": 0,
}
"""Beside those that find out who asks, and on PostgreSQL three for the transaction with its time limit."""
STAFF_READS = {"decisions/daily/?from=2026-03-01&to=2026-03-31": 1}
WHO = {"team": 1, "admin": 2, "reader": 4}
"""A token is one look-up; a session and its user are two, and staff's permissions two more."""


def count(ground: Ground, who: str, path: str) -> int:
    client = ground.client(who)
    with CaptureQueriesContext(
        connection,
    ) as queries:
        assert client.get(f"/api/{path}").status_code in (200, 404)
    return len(queries)


@pytest.mark.parametrize("who", WHO)
def test_the_number_of_queries_is_that_of_the_address(ground: Ground, database: str, who: str) -> None:
    happened(count=2)
    reads = READS | (STAFF_READS if who != "team" else {})
    limit = 0 if database.startswith("sqlite") else 3
    expected = {path: WHO[who] + number + (limit if number else 0) for path, number in reads.items()}
    assert {path: count(ground, who, path) for path in reads} == expected
    save([
        an_exchange(NOON + timedelta(minutes=number), caller=f"caller-{number % 40}", request_id=f"req_more_{number}")
        for number in range(200)
    ], detail=True)  # fmt: skip
    roll(now=LATER)
    assert {path: count(ground, who, path) for path in reads} == expected
