"""A gateway under mixed faults for a while: what it holds must not grow, and what it says must stay true.

    python -m bench.soak --seconds 600 --workers 1 --rate 60 --folder out/soak

One gateway, three simulators whose faults change all the time, one client in five that leaves, configurations that are
published and tokens that are issued and revoked meanwhile. Everything that is not as it must be is printed, and the exit
code is 1.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import re
import shutil
import statistics
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from socket import SO_LINGER, SOL_SOCKET
from typing import Any

from bench.machine import memory_mib, plain_environment, running

ROOT = Path(__file__).resolve().parent.parent
SIMULATORS = 3
GROUPS = ("even", "ordered", "scored")
CALLERS = ("ann", "ben", "cid")
CONVERSATIONS = 300
CANCELLED = 0.2
"""The share of clients that leave before their answer is whole."""
FAULTS_EVERY_S, PUBLISH_EVERY_S, TOKENS_EVERY_S = 0.7, 3.0, 1.5
KNOWN_AFTER_S = 2.0
"""In which every worker must know of a token that was issued or revoked."""
PATIENCE_S = 30.0
"""How long a client waits for more of an answer, and the end for what is still under way."""
GROWTH_MIB_PER_HOUR = 60.0
"""Of the slope over the later half. Ten minutes may thus end 10 MiB higher: Python's allocator settles slowly."""
SETTLED_S = 240.0
"""A shorter run says nothing of slopes: buffers and caches are still filling."""
IDLE_CLOSED_S = 120.0
"""In which connections to providers that nobody uses must be closed."""
COMPLAINTS = ("Traceback", "was destroyed", "never retrieved", "never awaited", "failed in the gateway")

MESSAGES, CHAT, COUNT = "/v1/messages", "/v1/chat/completions", "/v1/messages/count_tokens"


@dataclass(slots=True)
class Sample:
    """What the gateway's processes held together at one moment."""

    at: float
    memory_mib: float
    sockets: int = 0
    """Without those to providers."""
    connections: int = 0
    """To providers, those that are kept for the next request included."""
    lent: int = 0
    """To providers, with a request on them."""
    tasks: int = 0
    in_flight: int = 0
    queued: int = 0
    held_bytes: int = 0
    attempts: int = 0
    """Under way by what is remembered of targets."""


@dataclass(slots=True)
class Told:
    """What clients saw, and all that was wrong with it."""

    answers: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    exchanges: int = 0
    """Requests that the gateway has to have a record of."""


# -- what is judged


def problems_of(samples: Sequence[Sample], before: Sample, after: Sample) -> list[str]:
    """`before` and `after`: with nothing under way, before the load and when its end has settled."""
    found = [
        f"{name} held at the end: {count}"
        for name in ("in_flight", "queued", "held_bytes", "attempts", "lent")
        if (count := getattr(after, name))
    ]
    found += [
        f"{name}: {getattr(before, name)} before, {getattr(after, name)} at the end"
        for name in ("tasks", "sockets")
        if getattr(after, name) > getattr(before, name)
    ]
    per_hour = slope_per_hour(samples)
    if per_hour is not None and per_hour > GROWTH_MIB_PER_HOUR:
        found.append(f"memory grows by {per_hour:.0f} MiB an hour")
    return found


def slope_per_hour(samples: Sequence[Sample]) -> float | None:
    """MiB, by least squares over the later half; `None`: the run was too short to tell."""
    if len(samples) < 4 or samples[-1].at - samples[0].at < SETTLED_S:
        return None
    later = samples[len(samples) // 2 :]
    return statistics.linear_regression([each.at for each in later], [each.memory_mib for each in later]).slope * 3600


# -- a client


class Left(Exception):
    """This client has gone, as it meant to."""


class Client:
    """Sends requests of all kinds, and looks at what comes back."""

    def __init__(self, port: int, chance: random.Random, told: Told) -> None:
        self._port = port
        self._chance = chance
        self._told = told
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, token: str, *, good: bool | None, still_good: Callable[[], bool]) -> None:
        """`good`: whether the token is known to all (`False`: refused by all); `None`: it has just changed.

        `still_good`: whether that is so yet.
        """
        chance = self._chance
        path, stream = chance.choices(
            ((CHAT, False), (CHAT, True), (MESSAGES, False), (MESSAGES, True), (COUNT, False), ("/v1/models", False)),
            (25, 30, 10, 20, 5, 10),
        )[0]
        kind = chance.choices(("plain", "large", "unknown", "broken", "slow"), (86, 3, 4, 4, 3))[0]
        if path == "/v1/models":
            kind = "plain"
        body = b"" if path == "/v1/models" else self._body(stream, kind)
        method = "GET" if path == "/v1/models" else "POST"
        fields = f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Length: {len(body)}\r\n\r\n"
        leaves_after = chance.uniform(0, 0.5) if chance.random() < CANCELLED else None
        label = f"{path}{' stream' if stream else ''}"
        if path != "/v1/models":
            self._told.exchanges += 1
        reader, writer = await self._connection()
        kept = False
        try:
            async with asyncio.timeout(leaves_after):
                writer.write(fields.encode())
                if kind == "slow":
                    for at in range(0, len(body), 40):
                        writer.write(body[at : at + 40])
                        await asyncio.sleep(0.02)
                else:
                    writer.write(body)
                status, answer, whole, kept = await _answer(reader)
            self._judge(label, kind, good if still_good() else None, stream and status == 200, status, answer, whole)
        except TimeoutError:
            if leaves_after is None:
                self._told.problems.append(f"{label}: no more of the answer within {PATIENCE_S:g} s")
            else:
                self._told.answers["left"] += 1
                if chance.random() < 0.5:
                    writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            self._told.problems.append(
                f"{label} {kind}: the connection ended without an answer ({type(error).__name__})"
            )
        finally:
            if kept and len(self._idle) < 32:
                self._idle.append((reader, writer))
            else:
                writer.close()

    def close(self) -> None:
        for _, writer in self._idle:
            writer.close()
        self._idle.clear()

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self._idle and self._chance.random() < 0.7:
            reader, writer = self._idle.pop()
            if not reader.at_eof() and not writer.is_closing():
                return reader, writer
            writer.close()
        return await asyncio.open_connection("127.0.0.1", self._port)

    def _body(self, stream: bool, kind: str) -> bytes:
        chance = self._chance
        text = f"conversation {chance.randrange(CONVERSATIONS)}" + (" x" * 600_000 if kind == "large" else "")
        group = "nobody" if kind == "unknown" else chance.choice(GROUPS)
        content = {"model": group, "max_tokens": 40, "stream": stream, "messages": [{"role": "user", "content": text}]}
        return json.dumps(content).encode()[: -9 if kind == "broken" else None]

    def _judge(
        self, label: str, kind: str, good: bool | None, stream: bool, status: int, answer: bytes, whole: bool
    ) -> None:
        told = self._told
        told.answers[f"{status}"] += 1
        if good is not None and (status == 401) == good:
            told.problems.append(f"{label}: {status} with a {'good' if good else 'revoked'} token: {answer[:300]!r}")
        if b"internal_error" in answer:
            told.problems.append(f"{label}: {answer[:300]!r}")
        elif stream:
            complete = b"data: [DONE]" in answer or b'"message_stop"' in answer
            if whole and not complete and b'"error"' not in answer:
                told.problems.append(f"{label}: a stream ended as if it were whole: {answer[-300:]!r}")
            if not whole and complete:
                told.problems.append(f"{label}: a whole answer was broken off: {answer[-300:]!r}")
        elif not whole:
            told.problems.append(f"{label}: half an answer of status {status}")
        elif status != 401 and kind in ("unknown", "broken") and status not in (400, 404, 429, 503):
            told.problems.append(f"{label}: {status} for a request that is {kind}")


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes, bool, bool]:
    """Status, body, whether it came to its end, and whether its connection can serve again."""
    async with asyncio.timeout(PATIENCE_S):
        head = await reader.readuntil(b"\r\n\r\n")
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if line)
    keep = fields.get(b"connection") != b"close"
    status = int(head[9:12])
    try:
        async with asyncio.timeout(PATIENCE_S):
            if b"content-length" in fields:
                return status, await reader.readexactly(int(fields[b"content-length"])), True, keep
            pieces = []
            while size := int(await reader.readuntil(b"\r\n"), 16):
                pieces.append((await reader.readexactly(size + 2))[:-2])
            await reader.readexactly(2)
            return status, b"".join(pieces), True, keep
    except (asyncio.IncompleteReadError, ConnectionError):
        return status, b"".join(pieces) if b"content-length" not in fields else b"", False, False


# -- the gateway and what it stands between


def configuration(origins: Sequence[str], *, edition: int) -> bytes:
    """Three groups over three providers of each dialect; prices, weights and an unused group change with the edition."""
    providers: dict[str, Any] = {}
    targets = []
    for number, origin in enumerate(origins):
        for dialect in ("openai-chat", "anthropic"):
            name = f"{dialect}-{number}"
            providers[name] = {
                "base_url": f"{origin}/v1",
                "dialect": dialect,
                "transport": "httpx" if number == SIMULATORS - 1 else "http1",
                "timeouts": {"connect_ms": 1000, "first_byte_ms": 2000, "idle_ms": 2000, "total_ms": 5000},
            }
            price = round(0.1 + number / 10 + edition % 7 / 100, 2)
            targets.append(
                {
                    "provider": name,
                    "model": f"model-{number}",
                    "weight": 1 + (number + edition) % 3,
                    "input_price_per_million_usd": price,
                    "output_price_per_million_usd": 4 * price,
                }
            )
    attempts = {"deadline_ms": 8000}
    policy = {
        "affinity": {"max_entries": 200},
        "score_terms": [{"name": "all", "expression": "0.5 * reliability_score + 0.5 * cost_score"}],
    }
    groups = {
        "even": {"strategy": "weighted", "targets": targets, "attempts": attempts},
        "ordered": {"strategy": "failover", "targets": targets, "attempts": attempts},
        "scored": {
            "strategy": "dynamic_score",
            "targets": targets,
            "attempts": attempts,
            "routing_policy": {"dynamic_score": policy},
        },
        f"edition-{edition}": {"strategy": "static", "targets": targets[:1]},
    }
    callers = {name: {"allow": ["*"]} for name in CALLERS}
    return json.dumps({"providers": providers, "models": groups, "callers": callers}).encode()


class Tokens:
    """Issued and revoked while requests use them."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._live: list[tuple[Any, str, float]] = []
        """Row, secret, and when it was issued."""
        self._dead: list[tuple[str, float]] = []

    def change(self) -> None:
        from accounts import tokens
        from accounts.models import Caller

        row, secret = tokens.issue(Caller.objects.get(name=self._chance.choice(CALLERS)))
        self._live.append((row, secret, time.monotonic()))
        if len(self._live) > 6:
            row, secret, _ = self._live.pop(self._chance.randrange(3))
            tokens.revoke(row)
            self._dead = [*self._dead[-5:], (secret, time.monotonic())]

    def any(self) -> tuple[str, bool | None]:
        """A token, and whether it must be taken, must be refused, or may be either."""
        now = time.monotonic()
        if self._dead and self._chance.random() < 0.05:
            secret, since = self._chance.choice(self._dead)
            return secret, False if now - since > KNOWN_AFTER_S else None
        _, secret, since = self._chance.choice(self._live)
        # It may be revoked while the request is on its way.
        return secret, None if now - since < KNOWN_AFTER_S else True

    def is_live(self, secret: str) -> bool:
        return any(secret == other for _, other, _ in self._live)


CALM: dict[str, Any] = {
    "error_rate": 0,
    "cut_rate": 0,
    "error_event_rate": 0,
    "hang": False,
    "latency_ms": 20,
    "jitter_ms": 10,
    "tokens_per_second": 200,
    "retry_after": None,
}


def faults(chance: random.Random) -> Iterator[dict[str, Any]]:
    """What one provider after the other does from now on: well in three cases of ten, and each fault in its turn."""
    statuses, throttles = itertools.cycle((500, 503, 400, 401, 502, 404)), itertools.cycle((429, 529))
    while True:
        kinds: list[dict[str, Any]] = [
            {},
            {},
            {},
            {"cut_rate": 0.5},
            {"error_event_rate": 0.5},
            {"error_rate": 0.5, "status": next(statuses)},
            {"error_rate": 0.7, "status": next(throttles), "retry_after": 1},
            {"latency_ms": 800},
            {"tokens_per_second": 20},
            {"hang": True},
        ]
        chance.shuffle(kinds)
        yield from (CALM | kind for kind in kinds)


async def control(origin: str, behaviour: dict[str, Any]) -> None:
    body = json.dumps(behaviour).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(origin.rpartition(":")[2]))
    writer.write(b"POST /control HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    await _answer(reader)
    writer.close()


@contextlib.contextmanager
def announced(command: Sequence[str], log: Path, what: str, environment: dict[str, str]) -> Iterator[tuple[int, str]]:
    """A process, and the address that it says after `what`."""
    with running([sys.executable, *command], core=None, log=log, cwd=ROOT, environment=environment) as process:
        by = time.monotonic() + 60
        while (found := re.search(rf"{what} (http://[^\s/\"]+)", log.read_text())) is None:
            if process.poll() is not None or time.monotonic() > by:
                raise SystemExit(f"{command} did not start:\n{log.read_text()}")
            time.sleep(0.05)
        yield process.pid, found[1]


class Gateway:
    def __init__(self, pid: int, url: str, watched: Path, log: Path) -> None:
        self.pid = pid
        self.port = int(url.rpartition(":")[2])
        self._watched = watched
        self._log = log

    def sample(self) -> Sample:
        sample = Sample(at=time.monotonic(), memory_mib=memory_mib(self.pid))
        for file in self._watched.glob("*.jsonl"):
            pid = int(file.stem)
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    sample.sockets += os.readlink(entry).startswith("socket:")
            lines = file.read_text().splitlines()
            held = json.loads(lines[-1]) if lines else {}
            for name in ("tasks", "in_flight", "queued", "held_bytes", "attempts", "lent", "connections"):
                setattr(sample, name, getattr(sample, name) + held.get(name, 0))
        sample.sockets -= sample.connections
        return sample

    def complaints(self) -> list[str]:
        return [line[:2000] for line in self._log.read_text().splitlines() if any(each in line for each in COMPLAINTS)]


# -- the run


async def soak(
    gateway: Gateway, origins: Sequence[str], *, seconds: float, rate: float, chance: random.Random
) -> tuple[Told, list[Sample], Sample, Sample]:
    from gateway import config, publish

    told, tokens, samples = Told(), Tokens(chance), []
    client = Client(gateway.port, chance, told)
    turns = faults(chance)
    running_requests: set[asyncio.Task[None]] = set()
    edition = 1

    def publish_next() -> None:
        publish.import_configuration(config.load(configuration(origins, edition=edition)), author="soak")

    async def ask() -> None:
        secret, good = tokens.any()
        await client.ask(secret, good=good, still_good=lambda: good is None or tokens.is_live(secret) == good)

    async def every(interval_s: float, work: Any) -> None:
        while True:
            await asyncio.sleep(interval_s)
            await work()

    async def disturb() -> None:
        await control(chance.choice(origins), next(turns))

    async def republish() -> None:
        nonlocal edition
        edition += 1
        await asyncio.to_thread(publish_next)

    async def change_tokens() -> None:
        await asyncio.to_thread(tokens.change)

    async def look() -> None:
        samples.append(gateway.sample())

    for _ in range(6):
        await change_tokens()
    await asyncio.sleep(KNOWN_AFTER_S)
    # What is opened once is open before anybody counts.
    for _ in range(20):
        await ask()
    before = await settled(gateway, client, empty=False)
    began = time.monotonic()
    beside = [
        asyncio.ensure_future(every(*each))
        for each in (
            (FAULTS_EVERY_S, disturb),
            (PUBLISH_EVERY_S, republish),
            (TOKENS_EVERY_S, change_tokens),
            (1.0, look),
        )
    ]
    due = began
    while (now := time.monotonic()) < began + seconds:
        for task in beside:
            if task.done():
                task.result()
        if now < due:
            await asyncio.sleep(due - now)
        due = max(due + chance.expovariate(rate), now - 1.0)
        task = asyncio.ensure_future(ask())
        running_requests.add(task)
        task.add_done_callback(running_requests.discard)
    for each in beside:
        each.cancel()
    await asyncio.gather(*beside, return_exceptions=True)
    if running_requests:
        await asyncio.wait(running_requests, timeout=PATIENCE_S)
    for origin in origins:
        await control(origin, CALM)
    after = await settled(gateway, client, empty=seconds >= SETTLED_S)
    return told, samples, before, after


async def settled(gateway: Gateway, client: Client, *, empty: bool) -> Sample:
    """What is held once nothing is under way. `empty`: also no provider's connection, which are kept for a minute."""
    client.close()
    by = time.monotonic() + (IDLE_CLOSED_S if empty else PATIENCE_S)
    last = gateway.sample()
    while time.monotonic() < by:
        await asyncio.sleep(1.5)
        sample = gateway.sample()
        same = (sample.sockets, sample.tasks, sample.connections) == (last.sockets, last.tasks, last.connections)
        if same and not (sample.in_flight or sample.queued or sample.lent or (empty and sample.connections)):
            return sample
        last = sample
    return last


def report(told: Told, samples: Sequence[Sample], before: Sample, after: Sample, records: Counter[str]) -> str:
    slope = slope_per_hour(samples)
    memory = [round(each.memory_mib, 1) for each in samples[:: max(1, len(samples) // 10)]]
    lines = [
        f"answers      {dict(told.answers.most_common())}",
        f"records      {dict(records)} of {told.exchanges} requests",
        f"memory       {memory} MiB, slope {'not told by so short a run' if slope is None else f'{slope:.1f} MiB an hour'}",
    ]
    for name in ("sockets", "tasks", "in_flight", "queued", "held_bytes", "attempts", "lent", "connections"):
        most = max(getattr(each, name) for each in samples)
        lines.append(f"{name:12} {getattr(before, name)} before, {most} at most, {getattr(after, name)} at the end")
    return "\n".join(lines)


def recorded(spool: Path) -> tuple[Counter[str], list[str]]:
    """Outcomes by the end records, and what does not fit together in them."""
    from reports.core.record import EndRecord
    from reports.spool import decode_line

    intents: set[str] = set()
    ends: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    for file in sorted(spool.glob("*.jsonl")):
        for line in file.read_bytes().splitlines():
            record = decode_line(line)
            if isinstance(record, EndRecord):
                ends[record.id] += 1
                outcomes[record.outcome] += 1
            else:
                intents.add(record.id)
    found = [f"{len(intents - set(ends))} intents without an end"] if intents - set(ends) else []
    twice = sum(count > 1 for count in ends.values())
    return outcomes, found + ([f"{twice} exchanges recorded twice"] if twice else [])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--rate", type=float, default=60, help="requests a second")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=ROOT / "out" / "soak", help="emptied first")
    chosen = parser.parse_args()
    folder = chosen.folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    watched = folder / "watched"
    watched.mkdir(parents=True)
    environment = {
        "PILOTAGE_DATA_DIR": str(folder / "data"),
        "PILOTAGE_MAX_IN_FLIGHT": "200",
        "PILOTAGE_HEAD_SECONDS": "5",
    }
    for name in [name for name in os.environ if name not in plain_environment()]:
        del os.environ[name]
    os.environ |= environment | {"DJANGO_SETTINGS_MODULE": "gateway.settings"}
    (folder / "data").mkdir()

    import django

    django.setup()
    from django.core.management import call_command

    from gateway import config, publish

    call_command("migrate", verbosity=0)
    chance = random.Random(chosen.seed)
    log = folder / "gateway.log"
    with contextlib.ExitStack() as stack:
        origins = [
            stack.enter_context(
                announced(
                    ["manage.py", "simulate", "--port", "0", "--name", f"sim-{number}"],
                    folder / f"simulator-{number}.log",
                    " serves",
                    {"PILOTAGE_DATA_DIR": str(folder / f"simulator-{number}")},
                )
            )[1]
            for number in range(SIMULATORS)
        ]
        publish.import_configuration(config.load(configuration(origins, edition=1)), author="soak")
        serve = ["-m", "bench.watched", str(watched), "serve", "--port", "0", "--workers", str(chosen.workers)]
        pid, url = stack.enter_context(announced(serve, log, "Pilotage serves", environment))
        gateway = Gateway(pid, url, watched, log)
        told, samples, before, after = asyncio.run(
            soak(gateway, origins, seconds=chosen.seconds, rate=chosen.rate, chance=chance)
        )
    records, problems = recorded(folder / "data" / "spool")
    print(report(told, samples, before, after, records))
    missing = told.exchanges - records.total()
    if not 0 <= missing <= told.answers["left"]:  # who resets at once may never have been read
        problems.append(f"{records.total()} records of {told.exchanges} requests")
    problems += problems_of(samples, before, after) + gateway.complaints()
    problems += [f"{count} x {problem}" for problem, count in Counter(told.problems).most_common(20)]
    for problem in problems:
        print(f"PROBLEM {problem}")
    print("nothing is left and nothing grew" if not problems else f"{len(problems)} problems")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
