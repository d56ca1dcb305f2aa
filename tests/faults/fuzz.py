"""Feeds mutated bytes to every reader of what others wrote, and checks what must hold of each.

    python -m tests.faults.fuzz --seconds 60
    python -m tests.faults.fuzz --target http1 --seed 7 --case 1234      one case again

Case n of a target is the same for the same seed on every machine, whatever ran before it.
"""

import argparse
import asyncio
import json
import math
import random
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from gateway.dialects import anthropic_messages, openai_chat
from gateway.dialects.jsonbytes import object_in_steps, object_of, with_model
from gateway.dialects.neutral import BadRequest, MalformedAnswer
from gateway.dialects.sse import RawEvent, Splitter
from gateway.dialects.streams import Listener
from gateway.strict_yaml import parse
from gateway.upstream.connection import Bounds, Carrier
from gateway.upstream.errors import UpstreamError
from gateway.upstream.http1_connection import Http1Connection
from routing.core.catalog import NotANumber
from routing.core.errors import ExpressionError
from routing.core.expressions import NAMES, compile_expression

Target = Callable[[bytes, random.Random], None]
"""Takes an input; raises when something does not hold."""


# Server-sent events: any split gives the same events, and no byte is lost, added or moved.


def sse(data: bytes, rng: random.Random) -> None:
    whole, rest = _events([data])
    assert _events(_cut(data, rng)) == (whole, rest)
    assert _events([data[at : at + 1] for at in range(len(data))]) == (whole, rest)
    kept = b"".join(raw for raw, _, _ in whole)
    if not rest:
        assert data.removeprefix(b"\xef\xbb\xbf").startswith(kept) or data.startswith(kept)
    for raw, name, payload in whole:
        assert b"\n" not in name
        assert b"\r" not in name + payload
        assert len(raw) <= _EVENT_LIMIT


_EVENT_LIMIT = 300


def _events(pieces: Sequence[bytes]) -> tuple[list[RawEvent], bool]:
    splitter = Splitter(_EVENT_LIMIT)
    events = [event for piece in pieces for event in splitter.feed(piece)]
    return events, splitter.overflow


# A stream's listener: events known by the bytes around their text are heard as if each had been read.


def listen(data: bytes, rng: random.Random) -> None:
    pieces = _cut(data, rng)
    for kind in (openai_chat.ChatStream, anthropic_messages.MessagesStream):
        read = _heard(kind, pieces, lessons=0)
        assert _heard(kind, pieces, lessons=8) == read
        assert _heard(kind, [data], lessons=8)[:2] == _heard(kind, [data], lessons=0)[:2]


def _heard(kind: type[Listener], pieces: Sequence[bytes], *, lessons: int) -> tuple[object, ...]:
    listener = kind(_EVENT_LIMIT)
    listener._lessons = lessons
    events: list[tuple[str, bytes]] = []
    fault = ""
    for piece in pieces:
        try:
            events += [(event.kind, event.raw) for event in listener.feed(piece)]
        except MalformedAnswer as error:
            events += [(event.kind, event.raw) for event in error.events]
            fault = str(error)
            break
    ended = listener.terminal, listener.done, listener.error, listener.usage
    return events, fault, listener.output_bytes, listener.pending, ended


# The body splice: a body is refused, or goes on as the same object with another model.


def splice(data: bytes, rng: random.Random) -> None:
    try:
        content = object_of(data)
    except BadRequest:
        try:
            stepped = [each for each in object_in_steps(data) if each is not None]
        except BadRequest:
            return
        raise AssertionError(f"refused whole and taken in steps: {stepped!r}") from None
    assert next(each for each in object_in_steps(data) if each is not None) == content
    json.loads(data.decode())
    if "model" not in content:
        return
    added = (
        b',"stream_options":{"include_usage":true}' if rng.random() < 0.5 and "stream_options" not in content else b""
    )
    sent = with_model(data, b'"vendor/x"', added)
    names: list[str] = []

    def pairs(members: list[tuple[str, Any]]) -> dict[str, Any]:
        names[:] = [name for name, _ in members]
        return dict(members)

    heard = json.loads(sent.decode(), object_pairs_hook=pairs)
    expected = {**content, "model": "vendor/x"}
    if added:
        expected["stream_options"] = {"include_usage": True}
    assert _same(heard, expected), sent
    assert names.count("model") == 1, sent


def _same(a: object, b: object) -> bool:
    """Equal, where a number that is none equals itself and 1 is not true."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    return a == b


# The YAML reader: never raises, and tells data or problems.


def yaml(data: bytes, rng: random.Random) -> None:
    parsed = parse(data)
    for problem in parsed.problems:
        assert str(problem)
    if not parsed.problems:
        _check_plain(parsed.data)


def _check_plain(data: object) -> None:
    if isinstance(data, dict):
        for key, value in data.items():
            assert type(key) is str
            _check_plain(value)
    elif isinstance(data, list):
        for value in data:
            _check_plain(value)
    else:
        assert data is None or type(data).__name__ in ("str", "int", "Decimal", "float", "bool"), repr(data)


# The expression parser: an `ExpressionError` with a place, or a function of the scores.


def expression(data: bytes, rng: random.Random) -> None:
    text = data.decode("utf-8", "replace")
    try:
        compiled = compile_expression(text)
    except ExpressionError:
        return
    scores = tuple(rng.choice((0.0, 1.0, rng.random())) for _ in NAMES)
    try:
        value = compiled.evaluate(scores)
    except (ZeroDivisionError, OverflowError, NotANumber):
        return
    assert isinstance(value, int | float)
    assert set(compiled.names) <= set(NAMES)
    weighted = compiled.weights
    if weighted and math.isfinite(value):
        total = math.fsum(weight * scores[NAMES.index(name)] for name, weight in weighted.items())
        assert math.isclose(total, value, rel_tol=1e-6, abs_tol=1e-6), (text, total, value)


# The HTTP/1.1 response reader: an answer or an UpstreamError, the same for every split.

_BOUNDS = Bounds(max_head_bytes=600, max_interim=3, max_buffered_bytes=1 << 20)
Outcome = tuple[int, list[tuple[bytes, bytes]], bytes, str, bool]
"""Status, headers, body, how it ended, whether its connection may be used again."""


def http1(data: bytes, rng: random.Random) -> None:
    whole = _answer([data])
    bytewise = _answer([data[at : at + 1] for at in range(len(data))])
    cut = _answer(_cut(data, rng))
    # Surplus is seen together with the end or after it: only what the client gets has to be the same.
    assert whole[:4] == cut[:4] == bytewise[:4], (whole, cut, bytewise)
    status, headers, _, ending, kept = whole
    if kept:
        assert (ending, 200 <= status <= 599) == ("whole", True)
        lengths = [value for name, value in headers if name == b"content-length"]
        assert len(lengths) <= 1
    assert all(name == name.lower() for name, _ in headers)
    assert sum(len(name) + len(value) for name, value in headers) <= _BOUNDS.max_head_bytes


class _Wire:
    """A transport that goes nowhere."""

    def __init__(self) -> None:
        self.pair = socket.socketpair()
        self.aborted = False

    def write(self, data: bytes) -> None:
        pass

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str) -> socket.socket:
        return self.pair[0]

    def close(self) -> None:
        for each in self.pair:
            each.close()


class _Owner:
    reusable: bool | None = None

    def opened(self, connection: Carrier) -> None:
        pass

    def finished(self, connection: Carrier, *, reusable: bool) -> None:
        self.reusable = reusable

    def lost(self, connection: Carrier) -> None:
        pass


_loop = asyncio.new_event_loop()
_wire = _Wire()


def _answer(pieces: Sequence[bytes]) -> Outcome:
    owner = _Owner()
    _wire.aborted = False
    connection = Http1Connection(owner, _BOUNDS, _loop, 1)
    connection.connection_made(cast(asyncio.BaseTransport, _wire))
    calling = connection.exchange(b"POST / HTTP/1.1\r\n\r\n", b"", by=_loop.time() + 1e6)
    calling.send(None)
    response = connection._response
    assert response is not None
    body = b""
    for piece in pieces:
        if _wire.aborted:
            break
        connection.data_received(piece)
        if response._buffered:
            body += response.taken()
    reusable = owner.reusable is True and not _wire.aborted
    if response.is_under_way:
        connection.eof_received()
    if response._buffered:
        body += response.taken()
    error = response.error
    assert error is None or isinstance(error, UpstreamError), error
    connection.connection_lost(None)
    calling.close()
    # What came before a fault counts where the head was whole; without one there is no answer.
    if not response.status:
        return 0, [], b"", type(error).__name__, False
    return response.status, response.headers, body, "whole" if error is None else type(error).__name__, reusable


# Seeds, words and mutations.

# fmt: off
TARGETS: dict[str, tuple[Target, list[bytes], list[bytes]]] = {
    "sse": (
        sse,
        [
            b'data: {"a":1}\n\ndata: [DONE]\n\n',
            b"event: ping\r\ndata: {}\r\n\r\n: c\r\n\r\n",
            b"\xef\xbb\xbfdata: a\r\rdata:b\r\r",
            "data: é日🙂\nid: 1\nretry: 2\n\n\n".encode(),
        ],
        [b"\n", b"\r", b"\r\n", b"\n\n", b"\r\r", b"\n\r", b"data: ", b"data", b"event: ", b":", b"\xef\xbb\xbf", b"x" * 150],
    ),
    "listen": (
        listen,
        [
            b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n' * 4,
            b'data: {"choices":[{"delta":{"content":"one"}}]}\n\ndata: {"choices":[{"delta":{"content":"two \xc3\xa9"}}]}\n\n',
            b'data: {"id":"a","choices":[{"delta":{"reasoning":"a"},"finish_reason":null}]}\n\n' * 3 + b"data: [DONE]\n\n",
            b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1}}\n\n' * 2,
            b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"type":"text_delta","text":"hi"}}\n\n' * 3,
            b'data: {"type":"content_block_delta","delta":{"partial_json":"{"}}\n\n' * 3 + b'data: {"type":"message_stop"}\n\n',
        ],
        [b'"', b"\\", b"\\u0041", b'"content":"a",', b'"content":"b"', b"\n", b"\n\n", b"\r", b"\r\n", b"data: ", b": c\n", b"}", b"{", b",",
         b'"delta":{"content":"z"},', b'"finish_reason":"stop"', b'"usage":{"total_tokens":3},', b'"error":{"type":"x"},', b"\xff", b"\0",
         b'"index":1,', b'"text":"t",', b'"type":"error",', b"\xed\xa0\xbd", b"x" * 150],
    ),
    "splice": (
        splice,
        [
            b'{"model":"g","messages":[{"role":"user","content":"hi"}],"stream":true}',
            rb'{ "\u006dodel" : "g" , "x":"\"model\":\"g\"", "model":"h"}',
            b'{"model":"g","x":[1],"model":"g","y":{}}',
            b'{"messages":[{"model":"m"}],"n":1.0e2,"model":{"model":[1,null,true]}}',
            b'{"model":"' + b"x" * 9_000 + b'","a":[[[{}]]]}',
        ],
        [b'"model"', b'"model":', rb"\u006d", b"\\", b'"', b",", b":", b"{", b"}", b"[", b"]", b" ", b"\n", b"1e5", b"-0", b"\xc3\xa9",
         b"\xff", b"null", b"NaN", rb"\ud83d", rb"\ude00", b'"a":1,', b"\xef\xbb\xbf"],
    ),
    "yaml": (
        yaml,
        [
            b"providers:\n  a:\n    base_url: http://x/v1\n    models: {m: {tags: [a, b]}}\n",
            b"a: &x [1, 2.5, -3e4, ~, yes, 'q', \"\\u00e9\"]\nb: *x\n",
            b"- |\n  text\n- >-\n  folded\n- !!str 1\n--- # two\nb: 1\n",
            b"{a: {b: [c, {d: e}]}, ? [k] : v}\n",
        ],
        [b"\n", b"  ", b"\t", b": ", b"- ", b"&a ", b"*a", b"!!python/object ", b"<<: ", b"---\n", b"...\n", b"{", b"}", b"[", b"]", b'"',
         b"'", b"|", b">", b"#", b"%YAML 1.1\n", b"\0", b"\xff", "\u2028".encode(), b"a: 1\n", b"? ", b".nan", b"9" * 80],
    ),
    "expression": (
        expression,
        [
            b"0.45 * cost_score + 0.25 * clamp(latency_score, 0, 0.9)",
            b"min(ttfb_score, max(load_score, 1)) / (1 - budget_score)",
            b"-(-(cost_score)) * 2 - 1e-3",
            b"0.5 * reliability_score + 0.5 * throughput_score",
        ],
        [*(name.encode() for name in NAMES), b"(", b")", b"+", b"-", b"*", b"/", b"**", b",", b"min(", b"max(", b"clamp(", b"1e308",
         b"0", b".5", b"__import__('os')", b"cost_score.__class__", b"lambda:0", b" ", b"\n", b"\xc2\xb2", b"[0]", b"1_0", b"0x1", b"j"],
    ),
    "http1": (
        http1,
        [
            b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\nx-t: 1\r\n\r\n",
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 Not Found\r\nconnection: close\r\n\r\nbody",
            b"HTTP/1.0 204 No Content\r\n\r\n",
        ],
        [b"\r\n", b"\n", b"\r", b"\r\n\r\n", b"content-length: 5\r\n", b"Content-Length: 6\r\n", b"transfer-encoding: chunked\r\n",
         b"transfer-encoding: gzip\r\n", b"connection: close\r\n", b"connection: upgrade\r\nupgrade: x\r\n", b"HTTP/1.1 200 OK\r\n",
         b"HTTP/1.1 103 E\r\n\r\n", b"0\r\n\r\n", b"5\r\nhello\r\n", b" ", b":", b"\0", b"\xff", b"x" * 200, b"-1", b"ffffffffffffffff\r\n"],
    ),
}
# fmt: on


def case_of(target: str, seed: int, number: int) -> tuple[bytes, random.Random]:
    """An input, and the chance that goes with it."""
    rng = random.Random(f"{seed}/{target}/{number}")
    _, seeds, words = TARGETS[target]
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.choice((0, 1, 1, 2, 3, 5, 9))):
        _mutate(data, seeds, words, rng)
    return bytes(data), rng


def _mutate(data: bytearray, seeds: list[bytes], words: list[bytes], rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    match rng.randrange(7):
        case 0:
            data[at:at] = rng.choice(words)
        case 1:
            del data[at : at + rng.randrange(1, 9)]
        case 2:
            data[at : at + 1] = bytes([rng.randrange(256)])
        case 3:
            data[at:at] = data[at : at + rng.randrange(1, 40)] * rng.choice((1, 1, 2, 7))
        case 4:
            other = rng.choice(seeds)
            data[at:] = other[rng.randrange(len(other)) :]
        case 5:
            end = rng.randrange(len(data) + 1)
            word = rng.choice(words)
            data[min(at, end) : max(at, end)] = word
        case _:
            data[at : at + 1] = rng.choice(words)
    del data[20_000:]


def _cut(data: bytes, rng: random.Random) -> list[bytes]:
    places = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(1, 6)))
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]


def numbers(first: int, seconds: float) -> Iterator[int]:
    by = time.monotonic() + seconds
    number = first
    while time.monotonic() < by:
        yield number
        number += 1


def run(target: str, seed: int, cases: Iterator[int] | Sequence[int]) -> int:
    """How many cases held. Raises `AssertionError` naming the first that did not."""
    check = TARGETS[target][0]
    count = 0
    for number in cases:
        data, rng = case_of(target, seed, number)
        try:
            check(data, rng)
        except Exception as error:
            raise AssertionError(f"--target {target} --seed {seed} --case {number}: {data!r}") from error
        count += 1
    return count


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for all targets together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", choices=list(TARGETS))
    parser.add_argument("--case", type=int, help="only this one")
    chosen = parser.parse_args(arguments)
    targets = [chosen.target] if chosen.target else list(TARGETS)
    for target in targets:
        cases = numbers(0, chosen.seconds / len(targets)) if chosen.case is None else [chosen.case]
        count = run(target, chosen.seed, cases)
        print(f"{target}: {count:,} cases held", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
