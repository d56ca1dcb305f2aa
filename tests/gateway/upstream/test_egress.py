"""Through an egress proxy: what it is told, what of it is judged, and that every limit still holds."""

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest

from gateway.upstream.http1 import Http1Transport
from gateway.upstream.httpx_transport import HttpxTransport
from gateway.upstream.transports import Transports
from routing.core.catalog import Provider
from tests.gateway.upstream import calling
from tests.gateway.upstream.calling import call, failure, now, send, transport, until
from tests.support.certificates import Authority
from tests.support.http2 import Peer, http2_upstream
from tests.support.loops import LoopName, on_both_loops, run
from tests.support.proxy import EgressProxy, egress_proxy
from tests.support.scripted import AwaitPeer, Expect, Repeat, Script, Send, answer, scripted

KEEPS_ANSWERING: Script = [Repeat([Expect(), Send(answer(b"ok"))])]


@pytest.fixture(autouse=True)
def kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the directory's: a proxy is the second transport's alone."""
    monkeypatch.setattr(calling, "kind", HttpxTransport)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def provider_at(base_url: str, **fields: Any) -> Provider:
    known: dict[str, Any] = {"name": "p", "dialect": "openai-chat", "transport": "httpx", "proxy_env": "EGRESS"}
    return Provider(**{**known, "base_url": base_url, **fields})


def via(proxy: EgressProxy, scheme: str = "http", user: str = "") -> dict[str, Any]:
    return {"environ": {"EGRESS": f"{scheme}://{user}127.0.0.1:{proxy.port}"}}


@on_both_loops
@pytest.mark.parametrize("proxy_scheme", ["http", "https"])
def test_an_https_provider_is_reached_through_a_tunnel_that_names_it_and_nothing_else(
    proxy_scheme: str, loop: LoopName, authority: Authority
) -> None:
    async def main() -> None:
        tls = authority.server_context("127.0.0.1") if proxy_scheme == "https" else None
        there = authority.server_context("up.example")
        async with (
            scripted(KEEPS_ANSWERING, tls=there) as upstream,
            egress_proxy(names={"up.example": "127.0.0.1"}, tls=tls) as proxy,
            transport(**via(proxy, proxy_scheme)) as through,
        ):
            provider = provider_at(f"https://up.example:{upstream.port}/v1", ca_file=str(authority.ca_file))
            body = b"x" * 300_000
            assert [await call(through, provider, body) for _ in range(3)] == [b"ok"] * 3
            authority_form = b"up.example:%d" % upstream.port
            told = b"CONNECT %b HTTP/1.1\r\nHost: %b\r\nAccept: */*\r\n\r\n" % (authority_form, authority_form)
            assert proxy.heads == [told] * 3
            assert [request.body == body for request in upstream.requests] == [True] * 3
            assert upstream.requests[0].header(b"host") == authority_form

    run(main(), loop=loop)


@on_both_loops
def test_http2_goes_through_a_tunnel_too(loop: LoopName, authority: Authority) -> None:
    async def play(peer: Peer) -> None:
        while True:
            peer.answer((await peer.request()).stream, b"two")

    async def main() -> None:
        async with (
            http2_upstream(play, authority) as upstream,
            egress_proxy() as proxy,
            transport(**via(proxy)) as through,
        ):
            provider = provider_at(upstream.base_url, ca_file=str(authority.ca_file), allow_private_addresses=True)
            assert [await call(through, provider) for _ in range(3)] == [b"two"] * 3
            assert proxy.asked == [f"CONNECT 127.0.0.1:{upstream.port} HTTP/1.1"]

    run(main(), loop=loop)


@on_both_loops
def test_an_http_provider_is_asked_for_by_its_whole_url(loop: LoopName) -> None:
    async def main() -> None:
        async with (
            scripted(KEEPS_ANSWERING) as upstream,
            egress_proxy(
                names={"up.example": "127.0.0.1"}, authorization="Basic " + base64.b64encode(b"me:p@ss").decode()
            ) as proxy,
            transport(**via(proxy, user="me:p%40ss@")) as through,
        ):
            provider = provider_at(f"http://up.example:{upstream.port}/v1")
            assert await call(through, provider, b"{}", path="/messages?beta=true") == b"ok"
            assert proxy.asked == [f"POST http://up.example:{upstream.port}/v1/messages?beta=true HTTP/1.1"]
            assert upstream.requests[0].header(b"host") == b"up.example:%d" % upstream.port

    run(main(), loop=loop)


@on_both_loops
def test_the_proxys_credential_goes_to_the_proxy_alone(loop: LoopName, authority: Authority) -> None:
    async def main() -> None:
        there = authority.server_context("up.example")
        wanted = "Basic " + base64.b64encode(b"me:secret").decode()
        async with (
            scripted(KEEPS_ANSWERING, tls=there) as upstream,
            egress_proxy(names={"up.example": "127.0.0.1"}, authorization=wanted) as proxy,
        ):
            provider = provider_at(f"https://up.example:{upstream.port}", ca_file=str(authority.ca_file))
            async with transport(**via(proxy, user="me:secret@")) as through:
                assert await call(through, provider) == b"ok"
            assert upstream.requests[0].header(b"proxy-authorization") is None
            async with transport(**via(proxy, user="me:wrong@")) as through:
                error = await failure(call(through, provider))
                assert error == ("ConnectError", "provider p: the proxy refused with status 407")
                assert through.in_use("p") == 0

    run(main(), loop=loop)


@on_both_loops
@pytest.mark.parametrize(
    ("told", "text"),
    [
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", "provider p: the proxy refused with status 403"),
        (b"HTTP/1.1 302 Found\r\nlocation: http://10.0.0.1/\r\n\r\n", "provider p: the proxy refused with status 302"),
        (b"SSH-2.0-OpenSSH_9.0\r\n\r\n", "provider p: the proxy's answer is not HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nx-a: " + b"y" * 20_000, "provider p: the proxy sent more than its answer"),
    ],
)
def test_a_proxy_that_does_not_lead_on_is_a_connect_error(told: bytes, text: str, loop: LoopName) -> None:
    async def main() -> None:
        async with egress_proxy(answer=told) as proxy, transport(**via(proxy)) as through:
            error = await failure(call(through, provider_at("https://up.example/v1")))
            assert (error, through.in_use("p")) == (("ConnectError", text), 0)
            await until(lambda: proxy.open_connections == 0)

    run(main(), loop=loop)


@on_both_loops
@pytest.mark.parametrize("stage", ["silent proxy", "silent provider"])
def test_the_tunnel_has_to_stand_within_the_connect_limit(stage: str, loop: LoopName) -> None:
    async def main() -> None:
        told = b"" if stage == "silent proxy" else None
        async with (
            scripted([AwaitPeer()]) as upstream,
            egress_proxy(answer=told) as proxy,
            transport(**via(proxy)) as through,
        ):
            provider = provider_at(f"https://127.0.0.1:{upstream.port}", allow_private_addresses=True)
            await failure(call(through, provider, connect_within=0.01))  # the authorities are loaded now
            await until(lambda: through.in_use("p") == 0)
            started = now()
            name, _ = await failure(call(through, provider, connect_within=0.4))
            assert (name, 0.39 < now() - started < 0.9) == ("ConnectTimeout", True)
            assert through.in_use("p") == 0
            await until(lambda: proxy.open_connections == 0)

    run(main(), loop=loop)


@on_both_loops
@pytest.mark.parametrize("stage", ["silent proxy", "silent provider", "answering"])
def test_a_cancelled_call_closes_its_tunnel_at_once(stage: str, loop: LoopName, authority: Authority) -> None:
    async def main() -> None:
        told = b"" if stage == "silent proxy" else None
        tls = authority.server_context("127.0.0.1") if stage == "answering" else None
        async with (
            scripted([AwaitPeer()], tls=tls) as upstream,
            egress_proxy(answer=told) as proxy,
            transport(**via(proxy)) as through,
        ):
            provider = provider_at(
                f"https://127.0.0.1:{upstream.port}", allow_private_addresses=True, ca_file=str(authority.ca_file)
            )
            calling_it = asyncio.create_task(call(through, provider))
            await until(lambda: len(proxy.asked) == 1 and (told is not None or len(upstream.connections) == 1), 5)
            await asyncio.sleep(0.05)
            calling_it.cancel()
            await asyncio.gather(calling_it, return_exceptions=True)
            assert through.in_use("p") == 0
            await until(lambda: proxy.open_connections == 0, within=0.5)

    run(main(), loop=loop)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "is not set"),
        ("", "is not set"),
        ("socks5://127.0.0.1:1080", "holds no proxy's URL such as http://proxy.example:3128"),
        ("proxy.example:3128", "holds no proxy's URL such as http://proxy.example:3128"),
        ("http://user:canary@", "holds no proxy's URL such as http://proxy.example:3128"),
        ("http://canary.example:99999", "holds no proxy's URL such as http://proxy.example:3128"),
        ("http://canary.example/path", "holds no proxy's URL such as http://proxy.example:3128"),
        ("http://[canary", "holds no proxy's URL such as http://proxy.example:3128"),
    ],
)
def test_a_variable_that_holds_no_proxy_is_named_and_never_quoted(value: str | None, text: str) -> None:
    async def main() -> None:
        async with transport(environ={} if value is None else {"EGRESS": value}) as through:
            error = await failure(call(through, provider_at("https://up.example")))
            assert error == ("ConnectError", f"provider p: the environment variable EGRESS {text}")

    run(main())


def test_it_is_the_proxys_address_that_is_judged_and_the_providers_only_where_it_is_plain_to_see() -> None:
    async def main() -> None:
        looked_up: list[str] = []

        def resolve(host: str, port: int) -> list[str]:
            looked_up.append(host)
            return ["10.0.0.1"]

        environ = {"EGRESS": "http://proxy.example:3128"}
        async with transport(environ=environ, resolve=resolve) as through:
            _, text = await failure(call(through, provider_at("https://up.example")))
            assert text == (
                "provider p: proxy.example leads to 10.0.0.1, and addresses that are not public need allow_private_addresses"
            )
            for host in ("10.0.0.1", "127.0.0.1", "localhost", "[::1]", "169.254.169.254"):
                _, text = await failure(call(through, provider_at(f"https://{host}/v1")))
                assert text.endswith("behind a proxy is not public and needs allow_private_addresses")
            assert looked_up == ["proxy.example"]

    run(main())


def test_proxies_of_the_environment_are_not_used_unless_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    async def main() -> None:
        async with scripted(KEEPS_ANSWERING) as upstream, transport() as through:
            assert await call(through, provider_at(upstream.base_url, proxy_env=None)) == b"ok"

    run(main())


def test_each_provider_is_called_over_its_own_transport() -> None:
    async def main() -> None:
        async with scripted(KEEPS_ANSWERING) as upstream, transport() as second:
            first = Http1Transport(environ={})
            both = Transports(http1=first, httpx=second)
            for kind, made, wanted in (("http1", "Response", (1, 0)), ("httpx", "Answer", (1, 0))):
                provider = provider_at(upstream.base_url, proxy_env=None, transport=kind)
                response = await send(both, provider)
                assert (await response.read(by=now() + 5, limit=2), type(response).__name__) == (b"ok", made)
                assert (first.open_connections, second.open_connections) == wanted
            await both.close()
            assert (first.open_connections, second.open_connections) == (0, 0)

    run(main())
