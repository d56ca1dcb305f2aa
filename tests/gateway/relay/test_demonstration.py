"""The demonstration: real simulators behind a scored group. Traffic leaves a target that grows slow and then fails, no
client notices, and it comes back by trial requests once it has recovered.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import pytest

from reports.core.record import EndRecord
from routing.core.catalog import Group, HealthPolicy, ProviderTimeouts, ScorePolicy, ThresholdPolicy
from tests.support.documents import some_group, some_provider, some_target
from tests.support.loops import in_loop
from tests.support.processes import SimulatorProcess, StartSimulator
from tests.support.relays import Bench, relaying

pytestmark = pytest.mark.e2e

REQUESTS_PER_SECOND = 20.0
LATENCIES_MS = {"swift": 50.0, "steady": 500.0, "slack": 600.0}
SLOW_MS = 3_000.0
FIRST_BYTE_S = 1.2
"""The limit that the slow target breaks."""

Simulators = dict[str, SimulatorProcess]


@pytest.fixture
def simulators(start_simulator: StartSimulator) -> Simulators:
    """Three providers that differ in nothing but the time to their first word."""
    same = {"jitter_ms": 0.0, "tokens_per_second": 200.0, "output_tokens": 20}
    return {name: start_simulator(name=name, latency_ms=latency, **same) for name, latency in LATENCIES_MS.items()}


def demo(simulators: Simulators, policy: ScorePolicy, *, first_byte_s: float, weights: dict[str, float]) -> Group:
    """Everything else as it is by default, but for trial requests that a test can wait for."""
    targets = [
        some_target(
            name,
            provider=some_provider(
                name, base_url=simulator.base_url, timeouts=ProviderTimeouts(first_byte_s=first_byte_s)
            ),
            prices=(0.5, 1.5),
            weight=weights[name],
        )
        for name, simulator in simulators.items()
    ]
    return some_group(targets, name="g", policy=policy, health=HealthPolicy(probe_first_s=0.5, probe_max_s=1.0))


@dataclass(slots=True)
class Traffic:
    """A steady stream of requests, each of a conversation of its own."""

    bench: Bench
    sent: int = 0
    failures: int = 0

    async def send_one(self) -> None:
        self.sent += 1
        messages = [{"role": "user", "content": f"conversation {self.sent}"}]
        reply = await self.bench.post("/v1/chat/completions", {"model": "g", "messages": messages, "stream": True})
        whole = reply.body.endswith(b"data: [DONE]\n\n") and b'"error"' not in reply.body
        self.failures += not (reply.status == 200 and whole)

    async def flow(self, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as requests:
            while not stop.is_set():
                requests.create_task(self.send_one())
                await asyncio.sleep(1 / REQUESTS_PER_SECOND)

    def since(self, at: float, *, until: float = float("inf")) -> list[EndRecord]:
        """Exchanges that are over, of those that began in this time (Unix seconds)."""
        return [end for end in self.bench.kept.ends if at <= end.at < until]

    async def until(self, condition: Callable[[], bool], what: str, *, within_s: float) -> None:
        give_up_at = time.monotonic() + within_s
        while not condition():
            chosen = [(end.mode, end.order[0]) for end in self.bench.kept.ends[-20:]]
            assert time.monotonic() < give_up_at, f"not within {within_s} s: {what}; the last choices: {chosen}"
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def flowing(group: Group) -> AsyncIterator[Traffic]:
    async with relaying(group) as bench:
        traffic, stop = Traffic(bench), asyncio.Event()
        flow = asyncio.ensure_future(traffic.flow(stop))
        try:
            yield traffic
        finally:
            stop.set()
            await flow


async def change(simulator: SimulatorProcess, **behaviour: float) -> float:
    """From when on it behaves so (Unix seconds)."""
    await asyncio.to_thread(simulator.set, **behaviour)
    return time.time()


def share(ends: list[EndRecord], target: str) -> float:
    """Of the choices that were no trial requests, how many began with this target."""
    chosen = [end.order[0] for end in ends if end.mode != "probe"]
    return chosen.count(target) / len(chosen)


@in_loop
async def test_traffic_leaves_a_winner_that_slows_down_and_fails_and_returns_when_it_has_recovered(simulators):
    swift = simulators["swift"]
    group = demo(simulators, ScorePolicy(), first_byte_s=FIRST_BYTE_S, weights=dict.fromkeys(LATENCIES_MS, 1.0))
    async with flowing(group) as traffic:
        ends = traffic.bench.kept.ends

        def wins() -> bool:
            recent = ends[-30:]
            return (
                len(recent) == 30
                and all(end.mode in ("score", "probe") for end in recent)
                and share(recent, "swift") > 0.7
            )

        await traffic.until(wins, "the fastest wins", within_s=10)

        slowed_at = await change(swift, latency_ms=SLOW_MS)
        await asyncio.sleep(FIRST_BYTE_S + 2.0)
        gone_after = slowed_at + FIRST_BYTE_S + 0.5
        assert share(traffic.since(gone_after), "swift") == 0.0
        assert {e.reason for e in traffic.since(gone_after)[-1].exclusions} == {"excluded_consecutive"}

        failing_at = await change(swift, latency_ms=5.0, error_rate=1.0)
        await asyncio.sleep(2.5)
        failing = traffic.since(failing_at)
        probes = [end for end in failing if end.mode == "probe"]
        assert share(failing, "swift") == 0.0
        assert 1 <= len(probes) <= 4
        assert {end.outcome for end in failing} == {"success"}

        recovered_at = await change(swift, latency_ms=LATENCIES_MS["swift"], error_rate=0.0)

        def back() -> bool:
            return any(end.mode == "score" and end.order[0] == "swift" for end in traffic.since(recovered_at))

        await traffic.until(back, "ordinary requests for the recovered target", within_s=8)
        first = next(end for end in traffic.since(recovered_at) if end.mode == "score" and end.order[0] == "swift")
        good = [end for end in traffic.since(recovered_at) if end.mode == "probe" and end.target == "swift"]
        assert len(good) == 2
        assert max(end.at for end in good) < first.at
        await traffic.until(wins, "the recovered target wins again", within_s=15)
    assert traffic.failures == 0
    assert {end.outcome for end in ends} == {"success"}
    assert len(ends) == traffic.sent > 150


@in_loop
async def test_where_scores_may_move_nothing_a_slow_target_within_its_limits_keeps_every_request(simulators):
    limits = ThresholdPolicy(max_error_rate=0.2, max_timeout_rate=0.2, max_p95_s=10.0, max_ttfb_s=10.0)
    policy = ScorePolicy(adjustment=0.0, thresholds=limits)
    weights = {"swift": 3.0, "steady": 2.0, "slack": 1.0}
    async with flowing(demo(simulators, policy, first_byte_s=60.0, weights=weights)) as traffic:
        ends = traffic.bench.kept.ends
        await traffic.until(lambda: sum(end.mode == "score" for end in ends) >= 30, "scored choices", within_s=15)
        slowed_at = await change(simulators["swift"], latency_ms=800.0)
        await asyncio.sleep(3.0)
    slow = traffic.since(slowed_at)
    assert len(slow) > 30
    assert {end.mode for end in slow} == {"score"}
    assert {tuple(end.order) for end in slow} == {("swift", "steady", "slack")}
    assert {end.target for end in ends} == {"swift"}
    assert traffic.failures == 0
