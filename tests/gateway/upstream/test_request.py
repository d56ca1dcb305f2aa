"""What goes out."""

import pytest

from tests.gateway.upstream.calling import KEEPS_ANSWERING, call, failure, provider_at, send, transport
from tests.support.loops import LoopName, on_both_loops, run
from tests.support.scripted import scripted


@on_both_loops
def test_a_request_carries_host_identity_fixed_headers_credential_its_own_headers_and_length(loop: LoopName) -> None:
    async def main() -> None:
        async with scripted(KEEPS_ANSWERING) as upstream, transport(environ={"KEY": "sk-1"}) as through:
            provider = provider_at(upstream, api_key_env="KEY", headers=(("X-Team", "ml"),))
            await call(through, provider, b'{"a":1}', headers=[(b"content-type", b"application/json")])
            assert bytes(upstream.connections[0].raw) == (
                b"POST /v1/chat/completions HTTP/1.1\r\n"
                b"host: 127.0.0.1:%d\r\n"
                b"accept-encoding: identity\r\n"
                b"x-team: ml\r\n"
                b"authorization: Bearer sk-1\r\n"
                b"content-type: application/json\r\n"
                b"content-length: 7\r\n\r\n"
                b'{"a":1}' % upstream.port
            )

    run(main(), loop=loop)


def test_the_path_brings_its_query_along_and_a_trailing_slash_of_the_base_url_is_not_doubled() -> None:
    async def main() -> None:
        async with scripted(KEEPS_ANSWERING) as upstream, transport() as through:
            provider = provider_at(upstream, base_url=upstream.base_url + "/")
            await call(through, provider, path="/messages?beta=true")
            assert [request.line for request in upstream.requests] == [b"POST /v1/messages?beta=true HTTP/1.1"]

    run(main())


def test_a_fixed_header_takes_the_place_of_the_requests_own_and_of_the_credential() -> None:
    async def main() -> None:
        async with scripted(KEEPS_ANSWERING) as upstream, transport(environ={"KEY": "sk-1"}) as through:
            fixed = (("anthropic-version", "2024-01-01"), ("Authorization", "Basic eDp5"))
            provider = provider_at(upstream, api_key_env="KEY", headers=fixed)
            await call(through, provider, headers=[(b"anthropic-version", b"2023-06-01"), (b"x-a", b"b")])
            assert upstream.requests[0].headers[2:] == [
                (b"anthropic-version", b"2024-01-01"),
                (b"authorization", b"Basic eDp5"),
                (b"x-a", b"b"),
                (b"content-length", b"2"),
            ]

    run(main())


@pytest.mark.parametrize(
    "header",
    [
        (b"x-a", b"b\r\nx-evil: 1"),
        (b"x-a", b"b\nx-evil: 1"),
        (b"x-a", b"b\r"),
        (b"x-a\r\nx-evil", b"1"),
        (b"x-a", b"b\0"),
        (b"host", b"elsewhere"),
        (b"content-length", b"0"),
        (b"transfer-encoding", b"chunked"),
        (b"connection", b"close"),
        (b"authorization", b"Bearer callers"),
        (b"x-api-key", b"callers"),
        (b"accept-encoding", b"gzip"),
    ],
)
def test_a_header_that_could_choose_the_framing_the_host_or_the_key_is_not_sent(header: tuple[bytes, bytes]) -> None:
    async def main() -> None:
        async with scripted(KEEPS_ANSWERING) as upstream, transport() as through:
            name, _ = await failure(send(through, provider_at(upstream), headers=[header]))
            assert (name, upstream.connections) == ("ProtocolError", [])

    run(main())


@pytest.mark.parametrize("path", ["/a b", "/a\r\nx: y", "/\u00fc", "/a\0"])
def test_a_path_that_is_no_request_target_is_not_sent(path: str) -> None:
    async def main() -> None:
        async with scripted(KEEPS_ANSWERING) as upstream, transport() as through:
            name, _ = await failure(send(through, provider_at(upstream), path=path))
            assert (name, upstream.connections) == ("ProtocolError", [])

    run(main())


@pytest.mark.parametrize(
    "fixed",
    [("x a", "b"), ("", "b"), ("x-a", "b\r\nc: d"), ("x-a", "\u2603"), ("Content-Length", "3"), ("Host", "x")],
)
def test_a_fixed_header_that_cannot_be_sent_is_a_connect_error_naming_the_provider(fixed: tuple[str, str]) -> None:
    async def main() -> None:
        async with scripted(KEEPS_ANSWERING) as upstream, transport() as through:
            name, text = await failure(send(through, provider_at(upstream, headers=(fixed,))))
            assert (name, text.startswith("provider p: ")) == ("ConnectError", True)

    run(main())


@on_both_loops
def test_a_large_body_arrives_whole(kind: str, loop: LoopName) -> None:
    async def main() -> None:
        body = bytes(range(256)) * 16_384 + b"end"
        async with scripted(KEEPS_ANSWERING) as upstream, transport() as through:
            assert await call(through, provider_at(upstream), body) == b"ok"
            assert await call(through, provider_at(upstream), body) == b"ok"
            assert [request.body == body for request in upstream.requests] == [True, True]
            assert len(upstream.connections) == (1 if kind == "http1" else 2)

    run(main(), loop=loop)
