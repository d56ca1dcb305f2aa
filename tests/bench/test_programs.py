"""The stand-in for a provider and the load generator, on each other and on a server that looks closely."""

import socket
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench import bodies
from bench.machine import Cores
from bench.programs import Upstream, load, upstream

ANYWHERE = Cores(load=None, gateway=None)
EVENTS_OF_A_STREAM = 1 + 100 + 1 + 1 + 1
"""The role, the content, the finish, the usage, `[DONE]`."""


def counted(seen: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: seen[name] for name in ("ok", "refused", "failed", "unfinished", "statuses", *names)}


def asked(built: Path, provider: Upstream, body: str, **how: Any) -> dict[str, Any]:
    return load(built, ANYWHERE, port=provider.ports[1], headers=(), body=body, seconds=30.0, **how)


@pytest.mark.parametrize("body", ["small", "1k", "50k", "1m"])
def test_every_request_gets_its_answer(built: Path, body: str) -> None:
    with upstream(built, ANYWHERE) as provider:
        seen = asked(built, provider, body, in_flight=4, requests=40)
        assert counted(seen) == {"ok": 40, "refused": 0, "failed": 0, "unfinished": 0, "statuses": {"200": 40}}
        assert provider.requests() == 40


def test_every_event_of_every_stream_is_seen(built: Path) -> None:
    with upstream(built, ANYWHERE) as provider:
        seen = asked(built, provider, "stream", in_flight=8, requests=24, stream=True)
    events = 24 * EVENTS_OF_A_STREAM
    assert counted(seen, "events") == {
        "ok": 24, "refused": 0, "failed": 0, "unfinished": 0, "statuses": {"200": 24}, "events": events,
    }  # fmt: skip


def test_a_paced_stream_takes_its_time(built: Path) -> None:
    with upstream(built, ANYWHERE) as provider:
        seen = asked(built, provider, "paced", in_flight=2, requests=2, stream=True)
    assert seen["events"] == 2 * EVENTS_OF_A_STREAM
    assert seen["p50"] >= 1_000_000  # 100 events, 10 ms apart


def test_every_request_is_a_conversation_of_its_own(built: Path) -> None:
    taken: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_answer_requests, args=(server, 3, taken))
        thread.start()
        seen = load(
            built,
            ANYWHERE,
            port=server.getsockname()[1],
            headers=["X-Key: value"],
            body="small",
            in_flight=1,
            seconds=30.0,
            requests=3,
        )
        thread.join()
    assert counted(seen) == {"ok": 2, "refused": 1, "failed": 0, "unfinished": 0, "statuses": {"200": 2, "429": 1}}
    heads, requests = zip(*(each.split(b"\r\n\r\n", 1) for each in taken), strict=True)
    assert all(b"\r\nX-Key: value\r\n" in head for head in heads)
    prompts = [msgspec.json.decode(request)["messages"][1]["content"] for request in requests]
    numbers = [int(prompt.removeprefix(bodies.CONVERSATION)[:12]) for prompt in prompts]
    assert numbers == list(range(numbers[0], numbers[0] + 3))
    written = msgspec.json.decode((built / "bodies" / "small.json").read_bytes())["messages"][1]["content"]
    assert {prompt[len(bodies.CONVERSATION) + 12 :] for prompt in prompts} == {written[len(bodies.CONVERSATION) + 12 :]}


def _answer_requests(server: socket.socket, count: int, taken: list[bytes]) -> None:
    """Takes that many requests of one connection, whole; the last gets 429."""
    client, _ = server.accept()
    with client:
        for number in range(count):
            request = b""
            while True:
                request += client.recv(65_536)
                head, blank, body = request.partition(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
                if blank and len(body) == length:
                    break
            taken.append(request)
            status = b"200 OK" if number + 1 < count else b"429 Too Many Requests"
            client.sendall(b"HTTP/1.1 " + status + b"\r\ncontent-length: 2\r\n\r\n{}")
