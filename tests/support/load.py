"""Clients in numbers: plain HTTP/1.1 over kept connections, cheap enough not to be the load themselves."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Outcome:
    caller: str
    status: int
    """0: the connection ended without an answer."""
    retry_after: str | None
    code: str | None
    """Of an error."""
    seconds: float
    ended_at: float
    """Monotonic."""


@dataclass(slots=True)
class Clients:
    """Any number of clients of one gateway; `tokens` by caller."""

    address: tuple[str, int]
    tokens: dict[str, str]
    outcomes: list[Outcome] = field(default_factory=list)
    _idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = field(default_factory=list)

    async def ask(self, caller: str, **more: Any) -> Outcome:
        """One unary Chat request and its answer. A kept connection that turns out to be closed is replaced once."""
        content = {"model": "g", "messages": [{"role": "user", "content": "hi"}], **more}
        body = json.dumps(content).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer {self.tokens[caller]}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        started = time.monotonic()
        status, headers, answer = await self._exchange(head.encode() + body)
        ended = time.monotonic()
        code = json.loads(answer)["error"].get("code") if status >= 400 else None
        outcome = Outcome(caller, status, headers.get("retry-after"), code, ended - started, ended)
        self.outcomes.append(outcome)
        return outcome

    async def steadily(self, caller: str, *, per_second: float, seconds: float) -> list[Outcome]:
        """Requests at a fixed rate, whether or not earlier ones were answered; ends when all are."""
        started = time.monotonic()
        asked: list[asyncio.Task[Outcome]] = []
        for number in range(round(per_second * seconds)):
            await asyncio.sleep(started + number / per_second - time.monotonic())
            asked.append(asyncio.ensure_future(self.ask(caller)))
        return list(await asyncio.gather(*asked))

    async def in_a_row(self, caller: str, *, clients: int, seconds: float) -> list[Outcome]:
        """So many clients, each asking again as soon as it is answered."""
        until = time.monotonic() + seconds
        outcomes: list[Outcome] = []

        async def one() -> None:
            while time.monotonic() < until:
                outcomes.append(await self.ask(caller))

        await asyncio.gather(*(one() for _ in range(clients)))
        return outcomes

    async def _exchange(self, sent: bytes) -> tuple[int, dict[str, str], bytes]:
        for kept in (True, False):
            if kept and not self._idle:
                continue
            reader, writer = self._idle.pop() if kept else await asyncio.open_connection(*self.address)
            try:
                writer.write(sent)
                lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                headers = {
                    name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
                }
                answer = await reader.readexactly(int(headers["content-length"]))
            except (asyncio.IncompleteReadError, ConnectionError):
                writer.close()
                continue
            if headers.get("connection") == "close":
                writer.close()
            else:
                self._idle.append((reader, writer))
            return int(lines[0].split()[1]), headers, answer
        return 0, {}, b""

    async def close(self) -> None:
        for _, writer in self._idle:
            writer.close()
        for _, writer in self._idle:
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


@contextlib.asynccontextmanager
async def clients(address: tuple[str, int], tokens: dict[str, str]) -> AsyncIterator[Clients]:
    crowd = Clients(address, tokens)
    try:
        yield crowd
    finally:
        await crowd.close()


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest value that this share of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
