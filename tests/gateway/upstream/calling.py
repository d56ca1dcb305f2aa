"""How these tests call a scripted upstream."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.upstream.client import Headers, Transport, UpstreamRequest
from gateway.upstream.http1 import Http1Transport
from gateway.upstream.pooled import PooledTransport
from routing.core.catalog import Provider
from tests.support.scripted import Expect, Repeat, Script, ScriptedUpstream, Send, answer

KEEPS_ANSWERING: Script = [Repeat([Expect(), Send(answer(b"ok"))])]


def provider_at(upstream: ScriptedUpstream, **fields: Any) -> Provider:
    return Provider(**{"name": "p", "base_url": upstream.base_url, "dialect": "openai-chat", **fields})


kind: type[PooledTransport] = Http1Transport
"""What `transport` makes; a fixture of this directory sets it to each in turn."""

http1_only = pytest.mark.parametrize("kind", ["http1"], indirect=True)
"""For what only `http1` promises: connections of HTTP/1.1 that are used again, and a parser that refuses more."""


@contextlib.asynccontextmanager
async def transport(**options: Any) -> AsyncIterator[PooledTransport]:
    """Closed at the end, and then without an open socket or a place in use."""
    made = kind(**{"environ": {}, **options})
    try:
        yield made
    finally:
        await made.close()
        assert (made.open_connections, made.in_use("p")) == (0, 0)


def now() -> float:
    return asyncio.get_running_loop().time()


async def send(
    through: Transport,
    provider: Provider,
    body: bytes = b"{}",
    *,
    headers: Headers | None = None,
    path: str = "/chat/completions",
    within: float = 5.0,
    connect_within: float = 5.0,
) -> Any:
    request = UpstreamRequest(provider=provider, path=path, headers=headers or [], body=body)
    return await through.send(request, connect_by=now() + connect_within, respond_by=now() + within)


async def call(through: Transport, provider: Provider, body: bytes = b"{}", **options: Any) -> bytes:
    """The whole body of the answer."""
    response = await send(through, provider, body, **options)
    return bytes(await response.read(by=now() + 5, limit=1 << 26))


async def failure(awaitable: Any) -> tuple[str, str]:
    """The class and the text of the error it raises."""
    try:
        result = await awaitable
    except Exception as error:
        return type(error).__name__, str(error)
    raise AssertionError(f"no error but {result!r}")


async def until(condition: Any, within: float = 1.0) -> None:
    """Gives the loop turns until `condition()` holds; fails after `within` seconds."""
    give_up_at = now() + within
    while not condition():
        assert now() < give_up_at, "it did not come to hold"
        await asyncio.sleep(0.002)
