"""Clients that leave: whatever they were waiting for, the provider's connection closes within a second."""

import json
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e import wire
from tests.e2e.fleet import Served
from tests.support.processes import SimulatorProcess

pytestmark = pytest.mark.e2e

Leave = Callable[[socket.socket], None]

on_both_dialects = pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
by_either_end = pytest.mark.parametrize("leave", [wire.finish, wire.reset], ids=["FIN", "RST"])


def asking(connection: socket.socket, served: Served, path: str, *, stream: bool) -> None:
    content: dict[str, Any] = {"model": "g", "stream": stream, "max_tokens": 1_000_000}
    body = json.dumps(content | {"messages": [{"role": "user", "content": "Hello"}]}).encode()
    fields = [("Host", "x"), ("Content-Length", str(len(body))), ("Authorization", f"Bearer {served.token}")]
    connection.sendall(wire.head("POST", path, fields) + body)


def in_flight(simulator: SimulatorProcess) -> None:
    simulator.until(lambda: simulator.counters()["in_flight"] == 1, what="a call to the provider", seconds=5)


def until_nothing_moves(connection: socket.socket, simulator: SimulatorProcess) -> None:
    """The client's end takes nothing more, and for a while the gateway's end has not been given more."""
    held, since = 0, time.monotonic()

    def still() -> bool:
        nonlocal held, since
        now = wire.unread_by(connection)
        if now != held:
            held, since = now, time.monotonic()
        return held > 0 and time.monotonic() - since > 0.2

    simulator.until(still, what="full buffers", seconds=20)


def leaves_and_is_noticed(
    connection: socket.socket, leave: Leave, served: Served, simulator: SimulatorProcess, *, status: int
) -> None:
    before = len(served.ends())
    left_at = time.monotonic()
    leave(connection)
    simulator.until(lambda: simulator.counters()["in_flight"] == 0, what="the end of the call", seconds=3)
    took = time.monotonic() - left_at
    counters = simulator.counters()
    assert (counters["cancelled"], counters["answered"]) == (1, 0)
    assert took < 1.0
    record = served.next_end(before)
    assert (record.outcome, record.error_code, record.status) == ("client_cancelled", "client_closed_request", status)
    assert [attempt.outcome for attempt in record.attempts] == ["client_cancelled"]


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
@on_both_dialects
@by_either_end
def test_while_the_provider_has_not_answered(
    served: Served, simulator: SimulatorProcess, leave: Leave, path: str, stream: bool
) -> None:
    simulator.set(hang=True)
    with wire.connected(served.address) as connection:
        asking(connection, served, path, stream=stream)
        in_flight(simulator)
        leaves_and_is_noticed(connection, leave, served, simulator, status=499)


@on_both_dialects
@by_either_end
def test_between_two_events(served: Served, simulator: SimulatorProcess, leave: Leave, path: str) -> None:
    simulator.set(tokens_per_second=0.2, output_tokens=1000)
    with wire.connected(served.address) as connection:
        asking(connection, served, path, stream=True)
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200")
        in_flight(simulator)
        leaves_and_is_noticed(connection, leave, served, simulator, status=200)


@on_both_dialects
@by_either_end
def test_while_its_own_buffer_is_full(served: Served, simulator: SimulatorProcess, leave: Leave, path: str) -> None:
    simulator.set(tokens_per_second=0, output_tokens=400_000)
    with wire.connected(served.address, receive_buffer=4096) as connection:
        asking(connection, served, path, stream=True)
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
        in_flight(simulator)
        until_nothing_moves(connection, simulator)
        leaves_and_is_noticed(connection, leave, served, simulator, status=200)


def test_many_leave_and_the_gateway_goes_on(served: Served, simulator: SimulatorProcess) -> None:
    """Leaving at any time costs nobody else anything, and leaves nothing behind."""
    simulator.set(tokens_per_second=50, output_tokens=1000)
    before, said_before = len(served.ends()), len(served.process.err.read_text())
    rounds = 40
    for number in range(rounds):
        with wire.connected(served.address) as connection:
            asking(connection, served, "/v1/chat/completions", stream=number % 2 == 0)
            in_flight(simulator)
            (wire.finish if number % 4 < 2 else wire.reset)(connection)
            simulator.until(lambda: simulator.counters()["in_flight"] == 0, what="the end of the call", seconds=5)
    served.process.until(lambda: len(served.ends()) == before + rounds, what="a record of each", seconds=5)
    assert {record.outcome for record in served.ends()[before:]} == {"client_cancelled"}
    simulator.set(tokens_per_second=0, output_tokens=24)
    body = {"model": "g", "messages": [{"role": "user", "content": "Hello"}]}
    bearer = [("Authorization", f"Bearer {served.token}")]
    replies = [
        wire.request(served.address, "POST", "/v1/chat/completions", headers=bearer, body=body) for _ in range(20)
    ]
    assert {reply.status for reply in replies} == {200}
    assert served.process.err.read_text()[said_before:] == ""
