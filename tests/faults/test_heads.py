"""Answers whose head is broken, late, hostile or means something else: no client ever sees them."""

import pytest

from gateway.relay.attempt import MAX_ERROR_BYTES
from tests.faults.stories import HEAD, SIDES, Told, failed_over, refused, told
from tests.support.loops import in_loop
from tests.support.scripted import AwaitPeer, Close, Expect, Flood, Reset, Script, Send, answer, scripted

pytestmark = pytest.mark.usefixtures("transport")


@pytest.fixture(autouse=True)
def _where_both_agree(request: pytest.FixtureRequest, transport: str) -> None:
    if transport == "httpx" and request.node.callspec.params.get("fault") == "nine interim answers":
        pytest.skip("httpx counts their bytes, not them")


GOOD = b'{"choices":[{"message":{"content":"evil"}}],"type":"message","content":[{"type":"text","text":"evil"}]}'

FAULTS: dict[str, tuple[Script, str]] = {
    "reset in the status line": ([Send(b"HTTP/1.1 20"), Reset()], "upstream_connection_lost"),
    "reset in the head": ([Send(HEAD + b"content-ty"), Reset()], "upstream_connection_lost"),
    "closed in the head": ([Send(HEAD + b"content-length: 9"), Close()], "upstream_connection_lost"),
    "closed after interim answers": ([Send(b"HTTP/1.1 100 Continue\r\n\r\n"), Close()], "upstream_connection_lost"),
    "another protocol": ([Send(b"SSH-2.0-OpenSSH_9.6\r\n"), Close()], "upstream_protocol_error"),
    "TLS": ([Send(b"\x15\x03\x01\x00\x02\x02\x0a"), Close()], "upstream_protocol_error"),
    "HTTP/0.9": ([Send(GOOD), Close()], "upstream_protocol_error"),
    "HTTP/2": ([Send(b"HTTP/2 200 OK\r\ncontent-length: 2\r\n\r\n{}"), Close()], "upstream_protocol_error"),
    "an upgrade": (
        [Send(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"), AwaitPeer()],
        "upstream_protocol_error",
    ),
    "a flood of interim answers": (
        [Flood(b"HTTP/1.1 100 Continue\r\n\r\n" * 2_000, 1 << 24), AwaitPeer()],
        "upstream_response_too_large",
    ),
    "nine interim answers": (
        [Send(b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" * 9 + answer(GOOD)), AwaitPeer()],
        "upstream_response_too_large",
    ),
    "interim answers as large as a head": (
        [Send((b"HTTP/1.1 103 Early Hints\r\nx-a: " + b"y" * 10_000 + b"\r\n\r\n") * 7 + answer(GOOD)), AwaitPeer()],
        "upstream_response_too_large",
    ),
    "a header of 200 KiB": (
        [Send(HEAD + b"x-a: " + b"y" * 204_800 + b"\r\ncontent-length: 2\r\n\r\n{}"), AwaitPeer()],
        "upstream_response_too_large",
    ),
    "a header name of 200 KiB": (
        [Send(HEAD + b"y" * 204_800 + b": x\r\ncontent-length: 2\r\n\r\n{}"), AwaitPeer()],
        "upstream_response_too_large",
    ),
    "a head without end": (
        [Send(HEAD), Flood(b"x-a: b\r\n" * 4_000, 1 << 24), AwaitPeer()],
        "upstream_response_too_large",
    ),
    "a reason without end": (
        [Send(b"HTTP/1.1 200 "), Flood(b"OK " * 10_000, 1 << 24), AwaitPeer()],
        "upstream_response_too_large",
    ),
    "204": ([Send(b"HTTP/1.1 204 No Content\r\n\r\n"), AwaitPeer()], "upstream_error"),
    "204 with a body": (
        [Send(b"HTTP/1.1 204 No Content\r\ncontent-length: %d\r\n\r\n" % len(GOOD) + GOOD), AwaitPeer()],
        "upstream_error",
    ),
    "205": ([Send(b"HTTP/1.1 205 Reset Content\r\ncontent-length: 0\r\n\r\n"), AwaitPeer()], "upstream_error"),
    "201 with an answer": ([Send(answer(GOOD, status=201)), AwaitPeer()], "upstream_error"),
    "206 with an answer": ([Send(answer(GOOD, status=206)), AwaitPeer()], "upstream_error"),
    "304": ([Send(b"HTTP/1.1 304 Not Modified\r\n\r\n"), AwaitPeer()], "upstream_error"),
    "HTML with 200": (
        [Send(answer(b"<html>busy</html>", content_type="text/html; charset=utf-8")), AwaitPeer()],
        "upstream_malformed",
    ),
    "HTML with 200 that says it is JSON": ([Send(answer(b"<html>busy</html>")), AwaitPeer()], "upstream_malformed"),
    "nothing with 200": ([Send(answer(b"")), AwaitPeer()], "upstream_malformed"),
    "null with 200": ([Send(answer(b"null")), AwaitPeer()], "upstream_malformed"),
    "an error with 200": ([Send(answer(b'{"error":{"message":"boom"}}')), AwaitPeer()], "upstream_malformed"),
    "a page of a proxy with 500": (
        [Send(answer(b"<html>nginx</html>", status=500, content_type="text/html")), AwaitPeer()],
        "upstream_server_error",
    ),
    "500 without a body": (
        [Send(b"HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n"), AwaitPeer()],
        "upstream_server_error",
    ),
    "500 with half a body": (
        [Send(b'HTTP/1.1 500 Oops\r\ncontent-length: 999\r\n\r\n{"err'), Close()],
        "upstream_server_error",
    ),
    "500 with a body without end": (
        [Send(b"HTTP/1.1 500 Oops\r\n\r\n"), Flood(b"oops" * 8_000, 1 << 26), AwaitPeer()],
        "upstream_server_error",
    ),
}


@pytest.mark.parametrize(("side", "stream"), [("messages", False), ("chat", True)])
@pytest.mark.parametrize("fault", FAULTS)
@in_loop
async def test_a_broken_head_gives_way_to_the_other_target(fault, side, stream):
    script, code = FAULTS[fault]
    story = await told([Expect(), *script], side=SIDES[side], stream=stream)
    failed_over(story, SIDES[side], stream=stream, code=code)
    assert story.asked == {"a": 1, "b": 1}
    assert story.bad.connections[0].sent < 20_000_000


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
@in_loop
async def test_a_broken_head_alone_is_an_error_of_the_gateways(fault, stream):
    script, code = FAULTS[fault]
    side = SIDES["chat" if stream else "messages"]
    story = await told([Expect(), *script], side=side, stream=stream, alone=True)
    if code == "upstream_server_error":
        refused(story, 500, code)
    else:
        refused(story, 502, "upstream_error")
    assert "evil" not in story.reply.text


REDIRECTS = [301, 302, 303, 307, 308]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", REDIRECTS)
@in_loop
async def test_a_redirect_inside_is_never_followed(status, stream):
    async with scripted([Expect(), Send(answer(GOOD)), AwaitPeer()]) as inside:
        to = {"location": f"http://127.0.0.1:{inside.port}/v1/chat/completions", "refresh": "0; url=http://127.0.0.1/"}
        script: Script = [Expect(), Send(answer(GOOD, status=status, headers=to)), AwaitPeer()]
        story = await told(script, side=SIDES["chat"], stream=stream)
        alone = await told(script, side=SIDES["chat"], stream=stream, alone=True)
        assert inside.connections == []
    failed_over(story, SIDES["chat"], stream=stream, code="upstream_error")
    refused(alone, 502, "upstream_error")
    assert (alone.reply.header("location"), alone.reply.header("refresh")) == (None, None)


# The status counts, whatever becomes of the body behind it.

BROKEN_BODIES: dict[str, tuple[bytes, Script]] = {
    "cut": (b'content-length: 999\r\n\r\n{"error":', [Close()]),
    "reset": (b'content-length: 999\r\n\r\n{"error":', [Reset()]),
    "too large": (b"content-length: %d\r\n\r\n" % (MAX_ERROR_BYTES + 1), [Send(b" " * (MAX_ERROR_BYTES + 1))]),
    "without end": (b"\r\n", [Flood(b" " * 32_768, 1 << 24)]),
    "in bad chunks": (b"transfer-encoding: chunked\r\n\r\nzz\r\n", []),
    "in a coding nobody knows": (b"content-encoding: br\r\ncontent-length: 4\r\n\r\n\x8b\x02\x80\x00", []),
    "that is no gzip": (b"content-encoding: gzip\r\ncontent-length: 4\r\n\r\nplain"[:-1], []),
}


async def with_status(status: bytes, body: str, *, stream: bool, alone: bool = False, more: bytes = b"") -> Told:
    start, script = BROKEN_BODIES[body]
    wire = b"HTTP/1.1 " + status + b"\r\n" + more + start
    return await told([Expect(), Send(wire), *script, AwaitPeer()], side=SIDES["chat"], stream=stream, alone=alone)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("body", BROKEN_BODIES)
@in_loop
async def test_a_429_is_one_also_when_its_body_cannot_be_read(body, stream):
    story = await with_status(b"429 Slow Down", body, stream=stream, alone=True, more=b"retry-after: 20\r\n")
    assert (story.reply.status, story.reply.header("retry-after")) == (429, "20")
    assert story.attempts == [("a", "throttled", "upstream_rate_limited")]


@pytest.mark.parametrize("body", BROKEN_BODIES)
@in_loop
async def test_a_400_is_the_callers_fault_also_when_its_body_cannot_be_read(body):
    story = await with_status(b"400 Bad Request", body, stream=False)
    assert (story.reply.status, story.reply.json()["error"]["type"]) == (400, "invalid_request_error")
    assert story.attempts == [("a", "caller_fault", "upstream_bad_request")]
    assert story.books["a"] == (0.0, 0.0, 0.0, 0.0)
    assert story.asked == {"a": 1, "b": 0}


@pytest.mark.parametrize("body", BROKEN_BODIES)
@in_loop
async def test_a_401_is_the_gateways_also_when_its_body_cannot_be_read(body):
    story = await with_status(b"401 No", body, stream=False)
    assert story.attempts == [("a", "denied", "upstream_denied"), ("b", "ok", None)]
    assert story.reply.status == 200


ODD_ERRORS = [
    b'{"error":{"code":["insufficient_quota"],"type":{"a":1}}}',
    b'{"error":{"code":429,"type":null}}',
    b'{"error":[]}',
    b'{"error":null}',
    b'{"error":"insufficient_quota"}',
    b"[]",
    b"null",
    b'{"error":' * 200 + b"1" + b"}" * 200,
    b"[" * 30_000,
    b'\xef\xbb\xbf{"error":{"message":"x"}}',
    b'{"error":{"message":"\xff"}}',
    b'{"error":{"message":"\\ud800"}}',
    b'{"error":{"message":NaN}}',
]


@pytest.mark.parametrize("said", ODD_ERRORS)
@in_loop
async def test_an_error_body_of_any_build_is_the_callers_fault_and_no_defect(said):
    story = await told([Expect(), Send(answer(said, status=400)), AwaitPeer()], side=SIDES["chat"], stream=False)
    assert (story.reply.status, story.end.outcome) == (400, "refused")
    assert story.attempts == [("a", "caller_fault", "upstream_bad_request")]
    assert isinstance(story.reply.json(), dict)
