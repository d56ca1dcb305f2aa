"""No connection, or one that ends before a byte of an answer: the other target serves, and nothing was sent in vain."""

import socket
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from routing.core.catalog import ProviderTimeouts, Target
from tests.faults.stories import SIDES, Side, Told, failed_over, refused, told
from tests.support import relays
from tests.support.certificates import Authority
from tests.support.loops import in_loop
from tests.support.scripted import AwaitPeer, Close, Expect, HalfClose, Reset, Script, scripted

pytestmark = pytest.mark.usefixtures("transport")

BEFORE_ANSWERING: dict[str, tuple[Script, str]] = {
    "reset when connected": ([Reset()], "upstream_connection_lost"),
    "closed when connected": ([Close()], "upstream_connection_lost"),
    "half-closed when connected": ([HalfClose(), AwaitPeer()], "upstream_connection_lost"),
    "reset after the request": ([Expect(), Reset()], "upstream_connection_lost"),
    "an empty reply": ([Expect(), Close()], "upstream_connection_lost"),
    "an empty reply, half-closed": ([Expect(), HalfClose(), AwaitPeer()], "upstream_connection_lost"),
}


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", BEFORE_ANSWERING)
@in_loop
async def test_a_connection_that_ends_without_an_answer_gives_way_to_the_other_target(fault, stream, side):
    script, code = BEFORE_ANSWERING[fault]
    story = await told(script, side=SIDES[side], stream=stream)
    failed_over(story, SIDES[side], stream=stream, code=code)
    assert len(story.bad.connections) == 1


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("stream", [False, True])
@in_loop
async def test_an_empty_reply_alone_is_a_502_that_tells_nothing(stream, side):
    story = await told([Expect(), Close()], side=SIDES[side], stream=stream, alone=True)
    refused(story, 502, "upstream_error")


Move = Callable[[Target], Target]


def elsewhere(base_url: str, **fields: Any) -> Move:
    """Moves the target's provider."""
    return lambda target: replace(target, provider=replace(target.provider, base_url=base_url, **fields))


async def both(side: Side, stream: bool, *, first: Move) -> tuple[Told, Told]:
    """With and without another target."""
    return (
        await told([], side=side, stream=stream, first=first),
        await told([], side=side, stream=stream, first=first, alone=True),
    )


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("stream", [False, True])
@in_loop
async def test_a_refused_connection_gives_way(stream, side):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
        with_b, alone = await both(SIDES[side], stream, first=elsewhere(nobody))
    failed_over(with_b, SIDES[side], stream=stream, code="upstream_connect_error")
    refused(alone, 502, "upstream_error")


@pytest.mark.parametrize("stream", [False, True])
@in_loop
async def test_a_name_that_is_not_known_gives_way(stream, monkeypatch):
    def resolve(host: str, port: int) -> list[str]:
        if host == "127.0.0.1":
            return [host]
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(relays, "kind", partial(relays.kind, resolve=resolve))
    with_b, alone = await both(SIDES["chat"], stream, first=elsewhere("http://nowhere.example/v1"))
    failed_over(with_b, SIDES["chat"], stream=stream, code="upstream_connect_error")
    refused(alone, 502, "upstream_error")
    assert "nowhere" not in alone.reply.text


@pytest.mark.parametrize("address", ["10.0.0.1", "169.254.169.254", "::ffff:10.0.0.1", "127.0.0.1"])
@in_loop
async def test_a_name_that_leads_inside_is_not_called(address, monkeypatch):
    """DNS rebinding: the address is judged, whatever name led to it."""

    def resolve(host: str, port: int) -> list[str]:
        return [host] if host == "127.0.0.1" else [address]

    monkeypatch.setattr(relays, "kind", partial(relays.kind, resolve=resolve))
    with_b, alone = await both(SIDES["chat"], False, first=elsewhere("http://api.example/v1"))
    failed_over(with_b, SIDES["chat"], stream=False, code="upstream_connect_error")
    refused(alone, 502, "upstream_error")
    assert address not in alone.reply.text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", ["an unknown authority", "another name", "no TLS at all", "reset in the handshake"])
@in_loop
async def test_a_failed_handshake_gives_way_and_nothing_was_sent(fault, stream, tmp_path: Path):
    side = "chat" if stream else "messages"
    authority = Authority(tmp_path)
    script: Script = [Reset()] if fault == "reset in the handshake" else [Close()]
    tls = None
    if fault in ("an unknown authority", "another name"):
        tls = authority.server_context("up.example" if fault == "another name" else "127.0.0.1")
    async with scripted(script, tls=tls) as bad:
        first = elsewhere(
            f"https://127.0.0.1:{bad.port}/v1",
            ca_file=None if fault == "an unknown authority" else str(authority.ca_file),
        )
        with_b, alone = await both(SIDES[side], stream, first=first)
        assert bad.requests == []
    failed_over(with_b, SIDES[side], stream=stream, code="upstream_connect_error")
    refused(alone, 502, "upstream_error")


@pytest.mark.parametrize("stream", [False, True])
@in_loop
async def test_a_handshake_that_never_ends_is_a_timeout_of_connecting(stream):
    async with scripted([AwaitPeer()]) as bad:
        first = elsewhere(f"https://127.0.0.1:{bad.port}/v1", timeouts=ProviderTimeouts(connect_s=0.2))
        with_b, alone = await both(SIDES["chat"], stream, first=first)
    failed_over(with_b, SIDES["chat"], stream=stream, code="upstream_timeout", outcome="timeout")
    refused(alone, 504, "upstream_timeout")
    assert 180 <= with_b.end.attempts[0].duration_ms < 700


@pytest.mark.parametrize("stream", [False, True])
@in_loop
async def test_a_missing_credential_gives_way_and_is_not_named_to_the_client(stream):
    first = elsewhere("http://127.0.0.1:9/v1", api_key_env="NO_SUCH_KEY")
    with_b, alone = await both(SIDES["chat"], stream, first=first)
    failed_over(with_b, SIDES["chat"], stream=stream, code="upstream_credential_missing", outcome="denied")
    refused(alone, 502, "upstream_denied")
    assert "NO_SUCH_KEY" not in alone.reply.text
