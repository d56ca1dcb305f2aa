"""What the end-to-end tests share: one simulator, and a gateway on each server in front of it, configured once."""

import json
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_django import DjangoDbBlocker

from reports.core.record import EndRecord, IntentRecord
from tests.support.processes import GatewayProcess, SimulatorProcess

CHAT_KEY = "provider-credential-for-chat"
MESSAGES_KEY = "provider-credential-for-messages"

MAX_REQUEST_BYTES = 3 << 20
"""Of the shared gateways: low enough to exceed it cheaply, high enough for a body that is decoded in steps."""

STATUSES = (400, 401, 403, 404, 408, 413, 422, 429, 500, 502, 503, 504, 529)
KINDS = ("unary", "stream", "previous")
"""Each of these with each status has a group of its own, `unary-429`: a target that cools down is felt by one test alone."""

AT_ONCE: dict[str, Any] = {
    "name": "sim",
    "latency_ms": 0,
    "jitter_ms": 0,
    "tokens_per_second": 0,
    "error_rate": 0,
    "status": 500,
    "retry_after": None,
    "error_event_rate": 0,
    "cut_rate": 0,
    "hang": False,
    "output_tokens": 24,
    "reasoning": False,
    "api_key": None,
}
"""How the simulator behaves at the start of every test."""


RECORDED_MODELS = ("stub-model", "claude-stub", "claude-sonnet-4-5-20250929", "claude-opus-4-8")
"""What recorded clients ask for."""


def configuration(base_url: str, *, weights: tuple[int, int, int] = (40, 30, 20)) -> str:
    """`g` serves both dialects; each of `RECORDED_MODELS` has three scored targets in each, with these weights."""
    nowhere = f"http://127.0.0.1:{_closed_port()}/v1"
    providers: dict[str, Any] = {
        "chat": {"base_url": base_url, "dialect": "openai-chat", "api_key": CHAT_KEY},
        "messages": {"base_url": base_url, "dialect": "anthropic", "api_key": MESSAGES_KEY},
        "nowhere-chat": {"base_url": nowhere, "dialect": "openai-chat"},
        "nowhere-messages": {"base_url": nowhere, "dialect": "anthropic"},
    }
    models: dict[str, Any] = {
        "g": both("chat", "messages", "m"),
        "secret": both("chat", "messages", "secret"),
        "chat-only": {"strategy": "static", "targets": [_target("chat", "chat-only")]},
        "messages-only": {"strategy": "static", "targets": [_target("messages", "messages-only")]},
        "nobody": both("nowhere-chat", "nowhere-messages", "nobody"),
    }
    for name in (f"{kind}-{status}" for kind in KINDS for status in STATUSES):
        models[name] = both("chat", "messages", name)
    for name in RECORDED_MODELS:
        models[name] = {
            "strategy": "dynamic_score",
            "targets": [
                _target(provider, f"{name}-{number}", weight=weight)
                for provider in ("chat", "messages")
                for number, weight in enumerate(weights)
            ],
            "routing_policy": {"dynamic_score": {"score_terms": [{"name": "all", "expression": "reliability_score"}]}},
        }
    allowed = sorted(set(models) - {"secret"})
    callers = {
        "tester": {"project": "tests", "environment": "e2e", "allow": allowed, "see_routing": True},
        "customer": {"allow": ["g"]},
    }
    return json.dumps({"version": 1, "providers": providers, "models": models, "callers": callers})


def both(chat: str, messages: str, model: str) -> dict[str, Any]:
    """A group with one target for each dialect."""
    return {"strategy": "failover", "targets": [_target(chat, model), _target(messages, model)]}


def _target(provider: str, model: str, **more: Any) -> dict[str, Any]:
    # Pictures and thinking are among what recorded clients send.
    return {
        "provider": provider,
        "model": model,
        "input_modalities": ["text", "image"],
        "reasoning": {"supported": True},
        **more,
    }


def _closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


@dataclass(slots=True, kw_only=True)
class Served:
    """A gateway that is ready, with a token that it knows."""

    server: str
    process: GatewayProcess
    token: str
    """Of `tester`, who sees how requests were routed."""
    customer: str
    """Of `customer`, who may use `g` alone and does not."""

    @classmethod
    def by(cls, process: GatewayProcess, server: str) -> "Served":
        token, customer = process.token(), process.token("customer")
        return cls(
            server=server,
            process=process,
            token=process.until_accepted(token),
            customer=process.until_accepted(customer),
        )

    @property
    def url(self) -> str:
        return self.process.url

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.url.removeprefix("http://").split(":")
        return host, int(port)

    def records_of(self, id: str) -> list[IntentRecord | EndRecord]:
        """The records of one exchange, once its end is written."""
        found: list[IntentRecord | EndRecord] = []

        def ended() -> bool:
            found[:] = [record for record in self.process.records() if record.id == id]
            return any(isinstance(record, EndRecord) for record in found)

        self.process.until(ended, what=f"an end record of {id}", seconds=5)
        return found

    def end_of(self, id: str) -> EndRecord:
        record = self.records_of(id)[-1]
        assert isinstance(record, EndRecord)
        return record

    def next_end(self, before: int) -> EndRecord:
        """The only exchange that has ended since there were `before` end records."""
        found: list[EndRecord] = []

        def ended() -> bool:
            found[:] = self.ends()[before:]
            return bool(found)

        self.process.until(ended, what="another end record", seconds=5)
        assert len(found) == 1, found
        return found[0]

    def ends(self) -> list[EndRecord]:
        return [record for record in self.process.records() if isinstance(record, EndRecord)]


@dataclass(slots=True, kw_only=True)
class Fleet:
    """Starts each gateway when a test first asks for it."""

    folder: Path
    database: Path
    simulator: SimulatorProcess
    unblock: DjangoDbBlocker
    started: dict[str, Served] = field(default_factory=dict)

    def served(self, server: str) -> Served:
        if server not in self.started:
            process = GatewayProcess(
                self.folder / server,
                database=self.database,
                configuration=configuration(self.simulator.base_url),
                server=server,
                environment={"PILOTAGE_MAX_REQUEST_BYTES": str(MAX_REQUEST_BYTES)},
                unblock=self.unblock,
            )
            self.started[server] = Served.by(process, server)
        return self.started[server]

    def stop(self) -> None:
        for served in self.started.values():
            served.process.kill()
        self.simulator.kill()
