"""Answers in codings that nobody asked for: plain to the client where they can be undone, a failed attempt where not."""

import asyncio
import gzip
import zlib

import pytest

from tests.faults.stories import (
    CHAT,
    SIDES,
    attempts,
    broke,
    failed_over,
    head,
    refused,
    settle,
    told,
)
from tests.support.loops import in_loop
from tests.support.relays import in_order, relaying, target_on
from tests.support.scripted import (
    LAST_CHUNK,
    Await,
    AwaitPeer,
    Close,
    Expect,
    Pause,
    Script,
    Send,
    answer,
    chunk,
    scripted,
)

pytestmark = pytest.mark.usefixtures("transport")


def deflated(data: bytes, wbits: int) -> bytes:
    packer = zlib.compressobj(wbits=wbits)
    return packer.compress(data) + packer.flush()


def packed(data: bytes, coding: str) -> bytes:
    match coding:
        case "gzip" | "x-gzip" | "GZip":
            return gzip.compress(data)
        case "deflate":
            return deflated(data, zlib.MAX_WBITS)
        case _:
            return deflated(data, -zlib.MAX_WBITS)


CODINGS = ["gzip", "x-gzip", "GZip", "deflate", "deflate without a head"]


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("coding", CODINGS)
@in_loop
async def test_a_compressed_answer_reaches_the_client_plain_and_its_usage_is_known(coding, side):
    body = SIDES[side].body("é日🙂", stream=False)
    wire = answer(packed(body, coding), headers={"content-encoding": coding.split()[0], "vary": "accept-encoding"})
    story = await told([Expect(), Send(wire), AwaitPeer()], side=SIDES[side], stream=False)
    assert (story.reply.status, story.reply.body, story.attempts) == (200, body, [("a", "ok", None)])
    assert (story.reply.header("content-encoding"), story.reply.header("content-length")) == (None, str(len(body)))
    assert (story.end.input_tokens, story.end.output_tokens, story.end.usage_quality) == (5, 2, "reported")
    assert dict(story.bad.requests[0].headers)[b"accept-encoding"] == b"identity"


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("coding", CODINGS)
@in_loop
async def test_a_compressed_stream_reaches_the_client_plain(coding, side):
    body = SIDES[side].whole("é日🙂")
    raw = packed(body, coding)
    pieces = b"".join(chunk(raw[at : at + 7]) for at in range(0, len(raw), 7))
    more = b"content-encoding: " + coding.split()[0].encode() + b"\r\ntransfer-encoding: chunked\r\n"
    wire = head(stream=True, more=more) + pieces + LAST_CHUNK
    story = await told([Expect(), Send(wire), AwaitPeer()], side=SIDES[side], stream=True)
    assert (story.reply.status, story.reply.body, story.attempts) == (200, body, [("a", "ok", None)])
    assert story.reply.header("content-encoding") is None


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@in_loop
async def test_each_event_of_a_compressed_stream_comes_when_it_was_flushed(coding):
    packer = zlib.compressobj(wbits=31 if coding == "gzip" else 15)

    def flushed(event: bytes) -> Send:
        return Send(chunk(packer.compress(event) + packer.flush(zlib.Z_SYNC_FLUSH)))

    events = [CHAT.opening + CHAT.content("one"), CHAT.content("two"), CHAT.content("three")]
    heard = [asyncio.Event() for _ in events]
    more = b"content-encoding: " + coding.encode() + b"\r\ntransfer-encoding: chunked\r\n"
    script: Script = [
        Expect(),
        Send(head(stream=True, more=more)),
        *[step for event, gate in zip(events, heard, strict=True) for step in (flushed(event), Await(gate))],
        Send(chunk(packer.compress(CHAT.ending) + packer.flush()) + LAST_CHUNK),
        AwaitPeer(),
    ]
    async with scripted(script) as upstream, relaying(in_order(target_on(upstream, "a"))) as bench:
        call = bench.call(CHAT.path, CHAT.asking(stream=True))
        for event, gate in zip(events, heard, strict=True):
            await call.until(event)
            gate.set()
        reply = await call.answered()
    assert reply.body == b"".join(events) + CHAT.ending
    assert bench.end.outcome == "success"


PLAIN = CHAT.body("evil", stream=False)
GZIPPED = gzip.compress(PLAIN)

UNREADABLE: dict[str, tuple[bytes, bytes]] = {
    "brotli": (b"br", b"\x8b\x02\x80{}\x03"),
    "zstd": (b"zstd", b"(\xb5/\xfd\x04\x00\x11\x00\x00{}"),
    "compress": (b"compress", b"\x1f\x9d\x90{"),
    "a coding nobody knows": (b"x-secret", PLAIN),
    "gzip twice": (b"gzip, gzip", gzip.compress(GZIPPED)),
    "brotli around gzip": (b"gzip, br", GZIPPED),
    "gzip that is plain": (b"gzip", PLAIN),
    "gzip that is deflate": (b"gzip", deflated(PLAIN, 15)),
    "deflate that is gzip": (b"deflate", GZIPPED),
    "gzip with a wrong checksum": (b"gzip", GZIPPED[:-8] + b"\0\0\0\0" + GZIPPED[-4:]),
    "gzip with a wrong length": (b"gzip", GZIPPED[:-4] + b"\0\0\0\0"),
    "gzip with more behind it": (b"gzip", GZIPPED + b"\r\nHTTP/1.1 200 OK"),
    "gzip with a broken block": (b"gzip", GZIPPED[:20] + b"\xff" * 20 + GZIPPED[40:]),
    "empty members without end": (b"gzip", gzip.compress(b"") * 2_000),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", UNREADABLE)
@in_loop
async def test_what_cannot_be_decoded_gives_way_to_the_other_target(fault, stream):
    coding, body = UNREADABLE[fault]
    wire = head(stream=stream, more=b"content-encoding: %b\r\ncontent-length: %d\r\n" % (coding, len(body))) + body
    script: Script = [Expect(), Send(wire), AwaitPeer()]
    story = await told(script, side=CHAT, stream=stream)
    failed_over(story, CHAT, stream=stream, code="upstream_encoding_error")
    alone = await told(script, side=CHAT, stream=stream, alone=True)
    refused(alone, 502, "upstream_error")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("at", [1, 9, 12, -9, -1])
@in_loop
async def test_a_compressed_body_that_is_cut_gives_way_although_its_framing_is_whole(at, stream):
    body = CHAT.opening if stream else PLAIN
    raw = gzip.compress(body)[:at]
    wire = head(stream=stream, more=b"content-encoding: gzip\r\ncontent-length: %d\r\n" % len(raw)) + raw
    story = await told([Expect(), Send(wire), AwaitPeer()], side=CHAT, stream=stream)
    failed_over(story, CHAT, stream=stream, code="upstream_connection_lost")


@pytest.mark.parametrize("side", SIDES)
@in_loop
async def test_a_compressed_stream_that_breaks_after_content_ends_in_an_error_event(side):
    speaking = SIDES[side]
    delivered = speaking.opening + speaking.content("hello")
    packer = zlib.compressobj(wbits=31)
    good = packer.compress(delivered) + packer.flush(zlib.Z_SYNC_FLUSH)
    more = b"content-encoding: gzip\r\ntransfer-encoding: chunked\r\n"
    script: Script = [
        Expect(),
        Send(head(stream=True, more=more) + chunk(good)),
        Pause(0.02),
        Send(chunk(b"\xff" * 40)),
        AwaitPeer(),
    ]
    story = await told(script, side=speaking, stream=True)
    broke(story, speaking, delivered=delivered, code="upstream_stream_truncated", attempt="upstream_stream_truncated")


@in_loop
async def test_a_compressed_stream_whose_trailer_is_missing_is_whole_when_all_was_said():
    packer = zlib.compressobj(wbits=31)
    raw = packer.compress(CHAT.whole("hello")) + packer.flush(zlib.Z_SYNC_FLUSH)
    wire = head(stream=True, more=b"content-encoding: gzip\r\n") + raw
    story = await told([Expect(), Send(wire), Close()], side=CHAT, stream=True)
    assert (story.reply.body, story.attempts) == (CHAT.whole("hello"), [("a", "ok", None)])


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@in_loop
async def test_a_compressed_error_is_read_and_passed_on_plain(coding):
    said = b'{"error":{"message":"image too large"}}'
    wire = answer(packed(said, coding), status=400, headers={"content-encoding": coding})
    story = await told([Expect(), Send(wire), AwaitPeer()], side=CHAT, stream=False)
    assert (story.reply.status, story.reply.body) == (400, said)
    assert story.reply.header("content-encoding") is None


@in_loop
async def test_the_connection_of_a_compressed_answer_serves_again(transport):
    wire = answer(GZIPPED, headers={"content-encoding": "gzip"})
    async with scripted([Expect(), Send(wire)] * 3) as upstream, relaying(in_order(target_on(upstream, "a"))) as bench:
        for _ in range(3):
            assert (await bench.post(CHAT.path, CHAT.asking(stream=False))).body == PLAIN
        assert (len(upstream.connections), attempts(bench)) == (1 if transport == "http1" else 3, [("a", "ok", None)])
        await settle(bench, upstream, requests=3)


def bomb(megabytes: int, *, start: bytes = b"", piece: bytes = b" " * (1 << 20)) -> bytes:
    packer = zlib.compressobj(1, wbits=31)
    return packer.compress(start) + b"".join(packer.compress(piece) for _ in range(megabytes)) + packer.flush()


@pytest.mark.parametrize("stream", [False, True])
@in_loop
async def test_a_bomb_is_stopped_at_the_limit_of_an_answer(stream):
    raw = bomb(40, start=b'data: {"x":' if stream else b"")
    assert len(raw) < 400_000
    wire = head(stream=stream, more=b"content-encoding: gzip\r\ncontent-length: %d\r\n" % len(raw)) + raw
    story = await told([Expect(), Send(wire), AwaitPeer()], side=CHAT, stream=stream)
    code = "upstream_malformed" if stream else "upstream_response_too_large"
    failed_over(story, CHAT, stream=stream, code=code)


@in_loop
async def test_a_bomb_in_an_error_leaves_its_status():
    wire = answer(bomb(40), status=429, headers={"content-encoding": "gzip", "retry-after": "9"})
    story = await told([Expect(), Send(wire), AwaitPeer()], side=CHAT, stream=False, alone=True)
    assert (story.reply.status, story.reply.header("retry-after")) == (429, "9")
