"""Gateways that the tests of a package share, each test with a provider and a model group of its own."""

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pytest_django import DjangoDbBlocker

from reports.core.record import EndRecord, IntentRecord
from tests.support.hostile import Address, ask, descriptors_of, head, post
from tests.support.loops import run
from tests.support.processes import GatewayProcess

MAX_REQUEST_BYTES = 10_000_000
WRITE_STALL_SECONDS = 1.5
HEAD_SECONDS = 1.0

IMPATIENT = {
    "PILOTAGE_POLL_SECONDS": "0.05",
    "PILOTAGE_HEAD_SECONDS": str(HEAD_SECONDS),
    "PILOTAGE_WRITE_STALL_SECONDS": str(WRITE_STALL_SECONDS),
    "PILOTAGE_MAX_REQUEST_BYTES": str(MAX_REQUEST_BYTES),
    "PILOTAGE_MAX_IN_FLIGHT": "20000",
}

_numbers = count(1)


def configuration(base_url: str, *, group: str, **provider: Any) -> str:
    """One group that is served in both dialects by one address, and the caller `tester`.

    Two targets for each dialect would hide a failed attempt behind a good one, so there is one.
    """
    providers = {
        dialect: {"base_url": base_url, "dialect": dialect, "max_in_flight": 20_000, **provider}
        for dialect in ("openai-chat", "anthropic")
    }
    targets = [{"provider": dialect, "model": "m", "input_modalities": ["text", "image"]} for dialect in providers]
    groups = {group: {"strategy": "failover", "targets": targets}}
    callers = {"tester": {"allow": ["*"], "see_routing": True}}
    return json.dumps({"providers": providers, "models": groups, "callers": callers})


def hello(group: str, **more: Any) -> dict[str, Any]:
    """A short request in either dialect."""
    return {"model": group, "max_tokens": 64, "messages": [{"role": "user", "content": "Hello"}], **more}


@dataclass(slots=True)
class Ground:
    """A gateway that is ready, and the token of `tester`, who may use every group."""

    process: GatewayProcess
    token: str
    server: str = "uvicorn"

    @property
    def address(self) -> Address:
        host, port = self.process.url.removeprefix("http://").split(":")
        return host, int(port)

    @property
    def pid(self) -> int:
        return self.process.pid

    async def lead_to(self, base_url: str, **provider: Any) -> str:
        """From now on this is the only provider; returns the name of a group that nothing is remembered of."""
        group = f"g{next(_numbers)}"
        # In a thread: Django's models refuse one with a running loop.
        number = await asyncio.to_thread(self.process.configure, configuration(base_url, group=group, **provider))
        loop = asyncio.get_running_loop()
        by = loop.time() + 20
        while (await ask(self.address, head("GET", "/readyz"))).json["revision"] != number:
            assert loop.time() < by, self.process.output()[-4000:]
            await asyncio.sleep(0.01)
        return group

    async def until(self, condition: Callable[[], bool], *, what: str, within: float = 20.0) -> None:
        """Looks again and again while the loop goes on; fails when the time is up."""
        loop = asyncio.get_running_loop()
        by = loop.time() + within
        while not condition():
            assert self.process.running, self.process.output()
            assert loop.time() < by, f"no {what} within {within:g} s:\n{self.process.output()[-4000:]}"
            await asyncio.sleep(0.01)

    async def idle_descriptors(self) -> int:
        """How many files and sockets it has open, once that no longer changes."""
        seen: list[int] = []

        def settled() -> bool:
            seen.append(descriptors_of(self.pid))
            return len(seen) >= 10 and len(set(seen[-10:])) == 1

        await self.until(settled, what="settled descriptors")
        return seen[-1]

    def ends(self) -> list[EndRecord]:
        """Of all exchanges so far."""
        return [record for record in self.process.records() if isinstance(record, EndRecord)]

    def records_of(self, group: str) -> tuple[list[IntentRecord], list[EndRecord]]:
        """Intents and ends of the exchanges that reached a group."""
        records = [record for record in self.process.records() if record.group == group]
        intents = [record for record in records if isinstance(record, IntentRecord)]
        return intents, [record for record in records if isinstance(record, EndRecord)]


StartGround = Callable[..., Ground]


class Grounds:
    """Starts each gateway when a test first asks for it."""

    def __init__(self, folder: Path, database: Path, unblock: DjangoDbBlocker) -> None:
        self._folder = folder
        self._database = database
        self._unblock = unblock
        self._shared: dict[str, Ground] = {}
        self._started: list[GatewayProcess] = []

    def shared(self, server: str) -> Ground:
        """The impatient gateway on that server."""
        if server not in self._shared:
            self._shared[server] = self.start(server, server=server)
        return self._shared[server]

    def start(self, name: str, *, server: str = "uvicorn", workers: int = 1, **environment: str) -> Ground:
        """One of its own. `environment` adds to `IMPATIENT`, and wins."""
        nowhere = configuration("http://127.0.0.1:9/v1", group="nowhere")
        process = GatewayProcess(
            self._folder / name,
            database=self._database,
            configuration=nowhere,
            server=server,
            workers=workers,
            caller="tester",
            environment=IMPATIENT | environment,
            unblock=self._unblock,
        )
        self._started.append(process)
        ground = Ground(process, process.known, server)
        failing = post("/v1/chat/completions", hello("nowhere"), token=ground.token)

        def warm() -> bool:
            """An exchange that fails: what a process opens once is open before anybody counts."""
            return run(ask(ground.address, failing)).status == 502

        process.until(warm, what="an exchange")
        return ground

    def again(self, stopped: Ground, **environment: str) -> Ground:
        """The same data directory and token, in a new process; nothing is asked of it before it is ready."""
        process = GatewayProcess(
            stopped.process.folder,
            database=self._database,
            configuration=None,
            environment=IMPATIENT | environment,
            unblock=self._unblock,
        )
        self._started.append(process)
        process.until(process.ready, what="readiness")
        return Ground(process, stopped.token, stopped.server)

    def stop(self) -> None:
        for process in self._started:
            process.kill()


@pytest.fixture(scope="package")
def grounds(
    tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path, django_db_blocker: DjangoDbBlocker
) -> Iterator[Grounds]:
    grounds = Grounds(tmp_path_factory.mktemp("grounds"), sqlite_template, django_db_blocker)
    yield grounds
    grounds.stop()


@pytest.fixture
def ground(grounds: Grounds) -> Ground:
    """The impatient gateway on uvicorn."""
    return grounds.shared("uvicorn")


@pytest.fixture(params=["uvicorn", "daphne"])
def either_ground(request: pytest.FixtureRequest, grounds: Grounds) -> Ground:
    return grounds.shared(request.param)
