"""Where connections may go, and to whom."""

import ipaddress
import socket
from pathlib import Path
from typing import Any

import pytest

from gateway.upstream.dialing import is_literally_loopback, is_public
from tests.gateway.upstream.calling import KEEPS_ANSWERING, call, failure, http1_only, now, provider_at, send, transport
from tests.support.certificates import Authority
from tests.support.loops import LoopName, on_both_loops, run
from tests.support.scripted import AwaitPeer, Script, Send, scripted


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0",
        "10.1.2.3",
        "100.64.0.1",
        "100.127.255.255",
        "127.0.0.1",
        "127.8.8.8",
        "169.254.169.254",
        "172.16.0.1",
        "192.0.2.1",
        "192.168.1.1",
        "198.18.0.1",
        "224.0.0.1",
        "239.1.1.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::ffff:127.0.0.1",
        "::ffff:8.8.8.8",
        "64:ff9b::7f00:1",
        "64:ff9b:1::1",
        "2002:7f00:1::",
        "2002:a00:1::",
        "2001:db8::1",
        "fc00::1",
        "fd12::1",
        "fe80::1",
        "fe80::1%eth0",
        "fec0::1",
        "ff02::1",
        "ff0e::1",
    ],
)
def test_an_address_behind_which_something_private_may_stand_is_not_public(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "100.63.255.255", "100.128.0.0", "172.32.0.1", "2606:4700::1111", "64:ff9b::808:808"]
)
def test_an_ordinary_address_is_public(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


def test_loopback_is_literal_or_not_at_all() -> None:
    hosts = ["127.0.0.1", "127.255.0.9", "::1", "localhost", "LOCALHOST"]
    others = ["localhost.", "127.1", "2130706433", "0x7f.0.0.1", "localhost.example", "::2", "0.0.0.0", "10.0.0.1"]
    assert [host for host in hosts + others if is_literally_loopback(host)] == hosts


@on_both_loops
@pytest.mark.parametrize("host", ["127.1", "2130706433", "inside.example"])
def test_a_name_that_leads_to_loopback_is_called_only_with_permission(host: str, loop: LoopName) -> None:
    def resolve(name: str, port: int) -> list[str]:
        return ["127.0.0.1"] if name == "inside.example" else [socket.getaddrinfo(name, port)[0][4][0]]  # type: ignore[list-item]

    async def main() -> None:
        async with scripted(KEEPS_ANSWERING) as upstream, transport(resolve=resolve) as through:
            base_url = f"http://{host}:{upstream.port}/v1"
            assert await failure(call(through, provider_at(upstream, base_url=base_url))) == (
                "ConnectError",
                f"provider p: {host} leads to 127.0.0.1, and addresses that are not public need allow_private_addresses",
            )
            assert upstream.connections == []
            allowed = provider_at(upstream, base_url=base_url, allow_private_addresses=True)
            assert await call(through, allowed) == b"ok"

    run(main(), loop=loop)


def test_a_private_address_is_no_way_in_even_when_it_is_written_out() -> None:
    async def main() -> None:
        async with scripted(KEEPS_ANSWERING) as upstream, transport() as through:
            for host in ("10.0.0.1", "169.254.169.254", "[::ffff:127.0.0.1]", "0.0.0.0", "[fd00::1]"):
                provider = provider_at(upstream, base_url=f"http://{host}:{upstream.port}/v1")
                name, text = await failure(call(through, provider))
                assert (name, "allow_private_addresses" in text) == ("ConnectError", True)

    run(main())


def test_localhost_that_leads_elsewhere_is_not_called() -> None:
    async def main() -> None:
        async with scripted(KEEPS_ANSWERING) as upstream, transport(resolve=lambda *_: ["10.0.0.1"]) as through:
            provider = provider_at(upstream, base_url=f"http://localhost:{upstream.port}/v1")
            assert await failure(call(through, provider)) == (
                "ConnectError",
                "provider p: localhost leads to 10.0.0.1, and addresses that are not public need allow_private_addresses",
            )

    run(main())


def test_of_mixed_addresses_only_the_public_ones_are_called() -> None:
    async def main() -> None:
        async with (
            scripted(KEEPS_ANSWERING) as upstream,
            transport(resolve=lambda *_: ["127.0.0.1", "192.0.2.1"]) as through,
        ):
            provider = provider_at(upstream, base_url=f"http://up.example:{upstream.port}/v1")
            assert (await failure(call(through, provider)))[0] == "ConnectError"
            assert upstream.connections == []

    run(main())


@on_both_loops
def test_an_address_that_refuses_is_followed_by_the_next(loop: LoopName) -> None:
    async def main() -> None:
        resolve = lambda *_: ["127.0.0.2", "127.0.0.1"]  # noqa: E731
        async with scripted(KEEPS_ANSWERING) as upstream, transport(resolve=resolve) as through:
            base_url = f"http://up.example:{upstream.port}/v1"
            provider = provider_at(upstream, base_url=base_url, allow_private_addresses=True)
            assert await call(through, provider) == b"ok"

    run(main(), loop=loop)


@on_both_loops
def test_an_address_that_says_nothing_takes_its_share_of_the_time_and_the_next_is_tried(loop: LoopName) -> None:
    async def main() -> None:
        # A listening socket whose queue is full drops what comes: connecting to it takes for ever.
        with socket.socket() as deaf:
            deaf.bind(("127.0.0.2", 0))
            deaf.listen(0)
            port = deaf.getsockname()[1]
            fillers = [socket.socket() for _ in range(4)]
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(("127.0.0.2", port))
            resolve = lambda *_: ["127.0.0.2", "127.0.0.3"]  # noqa: E731
            async with transport(resolve=resolve) as through, scripted(KEEPS_ANSWERING) as upstream:
                base_url = f"http://up.example:{port}/v1"
                provider = provider_at(upstream, base_url=base_url, allow_private_addresses=True)
                started = now()
                name, text = await failure(send(through, provider, connect_within=0.3))
                assert (name, text) == ("ConnectError", "provider p: 127.0.0.3: Connection refused")
                assert 0.14 < now() - started < 0.25
                only = provider_at(upstream, base_url=f"http://127.0.0.2:{port}/v1")
                started = now()
                assert (await failure(send(through, only, connect_within=0.2)))[0] == "ConnectTimeout"
                assert 0.19 < now() - started < 0.25
            for filler in fillers:
                filler.close()

    run(main(), loop=loop)


@on_both_loops
def test_a_refused_connection_and_an_unknown_name_are_connect_errors(loop: LoopName) -> None:
    def resolve(host: str, port: int) -> list[str]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async def main() -> None:
        async with scripted(KEEPS_ANSWERING) as upstream:
            provider = provider_at(upstream)
        async with transport(resolve=resolve) as through:
            error = await failure(call(through, provider))
            assert error == ("ConnectError", "provider p: 127.0.0.1: Connection refused")
            unknown = provider_at(upstream, base_url="http://nowhere.example/v1")
            error = await failure(call(through, unknown))
            assert error == ("ConnectError", "provider p: nowhere.example: Name or service not known")

    run(main(), loop=loop)


@pytest.mark.parametrize(
    "base_url",
    [
        "ftp://127.0.0.1/v1",
        "http://",
        "http:///v1",
        "http://127.0.0.1:0/v1",
        "http://127.0.0.1:99999/v1",
        "http://[::1/v1",
        "127.0.0.1",
        "",
        "http://127.0.0.1/a b",
    ],
)
def test_a_base_url_that_cannot_be_called_is_a_connect_error(base_url: str) -> None:
    async def main() -> None:
        async with scripted(KEEPS_ANSWERING) as upstream, transport() as through:
            assert (await failure(call(through, provider_at(upstream, base_url=base_url))))[0] == "ConnectError"

    run(main())


@on_both_loops
def test_tls_is_verified_against_the_ca_file_names_the_host_and_keeps_connections(
    kind: str, loop: LoopName, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    context = authority.server_context("up.example")
    names: list[str | None] = []
    context.sni_callback = lambda _socket, name, _context: names.append(name)

    async def main() -> None:
        resolve = lambda *_: ["127.0.0.1"]  # noqa: E731
        async with scripted(KEEPS_ANSWERING, tls=context) as upstream, transport(resolve=resolve) as through:
            provider = provider_at(
                upstream,
                base_url=f"https://up.example:{upstream.port}/v1",
                ca_file=str(authority.ca_file),
                allow_private_addresses=True,
            )
            body = b"x" * 3_000_000
            for _ in range(3):
                assert await call(through, provider, body) == b"ok"
            assert [request.body == body for request in upstream.requests] == [True] * 3
            assert names == ["up.example"] * len(upstream.connections)
            if kind == "httpx":
                return
            assert len(upstream.connections) <= 2
            connection: Any = next(iter(through._pools["p"]._open))
            assert connection._transport.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"

    run(main(), loop=loop)


@on_both_loops
@pytest.mark.parametrize("fault", ["unknown authority", "other name", "not TLS", "no such ca_file", "ca_file of text"])
def test_a_server_that_is_not_shown_to_be_the_right_one_is_sent_nothing(
    fault: str, loop: LoopName, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    tls = (
        None if fault == "not TLS" else authority.server_context("up.example" if fault == "other name" else "127.0.0.1")
    )
    (tmp_path / "text").write_text("no certificate")
    ca_files = {
        "unknown authority": None,
        "ca_file of text": str(tmp_path / "text"),
        "no such ca_file": str(tmp_path / "none"),
    }
    ca_file = ca_files.get(fault, str(authority.ca_file))

    async def main() -> None:
        plain: Script = [Send(b"HTTP/1.1 400 Bad Request\r\n\r\n")]
        script = plain if tls is None else KEEPS_ANSWERING
        async with scripted(script, tls=tls) as upstream, transport() as through:
            provider = provider_at(upstream, base_url=f"https://127.0.0.1:{upstream.port}/v1", ca_file=ca_file)
            name, text = await failure(call(through, provider))
            assert name == "ConnectError", text
            assert upstream.requests == []
            assert through.in_use("p") == 0

    run(main(), loop=loop)


@http1_only
@on_both_loops
def test_small_writes_are_not_held_back(loop: LoopName) -> None:
    async def main() -> None:
        async with scripted(KEEPS_ANSWERING) as upstream, transport() as through:
            await call(through, provider_at(upstream))
            connection: Any = next(iter(through._pools["p"]._open))
            used = connection._transport.get_extra_info("socket")
            assert used.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0

    run(main(), loop=loop)


def test_a_refused_address_leaves_no_connection_and_no_place_behind() -> None:
    async def main() -> None:
        async with scripted([AwaitPeer()]) as upstream, transport() as through:
            provider = provider_at(upstream, base_url="http://10.0.0.1/v1", max_in_flight=1)
            for _ in range(3):
                assert (await failure(call(through, provider)))[0] == "ConnectError"
            assert (through.open_connections, through.in_use("p")) == (0, 0)

    run(main())
