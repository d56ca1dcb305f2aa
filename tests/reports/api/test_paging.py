"""Pages: nothing twice, nothing left out, whatever comes in between."""

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from reports.core.rollup import DIMENSIONS
from reports.rollups import roll
from tests.reports.api.ground import LATER, NOON, Ground, happened
from tests.reports.rows import an_exchange, save

SPAN = {"from": "2026-03-08T00:00:00Z", "to": "2026-03-13T00:00:00Z"}
DAYS = {"from": "2026-03-08", "to": "2026-03-13"}


def pages_of(ground: Ground, path: str, **parameters: Any) -> list[list[dict[str, Any]]]:
    client = ground.client("admin")
    pages = [client.get(f"/api/{path}", parameters).json()]
    while pages[-1]["next"]:
        pages.append(client.get(pages[-1]["next"]).json())
    return [page["results"] for page in pages]


def test_exchanges_come_newest_first_each_once_also_when_many_began_together(ground: Ground) -> None:
    moments = [NOON + timedelta(seconds=number // 4) for number in range(22)]
    save([an_exchange(moment, request_id=f"req_{number:02}") for number, moment in enumerate(moments)])
    pages = pages_of(ground, "exchanges/", page_size=5)
    assert [len(page) for page in pages] == [5, 5, 5, 5, 2]
    assert [row["request_id"] for page in pages for row in page] == [f"req_{number:02}" for number in range(21, -1, -1)]


def test_what_comes_in_between_pages_changes_nothing_of_what_was_there(ground: Ground) -> None:
    rng = random.Random(5)
    before = [
        an_exchange(NOON + timedelta(seconds=rng.randrange(9)), request_id=f"old_{number}") for number in range(40)
    ]
    save(before)
    client = ground.client("admin")
    address: str | None = "/api/exchanges/?page_size=7"
    seen: list[str] = []
    while address:
        page = client.get(address).json()
        seen += [row["request_id"] for row in page["results"]]
        address = page["next"]
        # Before, at and behind the place where the page ended.
        last = datetime.fromisoformat(page["results"][-1]["started_at"])
        save(
            [
                an_exchange(last + timedelta(seconds=step), request_id=f"new_{len(seen)}_{step}")
                for step in (-1, 0, 1, 99)
            ]
        )
        assert len(seen) < 400
    old = [name for name in seen if name.startswith("old_")]
    order = sorted(before, key=lambda each: (each.started_at, each.pk), reverse=True)
    assert old == [each.request_id for each in order]
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize(("path", "span"), [("rollups/hourly/", SPAN), ("rollups/daily/", DAYS)])
def test_pages_of_sums_are_the_whole_list_cut(ground: Ground, path: str, span: dict[str, Any]) -> None:
    rng = random.Random(7)
    names = {"caller": ["a", "b", "c"], "group": ["chat", "code", ""], "model": ["m", "M", "é"]}
    save([
        an_exchange(
            datetime(2026, 3, 8, tzinfo=UTC) + timedelta(minutes=rng.randrange(5 * 24 * 60)),
            duration_ms=rng.choice([5.0, 50.0, 500.0]),
            **{name: rng.choice(values) for name, values in names.items()},
        )
        for _ in range(40)
    ])  # fmt: skip
    roll(now=LATER)
    for zone in ("UTC", "Asia/Kathmandu"):
        for by in ([], ["caller"], ["model", "group"], list(DIMENSIONS)):
            asked = {**span, "zone": zone, "group_by": by}
            whole = pages_of(ground, path, **asked, page_size=1000)
            assert len(whole) == 1
            keys = [(row["start"], *row["by"].values()) for row in whole[0]]
            assert keys == sorted(set(keys))
            assert sum(row["requests"] for row in whole[0]) >= (40 if zone == "UTC" else 35)
            for size in (3, 16):
                if len(keys) < 30 or size > 3:
                    pages = pages_of(ground, path, **asked, page_size=size)
                    assert [row for page in pages for row in page] == whole[0]
                    assert {len(page) for page in pages[:-1]} <= {size}


def test_pages_of_decisions_are_the_whole_list_cut(ground: Ground) -> None:
    happened()
    whole = pages_of(ground, "decisions/daily/", **DAYS, page_size=1000)
    pages = pages_of(ground, "decisions/daily/", **DAYS, page_size=13)
    assert len(whole) == 1
    assert [row for page in pages for row in page] == whole[0]
    assert {len(page) for page in pages[:-1]} == {13}
    keys = [tuple(value for name, value in row.items() if name != "count") for row in whole[0]]
    assert len(set(keys)) == len(keys)


def test_a_page_says_itself_where_it_goes_on(busy: Ground) -> None:
    page = busy.get("admin", "exchanges/", page_size=2, group="chat", caller=["team", "rival"]).json()
    assert page["next"].startswith("/api/exchanges/?page_size=2&group=chat&caller=team&caller=rival&cursor=")


def test_a_page_has_no_more_rows_than_the_settings_allow(busy: Ground) -> None:
    refused = busy.get("admin", "exchanges/", page_size=1001).json()["error"]["parameters"]
    assert refused == [
        {
            "name": "page_size",
            "message": "Ensure this value is less than or equal to 1000.",
            "expected": "a whole number from 1 to 1000",
        }
    ]
