"""What RFC 9110 and 9112 allow in a head is read; what they forbid fails the attempt; what is odd in between is one of the two."""

import pytest

from tests.faults.stories import HEAD, SIDES, failed_over, told
from tests.support.loops import in_loop
from tests.support.scripted import LAST_CHUNK, AwaitPeer, Close, Expect, Script, Send, chunk

pytestmark = pytest.mark.usefixtures("transport")

H11_READS_OTHERWISE = (
    "line breaks before the answer",
    "two equal lengths",
    "a list of equal lengths",
    "a folded line",
    "a line folded with a tab",
    "bare line feeds",
)
"""What `httpx` takes where `http1` refuses it, or the other way round; its connection carries no other call."""


@pytest.fixture(autouse=True)
def _where_both_agree(request: pytest.FixtureRequest, transport: str) -> None:
    if transport == "httpx" and request.node.callspec.params.get("oddity") in H11_READS_OTHERWISE:
        pytest.skip("h11 reads it otherwise")


BODY = SIDES["chat"].body("hello", stream=False)
SIZE = b"%d" % len(BODY)
LENGTH = b"content-length: " + SIZE + b"\r\n"
CHUNKS = chunk(BODY) + LAST_CHUNK
OK = HEAD

READ: dict[str, bytes] = {
    "no reason": b"HTTP/1.1 200 \r\n" + LENGTH + b"\r\n" + BODY,
    "no reason and no space": b"HTTP/1.1 200\r\n" + LENGTH + b"\r\n" + BODY,
    "a reason in another coding": b"HTTP/1.1 200 \xc3\xa9\xff\r\n" + LENGTH + b"\r\n" + BODY,
    "a reason with tabs and digits": b"HTTP/1.1 200 500\tInternal  Error\r\n" + LENGTH + b"\r\n" + BODY,
    "names in capitals": OK + b"CONTENT-LENGTH: " + SIZE + b"\r\nX-A: B\r\n\r\n" + BODY,
    "mixed case": OK + b"CoNtEnT-LeNgTh: " + SIZE + b"\r\n\r\n" + BODY,
    "no space behind the colon": OK + b"content-length:" + SIZE + b"\r\nx-a:b\r\n\r\n" + BODY,
    "tabs around a value": OK + b"content-length:\t" + SIZE + b"\t \r\n\r\n" + BODY,
    "an empty value": OK + LENGTH + b"x-a:\r\nx-b: \r\nx-c:\t\r\n\r\n" + BODY,
    "an empty content-type": OK + LENGTH + b"content-type:\r\n\r\n" + BODY,
    "no content-type": OK + LENGTH + b"\r\n" + BODY,
    "an odd content-type": OK + LENGTH + b'content-type: Application/JSON ; charset="utf-8"; x\r\n\r\n' + BODY,
    "a value with obs-text": OK + LENGTH + b"x-a: \x80\xff\xc3\xa9\r\n\r\n" + BODY,
    "a value with quotes and commas": OK + LENGTH + b'x-a: "a, b", (c (d)), e=f;g\r\n\r\n' + BODY,
    "a name of odd token characters": OK + LENGTH + b"!#$%&'*+-.^_`|~09: x\r\n\r\n" + BODY,
    "five hundred fields": OK + b"x-a: b\r\n" * 500 + LENGTH + b"\r\n" + BODY,
    "the same field often": OK + b"set-cookie: a=b\r\n" * 50 + LENGTH + b"\r\n" + BODY,
    "a length with zeros in front": OK + b"content-length: 000000" + SIZE + b"\r\n\r\n" + BODY,
    "chunked in capitals": OK + b"Transfer-Encoding: CHUNKED\r\n\r\n" + CHUNKS,
    "chunked with space around": OK + b"transfer-encoding: \t chunked \r\n\r\n" + CHUNKS,
    "keep-alive with parameters": OK
    + b"connection: Keep-Alive\r\nkeep-alive: timeout=5, max=1\r\n"
    + LENGTH
    + b"\r\n"
    + BODY,
    "connection: close": OK + b"connection: close\r\n" + LENGTH + b"\r\n" + BODY,
    "connection: Close among others": OK + b"connection: x-a , Close\r\nx-a: 1\r\n" + LENGTH + b"\r\n" + BODY,
    "HTTP/1.0": b"HTTP/1.0 200 OK\r\n" + LENGTH + b"\r\n" + BODY,
    "HTTP/1.0 without a length": b"HTTP/1.0 200 OK\r\n\r\n" + BODY,
    "an upgrade that is only offered": OK + b"upgrade: h2c\r\n" + LENGTH + b"\r\n" + BODY,
    "an offered alternative": OK + b'alt-svc: h3=":443"; ma=2592000\r\n' + LENGTH + b"\r\n" + BODY,
    "interim answers before it": b"HTTP/1.1 102 Processing\r\n\r\n" * 3 + OK + LENGTH + b"\r\n" + BODY,
    "identity as a coding": OK + b"content-encoding: identity\r\n" + LENGTH + b"\r\n" + BODY,
    "an empty coding": OK + b"content-encoding:\r\n" + LENGTH + b"\r\n" + BODY,
    "a trailer that is announced": OK + b"trailer: x-a\r\ntransfer-encoding: chunked\r\n\r\n" + CHUNKS,
    "line breaks before the answer": b"\r\n\r\n" + OK + LENGTH + b"\r\n" + BODY,
}
REFUSED: dict[str, bytes] = {
    "two equal lengths": OK + LENGTH + LENGTH + b"\r\n" + BODY,
    "two different lengths": OK + LENGTH + b"content-length: 3\r\n\r\n" + BODY,
    "a list of equal lengths": OK + b"content-length: " + SIZE + b", " + SIZE + b"\r\n\r\n" + BODY,
    "a length with a sign": OK + b"content-length: +" + SIZE + b"\r\n\r\n" + BODY,
    "a negative length": OK + b"content-length: -1\r\n\r\n" + BODY,
    "a length in another notation": OK + b"content-length: 0x10\r\n\r\n" + BODY,
    "a length with a fraction": OK + b"content-length: " + SIZE + b".0\r\n\r\n" + BODY,
    "an empty length": OK + b"content-length:\r\n\r\n" + BODY,
    "a length beyond 64 bits": OK + b"content-length: 18446744073709551616\r\n\r\n" + BODY,
    "a length and chunks": OK + LENGTH + b"transfer-encoding: chunked\r\n\r\n" + CHUNKS,
    "chunks and a length": OK + b"transfer-encoding: chunked\r\n" + LENGTH + b"\r\n" + CHUNKS,
    "chunked twice": OK + b"transfer-encoding: chunked, chunked\r\n\r\n" + CHUNKS,
    "chunked in two fields": OK + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n" + CHUNKS,
    "a coding before chunked": OK + b"transfer-encoding: gzip, chunked\r\n\r\n" + CHUNKS,
    "a coding behind chunked": OK + b"transfer-encoding: chunked, gzip\r\n\r\n" + CHUNKS,
    "identity as a transfer coding": OK + b"transfer-encoding: identity\r\n" + LENGTH + b"\r\n" + BODY,
    "an unknown transfer coding": OK + b"transfer-encoding: xchunked\r\n\r\n" + CHUNKS,
    "an empty transfer coding": OK + b"transfer-encoding:\r\n" + LENGTH + b"\r\n" + BODY,
    "chunked with a parameter": OK + b"transfer-encoding: chunked;q=1\r\n\r\n" + CHUNKS,
    "chunked with a vertical tab": OK + b"transfer-encoding: \x0bchunked\r\n\r\n" + CHUNKS,
    "a space before the colon": OK + b"content-length : " + SIZE + b"\r\n\r\n" + BODY,
    "a space before a name": OK + b" x-a: b\r\n" + LENGTH + b"\r\n" + BODY,
    "a folded line": OK + b"x-a: b\r\n c\r\n" + LENGTH + b"\r\n" + BODY,
    "a line folded with a tab": OK + b"x-a: b\r\n\tc\r\n" + LENGTH + b"\r\n" + BODY,
    "a line without a colon": OK + b"nonsense\r\n" + LENGTH + b"\r\n" + BODY,
    "an empty name": OK + b": x\r\n" + LENGTH + b"\r\n" + BODY,
    "a null byte in a value": OK + b"x-a: a\0b\r\n" + LENGTH + b"\r\n" + BODY,
    "a null byte in a name": OK + b"x\0a: b\r\n" + LENGTH + b"\r\n" + BODY,
    "a bare carriage return in a value": OK + b"x-a: a\rx-b: c\r\n" + LENGTH + b"\r\n" + BODY,
    "bare line feeds": b"HTTP/1.1 200 OK\n" + LENGTH.replace(b"\r", b"") + b"\n" + BODY,
    "a name in another coding": OK + b"x-\xc3\xa9: b\r\n" + LENGTH + b"\r\n" + BODY,
    "a name with a bracket": OK + b"x[a]: b\r\n" + LENGTH + b"\r\n" + BODY,
    "a status of two digits": b"HTTP/1.1 20 OK\r\n" + LENGTH + b"\r\n" + BODY,
    "a status of four digits": b"HTTP/1.1 2000 OK\r\n" + LENGTH + b"\r\n" + BODY,
    "a status that is no number": b"HTTP/1.1 2xx OK\r\n" + LENGTH + b"\r\n" + BODY,
    "a version of one number": b"HTTP/1 200 OK\r\n" + LENGTH + b"\r\n" + BODY,
    "a version in small letters": b"http/1.1 200 OK\r\n" + LENGTH + b"\r\n" + BODY,
    "a version of the future": b"HTTP/1.2 200 OK\r\n" + LENGTH + b"\r\n" + BODY,
    "chunks in HTTP/1.0": b"HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + CHUNKS,
}


def playing(wire: bytes) -> Script:
    return [Expect(), Send(wire), Close() if b"length" not in wire.lower() else AwaitPeer()]


@pytest.mark.parametrize("oddity", READ)
@in_loop
async def test_an_odd_head_that_is_allowed_is_read(oddity):
    story = await told(playing(READ[oddity]), side=SIDES["chat"], stream=False)
    assert (story.reply.status, story.reply.body, story.attempts) == (200, BODY, [("a", "ok", None)])
    assert {name for name, _ in story.reply.headers} == {b"content-type", b"content-length", b"x-request-id"}
    assert story.reply.header("content-type") == "application/json"


@pytest.mark.parametrize("oddity", REFUSED)
@in_loop
async def test_an_odd_head_that_is_forbidden_gives_way_to_the_other_target(oddity):
    story = await told([Expect(), Send(REFUSED[oddity]), Close()], side=SIDES["chat"], stream=False)
    failed_over(story, SIDES["chat"], stream=False, code="upstream_protocol_error")


@pytest.mark.parametrize("oddity", ["no reason", "five hundred fields", "mixed case", "connection: close", "HTTP/1.0"])
@in_loop
async def test_the_same_heads_begin_a_stream(oddity):
    body = SIDES["chat"].whole("hello")
    wire = READ[oddity].replace(BODY, body).replace(SIZE + b"\r\n", b"%d\r\n" % len(body))
    story = await told([Expect(), Send(wire), AwaitPeer()], side=SIDES["chat"], stream=True)
    assert (story.reply.status, story.reply.body, story.attempts) == (200, body, [("a", "ok", None)])


@pytest.mark.parametrize(
    "kind", [b"application/json", b"Application/JSON; charset=x", b"TEXT/HTML", b"application/problem+json"]
)
@in_loop
async def test_a_stream_that_says_it_is_none_is_not_waited_for(kind):
    wire = HEAD + b"content-type: " + kind + b"\r\n\r\n"
    story = await told([Expect(), Send(wire), AwaitPeer()], side=SIDES["chat"], stream=True)
    failed_over(story, SIDES["chat"], stream=True, code="upstream_malformed")


@pytest.mark.parametrize(
    "kind", [b"", b"content-type:\r\n", b"content-type: text/plain\r\n", b"content-type: TEXT/EVENT-STREAM;x\r\n"]
)
@in_loop
async def test_a_stream_that_does_not_say_so_is_one_by_its_events(kind):
    body = SIDES["chat"].whole("hello")
    wire = HEAD + kind + b"content-length: %d\r\n\r\n" % len(body) + body
    story = await told([Expect(), Send(wire), AwaitPeer()], side=SIDES["chat"], stream=True)
    assert (story.reply.body, story.attempts) == (body, [("a", "ok", None)])
    assert story.reply.header("content-type") == "text/event-stream; charset=utf-8"
