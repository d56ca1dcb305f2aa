"""More than one process can do: what is served keeps its rate, what is not is told at once, and callers do not pay for each other."""

import asyncio
import contextlib
import json
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from reports.core.record import EndRecord
from tests.e2e.wire import Reply, connected, finish, head, read_reply, request, reset
from tests.support.load import Clients, Outcome, clients, percentile
from tests.support.loops import run
from tests.support.processes import GatewayProcess, SimulatorProcess, StartGateway, StartSimulator

pytestmark = pytest.mark.e2e

CHAT = "/v1/chat/completions"
SERVERS = ("uvicorn", "daphne")
CALLERS = ("alice", "bob", "carol", "flood")
PLACES = 8
QUEUE_SECONDS = 1.0
SETTLE_SECONDS = 5.0
WARM_UP_SECONDS = 1.0

as_written_too = pytest.mark.parametrize(
    "seconds", [4.0, pytest.param(30.0, marks=[pytest.mark.full, pytest.mark.timeout(300)])]
)
"""Scaled down in every run, and as long as it is written."""


def configuration(*base_urls: str, **group: Any) -> str:
    """One group `g` with a target at each of these addresses, the first to be preferred."""
    providers = {
        f"p{number}": {"base_url": base_url, "dialect": "openai-chat", "max_in_flight": 10_000}
        for number, base_url in enumerate(base_urls)
    }
    targets = [{"provider": name, "model": "m", "weight": 10} for name in providers]
    models = {"g": {"strategy": "failover", "targets": targets} | group}
    callers = {name: {"allow": ["g"]} for name in CALLERS}
    return json.dumps({"version": 1, "providers": providers, "models": models, "callers": callers})


@dataclass(slots=True)
class Scene:
    gateway: GatewayProcess
    tokens: dict[str, str]

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.gateway.url.removeprefix("http://").split(":")
        return host, int(port)

    def fields(self, caller: str = "alice") -> list[tuple[str, str]]:
        return [("Authorization", f"Bearer {self.tokens[caller]}")]

    def ask(self, caller: str = "alice", **more: Any) -> Reply:
        body = {"model": "g", "messages": [{"role": "user", "content": "hi"}], **more}
        return request(self.address, "POST", CHAT, headers=self.fields(caller), body=body)

    def sent(self, connection: socket.socket, caller: str = "alice", **more: Any) -> None:
        """Sends a request and does not wait for its answer."""
        body = json.dumps({"model": "g", "messages": [{"role": "user", "content": "hi"}], **more}).encode()
        fields = [("Host", "gateway"), ("Content-Length", str(len(body))), *self.fields(caller)]
        connection.sendall(head("POST", CHAT, fields) + body)

    def ends(self) -> list[EndRecord]:
        return [record for record in self.gateway.records() if isinstance(record, EndRecord)]

    def until_ended(self, count: int) -> list[EndRecord]:
        self.gateway.until(lambda: len(self.ends()) >= count, what=f"{count} end records", seconds=10)
        return self.ends()


def scene(
    start_gateway: StartGateway,
    text: str,
    *,
    server: str = "uvicorn",
    callers: tuple[str, ...] = CALLERS,
    **bounds: Any,
) -> Scene:
    """A gateway with these bounds (`max_in_flight=...`), and a token for each caller."""
    environment = {f"PILOTAGE_{name.upper()}": str(value) for name, value in bounds.items()}
    gateway = start_gateway(text, server=server, environment=environment)
    tokens = {name: gateway.token(name) for name in callers}
    for token in tokens.values():
        gateway.until_accepted(token)
    return Scene(gateway, tokens)


def simulator_with(start_simulator: StartSimulator, **behaviour: Any) -> SimulatorProcess:
    return start_simulator(
        **({"latency_ms": 0, "jitter_ms": 0, "tokens_per_second": 0, "output_tokens": 5} | behaviour)
    )


def served(outcomes: list[Outcome]) -> list[Outcome]:
    return [outcome for outcome in outcomes if outcome.status == 200]


# -- three times as much as there is room for


@as_written_too
def test_three_times_the_capacity_is_served_at_the_peaks_rate_and_the_rest_refused_at_once(
    seconds: float, start_simulator: StartSimulator, start_gateway: StartGateway
) -> None:
    simulator = simulator_with(start_simulator, latency_ms=300)
    at = scene(
        start_gateway,
        configuration(simulator.base_url),
        max_in_flight=PLACES,
        max_queued=1000,
        queue_seconds=QUEUE_SECONDS,
    )

    async def main() -> tuple[float, list[Outcome], float, list[Outcome], list[Outcome]]:
        async with clients(at.address, at.tokens) as crowd:
            calm = [await crowd.ask("alice") for _ in range(5)]
            full = await crowd.in_a_row("alice", clients=PLACES, seconds=max(2.0, seconds / 4))
            peak = rate(full)
            began = time.monotonic()
            load = [crowd.steadily(name, per_second=peak, seconds=seconds) for name in ("alice", "bob", "carol")]
            crowded = [outcome for part in await asyncio.gather(*load) for outcome in part]
            during = [o for o in served(crowded) if began + WARM_UP_SECONDS < o.ended_at <= began + seconds]
            goodput = len(during) / (seconds - WARM_UP_SECONDS)
            await asyncio.sleep(QUEUE_SECONDS if seconds < 30 else SETTLE_SECONDS)
            after = [await crowd.ask("bob") for _ in range(5)]
            return peak, crowded, goodput, calm, after

    peak, crowded, goodput, calm, after = run(main(), within=seconds * 2 + 60)
    refused = [outcome for outcome in crowded if outcome.status != 200]
    records = [end for end in at.until_ended(len(crowded)) if end.outcome == "refused"]
    at_once = [end for end in records if end.queued_ms == 0]
    decided_ms = percentile((end.duration_ms for end in at_once), 0.99)
    print(
        f"\npeak {peak:.1f}/s, goodput {goodput:.1f}/s ({goodput / peak:.0%}), served {len(served(crowded))}, refused "
        f"{len(refused)}, of them {len(at_once)} at once, decided within {decided_ms:.2f} ms (p99), "
        f"seen within {1000 * percentile((outcome.seconds for outcome in refused), 0.5):.1f} ms (p50)"
    )
    assert goodput >= 0.9 * peak
    assert {(outcome.status, outcome.code) for outcome in refused} == {(503, "overloaded")}
    assert all(outcome.retry_after in ("1", "2") for outcome in refused)
    assert len(refused) >= 0.4 * len(crowded)
    assert len(at_once) >= 0.95 * len(records)
    assert decided_ms <= 50
    assert all(end.queued_ms <= 1000 * QUEUE_SECONDS + 250 for end in at.ends())
    assert [outcome.status for outcome in calm + after] == [200] * 10
    assert percentile((o.seconds for o in after), 0.5) <= 1.5 * percentile((o.seconds for o in calm), 0.5)
    assert all(end.queued_ms == 0 for end in at.ends()[-5:])


def rate(outcomes: list[Outcome]) -> float:
    """Answers a second, from the first to the last."""
    ended = sorted(outcome.ended_at for outcome in served(outcomes))
    return (len(ended) - PLACES) / (ended[-1] - ended[PLACES - 1])


# -- one caller with too much


@as_written_too
def test_a_caller_at_ten_times_its_share_costs_the_others_nothing(
    seconds: float, start_simulator: StartSimulator, start_gateway: StartGateway
) -> None:
    simulator = simulator_with(start_simulator, latency_ms=100)
    at = scene(
        start_gateway,
        configuration(simulator.base_url),
        max_in_flight=PLACES,
        max_queued=2 * PLACES,
        queue_seconds=QUEUE_SECONDS,
    )
    share = PLACES / 0.1 / len(CALLERS)

    async def main() -> dict[str, list[Outcome]]:
        async with clients(at.address, at.tokens) as crowd:
            loads = {name: 10 * share if name == "flood" else 0.6 * share for name in CALLERS}
            parts = await asyncio.gather(
                *(crowd.steadily(name, per_second=load, seconds=seconds) for name, load in loads.items())
            )
            return dict(zip(loads, parts, strict=True))

    outcomes = run(main(), within=seconds * 2 + 60)
    others = [outcome for name in CALLERS if name != "flood" for outcome in outcomes[name]]
    flood = outcomes["flood"]
    waited = [end.queued_ms for end in at.until_ended(len(others) + len(flood)) if end.caller != "flood"]
    print(
        f"\nothers: {len(served(others))} of {len(others)} served, waited {percentile(waited, 0.5):.0f} ms (p50), "
        f"{percentile(waited, 0.99):.0f} ms (p99); flood: {len(served(flood))} of {len(flood)} served"
    )
    assert len(served(others)) >= 0.999 * len(others)
    refused = Counter((outcome.status, outcome.code) for outcome in flood if outcome.status != 200)
    assert refused.total() >= 0.5 * len(flood)
    assert refused[429, "caller_over_share"] >= 0.8 * refused.total()
    assert all(outcome.retry_after is not None for outcome in flood if outcome.status != 200)
    assert len(served(flood)) >= 0.5 * share * seconds  # what others leave free is not wasted


class Provider:
    """Answers `bad` with 400, begins a stream (`silent`: without content) and never ends it, and answers everything else after `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._open: dict[asyncio.Task[None] | None, asyncio.StreamWriter] = {}

    async def close(self) -> None:
        for writer in self._open.values():
            writer.close()
        await asyncio.gather(*(task for task in self._open if task is not None))

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open[asyncio.current_task()] = writer
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                lines = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
                length = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
                asked = json.loads(await reader.readexactly(length))
                text = asked["messages"][0]["content"]
                if text == "bad":
                    writer.write(answer_of(400, {"error": {"message": "no", "type": "invalid_request_error"}}))
                elif asked.get("stream"):
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
                    chunk = {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": None}]}
                    if text != "silent":
                        writer.write(b"data: %s\n\n" % json.dumps(chunk).encode())
                    await reader.read()
                    break
                else:
                    await asyncio.sleep(self.seconds)
                    choice = {"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}
                    usage = {"prompt_tokens": 1, "completion_tokens": 1}
                    writer.write(answer_of(200, {"choices": [choice], "usage": usage}))
        writer.close()


def answer_of(status: int, content: dict[str, Any]) -> bytes:
    body = json.dumps(content).encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


@contextlib.asynccontextmanager
async def provider(seconds: float) -> AsyncIterator[str]:
    answering = Provider(seconds)
    server = await asyncio.start_server(answering, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        await answering.close()


POLICY: dict[str, Any] = {
    "score_terms": [
        {"name": "sure", "expression": "reliability_score"},
        {"name": "fast", "expression": "latency_score", "share": 0.3},
    ],
    "affinity": {"enabled": False},
    # One answer tells of a target: the slow one is known before the faults begin.
    "prior_strength": 0,
    "near_tie": 0,
}

FAULTS = (
    "bad requests",
    "cancels after content",
    "cancels before content",
    "cancels after more than any answer takes",
)
"""What one caller does."""


@pytest.mark.parametrize("fault", FAULTS)
def test_one_callers_faults_do_not_move_anothers_routing(fault: str, start_gateway: StartGateway) -> None:
    asked = 60

    async def main() -> list[EndRecord]:
        async with provider(0.15) as near, provider(0.45) as far:
            text = configuration(near, far, strategy="dynamic_score", routing_policy={"dynamic_score": POLICY})
            at = await asyncio.to_thread(scene, start_gateway, text, callers=("alice", "flood"))
            async with clients(at.address, at.tokens) as crowd:
                await ask(crowd)
                ended = asyncio.Event()
                trouble = [asyncio.ensure_future(make_trouble(at, crowd, ended)) for _ in range(8)]
                await ask(crowd)
                ended.set()
                made = sum(await asyncio.gather(*trouble))
            return await asyncio.to_thread(at.until_ended, 2 * asked + made)

    async def ask(crowd: Clients) -> None:
        for _ in range(asked // 3):
            outcomes = await asyncio.gather(*(crowd.ask("alice") for _ in range(3)))
            assert [outcome.status for outcome in outcomes] == [200, 200, 200]

    async def make_trouble(at: Scene, crowd: Clients, ended: asyncio.Event) -> int:
        made = 0
        while not ended.is_set():
            if fault == "bad requests":
                outcome = await crowd.ask("flood", messages=[{"role": "user", "content": "bad"}])
                assert outcome.status == 400
                await asyncio.sleep(0.01)
            elif fault == "cancels after content":
                await leave_a_stream(at, "hi", after=0.03)
            else:
                await leave_a_stream(at, "silent", after=0.03 if fault == "cancels before content" else 0.4)
            made += 1
        return made

    ends = run(main(), within=110)
    targets = [end.target for end in ends if end.caller == "alice"]
    trouble = [end for end in ends if end.caller == "flood"]
    before, during = targets[asked // 2 : asked], targets[asked:]
    shares = [part.count("p0/m") / len(part) for part in (before, during)]
    print(f"\n{len(trouble)} {fault}: the preferred target had {shares[0]:.0%} before and {shares[1]:.0%} during it")
    assert len(targets) == 2 * asked
    assert len(trouble) >= 10
    assert {end.outcome for end in trouble} == {"refused" if fault == "bad requests" else "client_cancelled"}
    assert "p0/m" in {end.target for end in trouble}
    assert shares[0] >= 0.95
    assert abs(shares[0] - shares[1]) < 0.05


async def leave_a_stream(at: Scene, text: str, *, after: float) -> None:
    """Asks for a stream, waits for its first content if there will be one, and goes `after` seconds later."""
    reader, writer = await asyncio.open_connection(*at.address)
    body = json.dumps({"model": "g", "messages": [{"role": "user", "content": text}], "stream": True}).encode()
    fields = [("Host", "gateway"), ("Content-Length", str(len(body))), *at.fields("flood")]
    writer.write(head("POST", CHAT, fields) + body)
    if text != "silent":
        await reader.readuntil(b'"content"')
    await asyncio.sleep(after)
    writer.close()


# -- the queue, through a server


@pytest.mark.parametrize("server", SERVERS)
def test_a_client_that_hangs_up_in_the_queue_frees_its_place_at_once(
    server: str, start_simulator: StartSimulator, start_gateway: StartGateway
) -> None:
    simulator = simulator_with(start_simulator, hang=True)
    at = scene(
        start_gateway,
        configuration(simulator.base_url),
        server=server,
        callers=("alice",),
        max_in_flight=1,
        max_queued=1,
        queue_seconds=60,
    )
    ways: dict[str, Callable[[socket.socket], None]] = {"FIN": finish, "RST": reset, "close": socket.socket.close}
    took = {}
    with connected(at.address) as first, connected(at.address) as last:
        at.sent(first)
        at.gateway.until(lambda: simulator.counters()["in_flight"] == 1, what="the first upstream call")
        for number, (name, leave) in enumerate(ways.items()):
            with connected(at.address) as waiting:
                at.sent(waiting, padding="x" * 300_000)
                time.sleep(0.5)  # nothing tells outside that a request waits
                leave(waiting)
                left_at = time.monotonic()
                at.until_ended(number + 1)
                took[name] = time.monotonic() - left_at
        at.sent(last)
        time.sleep(0.5)
        simulator.set(hang=False)
        finish(first)
        assert read_reply(last).status == 200
    assert all(seconds < 1.0 for seconds in took.values()), took
    ends = at.until_ended(5)
    assert [(end.outcome, end.status, end.attempts) for end in ends[:3]] == [("client_cancelled", 499, [])] * 3
    assert all(0 < end.queued_ms <= end.duration_ms for end in ends[:3])
    assert simulator.counters()["requests"] == 2
    assert next(end for end in ends if end.outcome == "success").queued_ms > 0


def test_a_refusal_comes_before_the_body_and_after_the_token(
    start_simulator: StartSimulator, start_gateway: StartGateway
) -> None:
    simulator = simulator_with(start_simulator, hang=True)
    at = scene(start_gateway, configuration(simulator.base_url), callers=("alice",), max_in_flight=1, max_queued=0)
    with connected(at.address) as first:
        at.sent(first)
        at.gateway.until(lambda: simulator.counters()["in_flight"] == 1, what="the first upstream call")
        codes = {}
        for who, fields in {"known": at.fields(), "unknown": [("Authorization", "Bearer plt_no")]}.items():
            with connected(at.address) as connection:
                connection.settimeout(5)
                connection.sendall(head("POST", CHAT, [("Host", "gateway"), ("Content-Length", "20000000"), *fields]))
                reply = read_reply(connection)
                codes[who] = (reply.status, reply.json["error"]["code"], reply.header("retry-after"))
        models = request(at.address, "GET", "/v1/models", headers=at.fields())
        ready = request(at.address, "GET", "/readyz")
    assert codes == {"known": (503, "overloaded", "1"), "unknown": (401, "invalid_api_key", None)}
    assert (models.status, ready.status) == (200, 200)


# -- memory


def test_bodies_held_are_bounded_and_one_caller_leaves_room_for_another(
    start_simulator: StartSimulator, start_gateway: StartGateway
) -> None:
    simulator = simulator_with(start_simulator, hang=True)
    at = scene(
        start_gateway,
        configuration(simulator.base_url),
        callers=("alice", "bob"),
        max_request_bytes="2MiB",
        max_body_bytes_held="4MiB",
    )
    with contextlib.ExitStack() as stack:

        def hold(caller: str, size: int) -> None:
            before = simulator.counters()["in_flight"]
            at.sent(stack.enter_context(connected(at.address)), caller, padding="x" * size)
            at.gateway.until(lambda: simulator.counters()["in_flight"] == before + 1, what="another upstream call")

        hold("alice", 1_900_000)
        more = at.ask("alice", padding="x" * 400_000)
        hold("bob", 900_000)
        too_much = at.ask("bob", padding="x" * 1_500_000)
    at.until_ended(4)
    simulator.set(hang=False)
    again = at.ask("bob", padding="x" * 1_500_000)
    assert [(reply.status, reply.header("retry-after")) for reply in (more, too_much)] == [(503, "1"), (503, "1")]
    assert "this caller's requests" in more.json["error"]["message"]
    assert "are at their bound of memory" in too_much.json["error"]["message"]
    assert again.status == 200


def test_a_process_over_its_bound_of_memory_serves_one_request_at_a_time(
    start_simulator: StartSimulator, start_gateway: StartGateway
) -> None:
    simulator = simulator_with(start_simulator, hang=True)
    at = scene(start_gateway, configuration(simulator.base_url), callers=("alice",), max_memory_bytes="1MiB")
    with connected(at.address) as first:
        at.sent(first)
        at.gateway.until(lambda: simulator.counters()["in_flight"] == 1, what="the first upstream call")
        refused = at.ask()
        ready = request(at.address, "GET", "/readyz")
    at.until_ended(2)
    simulator.set(hang=False)
    assert (refused.status, refused.json["error"]["code"]) == (503, "overloaded")
    assert "at its bound of memory" in refused.json["error"]["message"]
    assert (ready.status, at.ask().status) == (200, 200)
