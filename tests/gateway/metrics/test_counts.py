"""Counting of end records in memory: against the reports' own arithmetic, and within its bounds."""

import random
import re
from pathlib import Path
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

from gateway.metrics.board import Board, Shared, stands
from gateway.metrics.counts import Counts, Recorder, merged
from gateway.metrics.families import METRICS, Figures, Gauges, families
from reports.core.cost import CLASSES, bill
from reports.core.record import AttemptRecord, EndRecord, ExclusionRecord
from reports.progress import Progress

DOCS = Path(__file__).parents[3] / "docs" / "metrics.md"


def some_attempt(target: str = "p/m", outcome: str = "ok", duration_ms: float = 10.0) -> AttemptRecord:
    return AttemptRecord(
        target=target, provider="p", model="m", outcome=outcome, status=200, error_code=None, started_ms=0.0,
        duration_ms=duration_ms, first_content_ms=None,
    )  # fmt: skip


def some_end(**fields: Any) -> EndRecord:
    known: dict[str, Any] = {
        "v": 1, "id": "req_1", "at": 1.0, "caller": "", "project": "", "environment": "", "token": "", "endpoint": "chat",
        "group": "chat", "dialect": "openai-chat", "stream": False, "revision": 1, "status": 200, "outcome": "success",
        "duration_ms": 10.0,
    }  # fmt: skip
    return EndRecord(**(known | fields))


def figures_of(*counts: Counts, gauges: list[Gauges] | None = None, progress: Progress | None = None) -> Figures:
    return Figures(
        counts=merged(list(counts)),
        gauges=[Gauges()] if gauges is None else gauges,
        spool_bytes=1,
        spool_written=2,
        spool_dropped=3,
        lines_dropped=4,
        progress=progress or Progress(),
        now=1000.0,
    )


def samples(figures: Figures, name: str) -> dict[tuple[str, ...], Any]:
    return dict(next(metric for metric in METRICS if metric.name == name).read(figures))


def odd(rng: random.Random) -> EndRecord:
    """Whatever numbers a record may hold."""

    def count() -> int | None:
        return rng.choice([None, 0, 1, 17, 250_000, -1, 10**13])

    def price() -> int | None:
        return rng.choice([None, 0, 1, 150_000, 999_999_999])

    return some_end(
        group=rng.choice(["a", "b"]),
        target=rng.choice(["p/1", "p/2"]),
        endpoint=rng.choice(["chat", "messages", "count_tokens"]),
        outcome=rng.choice(["success", "client_cancelled", "upstream_truncated", "upstream_failed"]),
        attempts=[some_attempt()] * rng.randint(0, 2),
        input_tokens_estimated=rng.choice([0, 40]),
        usage_quality=rng.choice(["reported", "reported", "reported", "estimated", "inconsistent", "missing"]),
        **{
            name: count()
            for name in ("input_tokens", "cache_read_tokens", "cache_write_tokens", "cache_write_1h_tokens",
                         "output_tokens", "reasoning_tokens")
        },
        **{
            name: price()
            for name in ("input_price", "output_price", "cached_input_price", "cache_write_price", "cache_write_1h_price")
        },
    )  # fmt: skip


def test_tokens_and_cost_are_those_of_the_bills() -> None:
    rng = random.Random(20)
    records = [odd(rng) for _ in range(20_000)]
    recorder = Recorder(max_names=10_000)
    for record in records:
        recorder.add(record)
    tokens: dict[tuple[str, ...], int] = {}
    cost: dict[tuple[str, ...], int] = {}
    unpriced: dict[tuple[str, ...], int] = {}
    for record in records:
        if not record.attempts or record.endpoint == "count_tokens":
            continue
        found, names = bill(record), (record.group, record.target or "")
        for name in (*CLASSES, "reasoning"):
            tokens[(*names, name)] = tokens.get((*names, name), 0) + (getattr(found.tokens, name) or 0)
        cost[names] = cost.get(names, 0) + (found.microdollars or 0)
        unpriced[names] = unpriced.get(names, 0) + (found.microdollars is None)
    figures = figures_of(recorder.counts)
    assert samples(figures, "pilotage_tokens") == tokens
    assert samples(figures, "pilotage_unpriced_exchanges") == unpriced
    dollars = samples(figures, "pilotage_cost_usd")
    assert dollars.keys() == cost.keys()
    assert {key: abs(dollars[key] * 1e6 - micro) <= 0.5 * len(records) for key, micro in cost.items()} == dict.fromkeys(
        cost, True
    )
    assert len(recorder.counts.usage) > 50  # and not all took the long way


def test_durations_fall_into_the_bucket_whose_bound_they_do_not_pass() -> None:
    recorder = Recorder(max_names=10)
    for duration in (10.0, 10.001, 300_000.0, 300_000.1):
        recorder.add(some_end(duration_ms=duration))
    cell = recorder.counts.exchanges["chat", "chat", "success", 2]
    assert cell == [1, 1, *[0] * 11, 1, 1, 600_020.101]


def test_names_beyond_the_bound_count_as_other() -> None:
    recorder = Recorder(max_names=2)
    for number in range(5):
        recorder.add(some_end(group=f"g{number}", attempts=[some_attempt(f"p/{number}")], target=f"p/{number}"))
    recorder.add(some_end(group="", status=401, outcome="refused", error_code="missing_api_key"))
    figures = figures_of(recorder.counts)
    assert {group for group, *_ in samples(figures, "pilotage_exchanges")} == {"g0", "g1", "other", "none"}
    assert samples(figures, "pilotage_attempts") == {
        ("g0", "p/0", "ok"): 1,
        ("g1", "p/1", "ok"): 1,
        ("other", "other", "ok"): 3,
    }


def test_prices_that_change_all_the_time_take_no_more_room_than_the_names() -> None:
    recorder = Recorder(max_names=3)
    for price in range(100):
        recorder.add(
            some_end(attempts=[some_attempt()], target="p/m", usage_quality="reported", input_tokens=1_000_000,
                     output_tokens=0, input_price=price, output_price=0)
        )  # fmt: skip
    assert len(recorder.counts.usage) == 12
    assert samples(figures_of(recorder.counts), "pilotage_cost_usd") == {("chat", "p/m"): sum(range(100)) / 1e6}


def test_fallbacks_exclusions_and_refusals_are_counted_by_their_reason() -> None:
    recorder = Recorder(max_names=10)
    attempts = [some_attempt("p/1", "timeout"), some_attempt("p/2", "throttled"), some_attempt("p/3")]
    exclusion = ExclusionRecord(target="p/4", stage="health", reason="denied", detail="")
    recorder.add(some_end(attempts=attempts, exclusions=[exclusion] * 2, target="p/3"))
    recorder.add(some_end(status=429, outcome="refused", error_code="rate_limited", queued_ms=20.0))
    recorder.add(some_end(status=0, outcome="client_cancelled", error_code="client_closed_request"))
    figures = figures_of(recorder.counts)
    assert samples(figures, "pilotage_fallbacks") == {("chat", "timeout"): 1, ("chat", "throttled"): 1}
    assert samples(figures, "pilotage_exclusions") == {("chat", "health"): 2}
    assert samples(figures, "pilotage_refusals") == {("rate_limited",): 1}
    assert samples(figures, "pilotage_queued_seconds") == {("chat",): [0, 1, *[0] * 13, 20.0]}
    assert samples(figures, "pilotage_exchanges") == {
        ("chat", "chat", "success", "2xx"): 1,
        ("chat", "chat", "refused", "4xx"): 1,
        ("chat", "chat", "client_cancelled", "none"): 1,
    }


def test_what_workers_say_adds_up_and_one_that_takes_the_place_of_another_counts_on(tmp_path: Path) -> None:
    rng = random.Random(3)
    together, recorders = Recorder(max_names=100), [Recorder(max_names=100) for _ in range(3)]
    for number in range(600):
        record = odd(rng)
        together.add(record)
        recorders[number % 3].add(record)
    boards = [Board(tmp_path, server=1, number=number) for number in range(3)]
    for board, recorder in zip(boards, recorders, strict=True):
        assert board.open() is None
        board.say(Shared(pid=1, at=5.0, counts=recorder.counts, gauges=Gauges(out={("g", "t", "denied"): 1})))
    own = boards[0].open()
    assert own is not None
    assert Recorder(max_names=100, counts=own.counts).counts == recorders[0].counts
    others = boards[0].others()
    assert [shared.gauges.out for shared in others] == [{("g", "t", "denied"): 1}] * 2
    total = merged([own.counts, *(shared.counts for shared in others)])
    for name in Counts.__struct_fields__:
        found, expected = getattr(total, name), getattr(together.counts, name)
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert [round(each, 6) for each in flat(found[key])] == [round(each, 6) for each in flat(value)]


def flat(value: Any) -> list[float]:
    return value if isinstance(value, list) else [value]


def test_a_board_forgets_servers_that_are_gone_and_passes_over_files_it_cannot_read(tmp_path: Path) -> None:
    gone = Board(tmp_path, server=2**22 + 1, number=0)  # no process has such a number
    gone.open()
    gone.say(Shared(pid=1, at=5.0, counts=Counts(), gauges=Gauges()))
    board = Board(tmp_path, server=1, number=0)
    assert board.open() is None
    assert [path.name for path in tmp_path.iterdir()] == ["1"]
    (tmp_path / "1/1.msgpack").write_bytes(b"\xc1 nothing")
    assert board.others() == []


def test_a_worker_that_is_dead_or_silent_does_not_stand_as_it_said() -> None:
    said = Shared(pid=1, at=100.0, counts=Counts(), gauges=Gauges())
    assert stands(said, now=109.9)
    assert not stands(said, now=110.0)
    assert not stands(msgspec.structs.replace(said, pid=2**22 + 1), now=100.0)


class Told(Collector):
    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def describe(self) -> Any:
        return []

    def collect(self) -> Any:
        return families(self._figures)


def test_every_metric_is_documented_as_it_is_and_no_other() -> None:
    rows = re.findall(r"^\| `(pilotage_\w+)` \| (\w+) \| (.*?) \| (.*) \|$", DOCS.read_text(), re.MULTILINE)
    expected = [
        (metric.shown, metric.kind, ", ".join(f"`{label}`" for label in metric.labels) or "none", metric.meaning)
        for metric in METRICS
    ]
    assert rows == expected


def test_ages_are_left_out_while_there_is_nothing_to_be_old() -> None:
    text = generate_latest(registry_of(figures_of())).decode()
    ages = [line for line in text.splitlines() if re.match(r"pilotage_\w*(age|lag|pending|unread)\w* ", line)]
    assert ages == ["pilotage_event_loop_lag_seconds 0.0"]
    gauges = [Gauges(revision=4, revision_created=900.0, checked_at=999.0), Gauges(revision=3, revision_created=800.0, checked_at=990.0)]  # fmt: skip
    known = figures_of(gauges=gauges, progress=Progress(read_at=995.0, rolled_at=700.0, pending_hours=2))
    text = generate_latest(registry_of(known)).decode()
    told = dict(re.findall(r"^(pilotage_\w*(?:age|revision|pending)\w*) (.*)$", text, re.MULTILINE))
    assert told == {
        "pilotage_revision": "3.0",
        "pilotage_revision_age_seconds": "200.0",
        "pilotage_configuration_age_seconds": "10.0",
        "pilotage_rollup_pending_hours": "2.0",
        "pilotage_rollup_age_seconds": "300.0",
        "pilotage_reports_age_seconds": "5.0",
    }


def registry_of(figures: Figures) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Told(figures))
    return registry
