"""What watchers are shown of what processes say: counts since they watch, rates of the last seconds."""

from typing import Any

import pytest

from reports.core.live import Said, Watch
from reports.live_folder import STALE_SECONDS, LiveFolder


def said(at: float, **more: Any) -> Said:
    values: dict[str, Any] = {
        "pid": 1, "at": at, "since": 100.0, "revision": 3, "in_flight": 0, "queued": 0,
        "ended": [], "served": [], "out": [], "scores": [],
    }  # fmt: skip
    return Said(**values | more)


def ended(count: int, group: str = "chat", outcome: str = "success") -> list[tuple[str, str, int]]:
    return [(group, outcome, count)]


def test_rates_are_of_the_window_and_counts_of_all_the_time() -> None:
    watch = Watch(since=100.0)
    counts = []
    for second in range(31):
        at = 101.0 + second
        done = min(second + 1, 11) * 20  # twenty a second for eleven seconds, then none
        view = watch.add([said(at, ended=ended(done))], now=at)
        counts.append((view.per_second, view.count))
    assert counts[0] == (20.0, 20)
    assert [counts[place] for place in (5, 10, 15, 20, 30)] == [
        (20.0, 120),
        (20.0, 220),
        (10.0, 220),
        (0.0, 220),
        (0.0, 220),
    ]


def test_processes_are_added_up() -> None:
    view = Watch(since=100.0).add(
        [
            said(102.0, in_flight=2, queued=1, ended=ended(10), revision=3),
            said(102.0, pid=2, in_flight=3, ended=[*ended(6), *ended(4, outcome="refused")], revision=4),
        ],
        now=102.3,
    )
    assert (view.processes, view.in_flight, view.queued, view.revisions) == (2, 5, 1, [3, 4])
    (group,) = view.groups
    assert [(each.outcome, each.count, each.per_second) for each in group.outcomes] == [
        ("refused", 4, 2.0),
        ("success", 16, 8.0),
    ]


def test_what_a_process_counted_for_others_before_is_left_out() -> None:
    watch = Watch(since=100.0)
    assert watch.add([said(100.5, since=50.0, ended=ended(1000))], now=100.8).count == 0
    assert watch.add([said(101.5, since=50.0, ended=ended(1007))], now=101.8).count == 7


def test_what_a_process_counted_before_it_died_stays_counted() -> None:
    watch = Watch(since=100.0)
    watch.add([said(101.0, ended=ended(10)), said(101.0, pid=2, ended=ended(5))], now=101.0)
    view = watch.add([said(102.0, ended=ended(12))], now=102.0)
    assert (view.processes, view.count) == (1, 17)
    view = watch.add([said(103.0, ended=ended(12)), said(103.0, pid=2, since=102.5, ended=ended(1))], now=103.0)
    assert view.count == 18


def test_one_that_was_not_heard_for_a_second_is_counted_once() -> None:
    watch = Watch(since=100.0)
    for at, heard in ((101.0, True), (102.0, False), (103.0, True)):
        view = watch.add([said(at, ended=ended(10))] if heard else [], now=at)
        assert view.count == 10


def test_shares_scores_and_health_stand_with_each_target() -> None:
    one = said(
        102.0,
        served=[("chat", "a", 3), ("chat", "b", 1)],
        scores=[("chat", 101.0, [("a", 0.9, 0.8), ("b", 0.5, None)])],
        out=[("chat", "c", "kept_out", "5 failures in a row")],
    )
    two = said(
        102.0, pid=2, scores=[("chat", 101.5, [("a", 0.7, 0.6)])], out=[("chat", "b", "cooling_down", "for 3 s more")]
    )
    (group,) = Watch(since=100.0).add([one, two], now=102.0).groups
    assert [(each.target, each.share, each.count, each.final, each.dynamic, each.out) for each in group.targets] == [
        ("a", 0.75, 3, 0.7, 0.6, []),
        ("b", 0.25, 1, 0.5, None, ["cooling down: for 3 s more (in 1 of 2 processes)"]),
        ("c", 0.0, 0, None, None, ["kept out: 5 failures in a row (in 1 of 2 processes)"]),
    ]


def test_a_folder_is_watched_while_somebody_says_so(tmp_path: Any) -> None:
    folder = LiveFolder(tmp_path)
    assert not folder.is_watched(now=0.0)
    folder.watch()
    touched = (tmp_path / "live/watched").stat().st_mtime
    assert [folder.is_watched(now=touched + age) for age in (0.0, STALE_SECONDS - 0.01, STALE_SECONDS)] == [
        True,
        True,
        False,
    ]


def test_what_is_said_is_heard_while_it_is_fresh_and_garbage_is_not(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    folder = LiveFolder(tmp_path)
    folder.watch()
    told = (tmp_path / "live/watched").stat().st_mtime
    folder.say(said(told, ended=ended(1)))
    (tmp_path / "live/7.json").write_bytes(b"\xff{")
    (tmp_path / "live/8.json").mkdir()
    assert folder.said(now=told + 1) == [said(told, ended=ended(1))]
    assert folder.said(now=told + STALE_SECONDS) == []
    folder.fall_silent()
    assert folder.said(now=told) == []
    assert {path.stat().st_mode & 0o077 for path in [tmp_path / "live", tmp_path / "live/watched"]} == {0}
    assert len(caplog.messages) == 6
