"""Compressed answers made plain, whatever their pieces, and bounded."""

import asyncio
import gzip
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.upstream.client import Headers, UpstreamResponse
from gateway.upstream.decoding import plain
from tests.gateway.upstream.calling import failure
from tests.support.loops import run


class Answer(UpstreamResponse):
    """An answer whose body comes in these pieces, and then ends."""

    status = 200
    complete_by_eof = False

    def __init__(self, *pieces: bytes, coding: str) -> None:
        self.headers: Headers = [
            (b"content-type", b"x/y"),
            (b"content-encoding", coding.encode()),
            (b"content-length", b"9"),
        ]
        self.pieces = list(pieces)
        self.closed = False

    async def receive(self, *, by: float) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""

    async def read(self, *, by: float, limit: int) -> bytes:
        raise NotImplementedError

    def close(self) -> None:
        self.closed = True


def deflated(data: bytes, wbits: int) -> bytes:
    packer = zlib.compressobj(wbits=wbits)
    return packer.compress(data) + packer.flush()


def packed(data: bytes, coding: str) -> bytes:
    return {
        "gzip": lambda: gzip.compress(data),
        "x-gzip": lambda: gzip.compress(data),
        "GZIP": lambda: gzip.compress(data),
        "gzip, identity": lambda: gzip.compress(data),
        "gzip in members": lambda: b"".join(gzip.compress(data[at : at + 10]) for at in range(0, len(data), 10)),
        "deflate": lambda: deflated(data, zlib.MAX_WBITS),
        "deflate without a head": lambda: deflated(data, -zlib.MAX_WBITS),
    }[coding]()


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


async def whole(answer: Answer, *, limit: int = 1 << 26) -> bytes:
    return await plain(answer).read(by=0, limit=limit)


CODINGS = ["gzip", "x-gzip", "GZIP", "gzip, identity", "gzip in members", "deflate", "deflate without a head"]


@pytest.mark.parametrize("coding", CODINGS)
@given(data=st.binary(min_size=1, max_size=400), size=st.integers(1, 60))
@settings(max_examples=12)
def test_a_body_comes_out_as_it_was_whatever_its_pieces(coding: str, data: bytes, size: int) -> None:
    name = coding.partition(" in ")[0].partition(" without ")[0]
    assert run(whole(Answer(*cut(packed(data, coding), size), coding=name))) == data


def test_the_head_then_names_neither_coding_nor_length() -> None:
    response = plain(Answer(coding="gzip"))
    assert (response.status, response.headers, response.complete_by_eof) == (200, [(b"content-type", b"x/y")], False)


@pytest.mark.parametrize("coding", ["identity", "", " Identity , identity"])
def test_an_answer_without_a_coding_is_itself(coding: str) -> None:
    answer = Answer(coding=coding)
    assert plain(answer) is answer


def test_an_empty_body_is_whole() -> None:
    for coding in ("gzip", "deflate"):
        assert run(whole(Answer(coding=coding))) == b""


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_what_was_flushed_comes_out_at_once(coding: str) -> None:
    packer = zlib.compressobj(wbits=31 if coding == "gzip" else 15)

    async def main() -> None:
        answer = Answer(coding=coding)
        response = plain(answer)
        for number in range(50):
            event = b"data: %d\n\n" % number
            answer.pieces = [packer.compress(event) + packer.flush(zlib.Z_SYNC_FLUSH)]
            assert await response.receive(by=0) == event
        answer.pieces = [packer.flush()]
        assert await response.receive(by=0) == b""

    run(main())


@pytest.mark.parametrize("data", [b"x" * 65_536, b"x" * 65_537, b"x" * 131_072, bytes(300_000)])
@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_the_bound_of_a_piece_loses_nothing(data: bytes, coding: str) -> None:
    assert run(whole(Answer(packed(data, coding), coding=coding))) == data


GOOD = gzip.compress(b'{"a":1}', mtime=0)  # the same name for a test in every worker


@pytest.mark.parametrize(
    ("body", "coding", "error"),
    [
        (b'{"a":1}', "gzip", "EncodingError"),
        (b"\xff\xff plain", "deflate", "EncodingError"),
        (b"x\x9c\xff\xff plain", "deflate", "EncodingError"),
        (GOOD + b"more", "gzip", "EncodingError"),
        (deflated(b"{}", 15) + b"more", "deflate", "EncodingError"),
        (GOOD[:-8] + b"\0" * 8, "gzip", "EncodingError"),
        (gzip.compress(b"", mtime=0) * 1_000, "gzip", "EncodingError"),
        (GOOD[:-1], "gzip", "ConnectionLost"),
        (GOOD[:5], "gzip", "ConnectionLost"),
        (GOOD + GOOD[:12], "gzip", "ConnectionLost"),
        (b"x", "deflate", "ConnectionLost"),
        (GOOD, "br", "EncodingError"),
        (GOOD, "zstd", "EncodingError"),
        (GOOD, "gzip, gzip", "EncodingError"),
        (GOOD, "gzip, br", "EncodingError"),
        (GOOD, "bogus", "EncodingError"),
    ],
)
def test_what_cannot_be_decoded_is_no_answer(body: bytes, coding: str, error: str) -> None:
    assert run(failure(whole(Answer(body, coding=coding))))[0] == error


def test_two_heads_that_name_a_coding_name_two() -> None:
    answer = Answer(GOOD, coding="gzip")
    answer.headers.append((b"content-encoding", b"gzip"))
    assert run(failure(whole(answer)))[0] == "EncodingError"


def test_a_bomb_is_read_up_to_its_limit_and_others_run_meanwhile() -> None:
    packer = zlib.compressobj(9, wbits=31)
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(64)) + packer.flush()
    assert len(bomb) < 100_000

    async def main() -> None:
        answer = Answer(bomb, coding="gzip")
        reading = asyncio.create_task(failure(whole(answer, limit=1 << 23)))
        turns = 0
        while not reading.done():
            turns += 1
            await asyncio.sleep(0)
        assert (await reading)[0] == "ResponseTooLarge"
        assert answer.closed
        assert turns >= 8

    run(main())


def test_a_bomb_is_handed_out_in_small_pieces() -> None:
    async def main() -> None:
        response = plain(Answer(gzip.compress(bytes(1 << 22)), coding="gzip"))
        sizes = []
        while data := await response.receive(by=0):
            sizes.append(len(data))
        assert (sum(sizes), max(sizes)) == (1 << 22, 65_536)

    run(main())


def test_closing_closes_what_it_reads() -> None:
    answer = Answer(coding="gzip")
    plain(answer).close()
    assert answer.closed
