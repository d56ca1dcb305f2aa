"""What a request costs in the relay and in each of its steps, without a server: `python -m bench.relay`.

The transport answers at once, so nothing waits, and the steps are timed where they stand. The server around the relay
and the connection to the provider come on top.
"""

import argparse
import asyncio
import inspect
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final
from unittest import mock

import uvloop

from accounts.core.directory import Caller, Directory, Token
from accounts.core.secret import digest_of, with_checksum
from bench import bodies
from bench.bodies import CONVERSATION, MODEL
from bench.decide import some_group
from bench.pilotage import CALLER
from gateway.relay import exchange
from gateway.relay.app import Relay
from gateway.relay.exchange import Exchange
from gateway.relay.messages import HANG_UP, WHOLE_BODY, Message, Scope
from gateway.snapshot import Snapshot
from gateway.upstream.client import Headers, UpstreamRequest, UpstreamResponse
from reports.spool import LineLog, Spool
from routing.core.affinity import Pins
from routing.core.catalog import Catalog
from routing.core.observations import Observations

CHAT: Final = "/v1/chat/completions"
PEPPER: Final = bytes(range(32))
SECRET: Final = with_checksum("a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6")
TARGETS: Final = 8
WARM_UP: Final = 500
"""Requests before the first that counts: every target has been seen."""

ANSWER: Final = json.dumps(
    {
        "id": "chatcmpl-mock0001",
        "object": "chat.completion",
        "created": 1_732_900_000,
        "model": "gpt-4o-mini-2024-07-18",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "x" * 120}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 25, "completion_tokens": 24, "total_tokens": 49},
    }
).encode()


class Answered(UpstreamResponse):
    """A provider's answer that is there."""

    status = 200
    complete_by_eof = False

    def __init__(self) -> None:
        self.headers: Headers = [
            (b"content-type", b"application/json"),
            (b"x-request-id", b"req_mock"),
            (b"content-length", b"%d" % len(ANSWER)),
        ]

    async def receive(self, *, by: float) -> bytes:
        return b""

    async def read(self, *, by: float, limit: int) -> bytes:
        return ANSWER

    def close(self) -> None:
        pass


class AtOnce:
    """The transport: no connection, no waiting."""

    async def send(self, request: UpstreamRequest, *, connect_by: float, respond_by: float) -> Answered:
        return Answered()

    async def close(self) -> None:
        pass


class Client:
    """Requests as a server hands them on, each a conversation of its own."""

    def __init__(self) -> None:
        small = next(body for body in bodies.BODIES if body.name == "small")
        self._numbers = itertools.count(1)
        self._before, _, rest = json.dumps(bodies.content(small)).encode().partition(CONVERSATION.encode())
        self._after = rest[12:]
        self.headers = [
            (b"host", b"127.0.0.1:8000"),
            (b"content-type", b"application/json"),
            (b"accept", b"*/*"),
            (b"user-agent", b"load/1"),
            (b"authorization", b"Bearer " + SECRET.encode()),
            (b"content-length", b"%d" % len(self.body())),
        ]

    def body(self) -> bytes:
        return b"%b%b%012d%b" % (self._before, CONVERSATION.encode(), next(self._numbers), self._after)

    def scope(self) -> Scope:
        return {
            "type": "http",
            "http_version": "1.1",
            "method": "POST",
            "path": CHAT,
            "raw_path": CHAT.encode(),
            "query_string": b"",
            "headers": self.headers.copy(),
            "extensions": {HANG_UP: lambda call: None, WHOLE_BODY: {}},
        }

    async def receive(self) -> Message:
        return {"type": "http.request", "body": self.body(), "more_body": False}

    async def send(self, message: Message) -> None:
        pass


@contextmanager
def some_relay(folder: Path) -> Iterator[Relay]:
    """With everything on: records go to a spool and lines to a file in `folder`."""
    group = some_group(TARGETS)
    catalog = Catalog(
        revision=1,
        created=1_732_900_000,
        groups={MODEL: group},
        providers={target.provider.name: target.provider for target in group.targets},
    )
    caller = Caller(name=CALLER, allow=frozenset({MODEL}))
    token = Token(caller=caller, shown=SECRET[:12], digest=digest_of(SECRET.encode(), PEPPER))
    spool = Spool(folder / "spool")
    lines = os.open(folder / "lines", os.O_WRONLY | os.O_CREAT)
    log = LineLog(lines)
    try:
        yield Relay(
            snapshot=Snapshot(catalog, Directory(version=1, tokens={token.digest: token})),
            observations=Observations(),
            pins=Pins(),
            transport=AtOnce(),
            spool=spool,
            lines=log,
            pepper=PEPPER,
            max_request_bytes=33_554_432,
            max_in_flight=1_024,
            clock=time.monotonic,
            wall=time.time,
        )
    finally:
        log.close()
        spool.close()
        os.close(lines)


STEPS: Final[Sequence[tuple[str, object, str]]] = (
    ("identify: the token", exchange, "authenticate"),
    ("decode: read the body", Exchange, "_decode"),
    ("shape: size, complexity, conversation", exchange, "shape_of"),
    ("decide: the target", exchange, "decide"),
    ("remember: the pin", Pins, "remember"),
    ("record: the intent", exchange, "intent_record"),
    ("record: the intent", Spool, "intent"),
    ("attempt: write the intent, rewrite, read and pass on the answer, observe", Exchange, "_attempt_all"),
    ("record: the end and the log line", Relay, "tell_of"),
)
"""What is timed as which step: the function of this name, wherever it is looked up."""

WHOLE: Final = "**the whole**"
BETWEEN: Final = "between the steps"
BESIDE: Final = "beside it, in a thread: write the log line"


class Stopwatch:
    """Nanoseconds of each step, one entry per request."""

    def __init__(self) -> None:
        self._spent: dict[str, list[int]] = {}

    @contextmanager
    def on(self, steps: Sequence[tuple[str, object, str]]) -> Iterator[None]:
        """Inside, the steps are timed where they are."""
        with ExitStack() as stack:
            for step, owner, name in steps:
                stack.enter_context(mock.patch.object(owner, name, self._timed(step, getattr(owner, name))))
            yield

    def quartile_us(self) -> dict[str, float]:
        """Of each step what a quarter of the requests stays below: what disturbs is left out."""
        spent: dict[str, float] = {}
        for name, nanoseconds in self._spent.items():
            step = name.partition(" #")[0]
            spent[step] = spent.get(step, 0.0) + statistics.quantiles(nanoseconds, n=4)[0] / 1_000
        return spent

    def spent(self, step: str) -> list[int]:
        """Where the nanoseconds of one more function of this step go."""
        return self._spent.setdefault(f"{step} #{len(self._spent)}", [])

    def _timed(self, step: str, function: Callable[..., Any]) -> Callable[..., Any]:
        spent = self.spent(step)
        clock = time.perf_counter_ns

        def timed(*arguments: Any, **named: Any) -> Any:
            start = clock()
            result = function(*arguments, **named)
            spent.append(clock() - start)
            return result

        async def timed_async(*arguments: Any, **named: Any) -> Any:
            start = clock()
            try:
                return await function(*arguments, **named)
            finally:
                spent.append(clock() - start)

        return timed_async if inspect.iscoroutinefunction(function) else timed


async def measure(*, calls: int) -> list[dict[str, Any]]:
    """Each step, what is left over, the whole, and what another thread does for it."""
    client = Client()
    watch = Stopwatch()
    with tempfile.TemporaryDirectory() as folder, some_relay(Path(folder)) as relay:
        for _ in range(WARM_UP):
            await relay(client.scope(), client.receive, client.send)
        whole = watch.spent(WHOLE)
        with watch.on(STEPS):
            process, thread = time.process_time_ns(), time.thread_time_ns()
            for _ in range(calls):
                scope, start = client.scope(), time.perf_counter_ns()
                await relay(scope, client.receive, client.send)
                whole.append(time.perf_counter_ns() - start)
            beside = (time.process_time_ns() - process) - (time.thread_time_ns() - thread)
    steps = watch.quartile_us()
    of_all = steps.pop(WHOLE)
    steps[BETWEEN] = of_all - sum(steps.values())
    steps[WHOLE] = of_all
    steps[BESIDE] = beside / calls / 1_000
    return [{"step": name, "us": round(us, 1)} for name, us in steps.items()]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.relay", description=__doc__)
    parser.add_argument("--json", action="store_true", help="for bench.run")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        steps = runner.run(measure(calls=400 if options.quick else 2_000))
    if options.json:
        json.dump({"steps": steps}, sys.stdout)
        return
    for row in steps:
        print(f"{row['us']:8.1f} us  {row['step'].strip('*')}")


if __name__ == "__main__":
    main()
