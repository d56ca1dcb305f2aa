"""JSON as bytes: read a caller's body strictly, change single members and leave every other byte as it came."""

import json
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

from gateway.dialects.neutral import BadRequest, MalformedAnswer

T = TypeVar("T")
Members = dict[str, Raw | bytes]
"""An object's members in order, values as their bytes."""

_ANY = msgspec.json.Decoder()
_OBJECT = msgspec.json.Decoder(dict[str, Raw])
_ARRAY = msgspec.json.Decoder(list[Raw])
encode = msgspec.json.Encoder().encode

STEP_BYTES = 512 * 1024
"""About 2 ms of decoding."""

_SHORT_BYTES = 8 * 1024
"""Up to here three searches for a few bytes are quicker than splitting the body."""

_SPLIT_LEVELS = 4
"""Body, messages, message, content. A value deeper down is decoded whole: splitting costs a pass over it per level."""

SPACE = b" \t\n\r"
"""What JSON takes for white space."""
_KEY = re.compile(rb'[ \t\n\r]*"((?:[^"\\]|\\.)*)"[ \t\n\r]*:[ \t\n\r]*', re.DOTALL)
_STRING_AFTER_KEY = re.compile(rb'[ \t\n\r]*:[ \t\n\r]*("(?:[^"\\]|\\.)*")')
_AFTER_VALUE = re.compile(rb"[ \t\n\r]*([,}])")
_COMMA, _BRACE = ord(","), ord("}")


def object_of(body: bytes) -> dict[str, Any]:
    """The whole body as one object. Of a key that is given twice the last counts.

    Refuses (`BadRequest`) what JSON does not know (NaN, Infinity, control characters, half surrogate pairs, bad UTF-8)
    and floats beyond the finite range, anywhere in the body. Integers keep every digit.
    """
    try:
        return _as_object(_ANY.decode(body))
    except (msgspec.DecodeError, RecursionError) as error:
        raise _refusal(error) from error


def object_in_steps(body: bytes) -> Iterator[dict[str, Any] | None]:
    """`object_of` for a large body: `None` after every few milliseconds, the object last."""
    try:
        value = yield from _walk(body, 0, _Pace())
    except (msgspec.DecodeError, RecursionError) as error:
        raise _refusal(error) from error
    yield _as_object(value)


def split(body: bytes | Raw) -> Members:
    """The members of an object that is known to be one."""
    return {**_OBJECT.decode(body)}


def split_array(body: bytes | Raw) -> list[Raw]:
    return _ARRAY.decode(body)


def join(members: Mapping[str, Raw | bytes]) -> bytes:
    pieces: list[bytes | Raw] = []
    before = b"{"
    for key, value in members.items():
        pieces += (before, encode(key), b":", value)
        before = b","
    return b"".join(pieces) + b"}" if pieces else b"{}"


def join_array(items: list[Raw | bytes]) -> bytes:
    return b"[" + b",".join(items) + b"]"


def with_values(body: bytes, values: Mapping[str, bytes]) -> bytes:
    """The object with these values in the place of the old ones, new members last; all other bytes as they came.

    Where a key stands twice or is spelled with escapes, one plainly spelled member is left of it: what the gateway
    decided on is then what every parser behind it sees. Only there the white space between members goes.
    """
    members = split(body)
    places = _places(body, members)
    if places is None:
        return join({**members, **values})
    view = memoryview(body)
    pieces: list[bytes | memoryview] = []
    at = 0
    for start, end, key in sorted((*places[key], key) for key in values if key in places):
        pieces += (view[at:start], values[key])
        at = end
    added = [key for key in values if key not in places]
    if added:
        close = body.rindex(b"}")
        pieces.append(view[at:close])
        for number, key in enumerate(added):
            pieces += (b"," if members or number else b"", encode(key), b":", values[key])
        at = close
    pieces.append(view[at:])
    return b"".join(pieces)


def with_model(body: bytes, model: bytes, added: bytes = b"") -> bytes:
    """An object that is known to have a `model`, with that value replaced and `added` members (`,"key":value`) last.

    A short body that says `"model"` once, and cannot spell it with escapes, needs no reading: quotes are escaped inside
    strings, so what is found is the key.
    """
    if len(body) <= _SHORT_BYTES:
        at = body.find(b'"model"')
        if at >= 0 and body.find(b'"model"', at + 7) < 0 and b"\\u006" not in body:
            found = _STRING_AFTER_KEY.match(body, at + 7)
            if found is not None:
                start, end = found.span(1)
                if not added:
                    return b"".join((body[:start], model, body[end:]))
                close = body.rindex(b"}")
                return b"".join((body[:start], model, body[end:close], added, body[close:]))
    body = with_values(body, {"model": model})
    if not added:
        return body
    close = body.rindex(b"}")
    view = memoryview(body)
    return b"".join((view[:close], added, view[close:]))


def with_inner(body: bytes, key: str, change: Callable[[bytes], bytes]) -> bytes:
    """The object with the value of one member changed; as it was when it is no object or has no such member."""
    try:
        members = split(body)
    except (msgspec.DecodeError, RecursionError):
        return body
    old = members.get(key)
    return body if old is None else with_values(body, {key: change(bytes(old))})


def with_model_shown(body: bytes, model: str) -> bytes:
    """The object with another name in its `model` member, if it has one."""
    return with_inner(body, "model", lambda _: encode(model))


def utf8_length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def json_length(value: object) -> int:
    """Bytes of a value written as compact JSON."""
    try:
        return len(encode(value))
    except UnicodeEncodeError:  # half a surrogate pair, which only a provider can have sent
        return len(json.dumps(value, separators=(",", ":")))
    except RecursionError:  # nested to the decoder's limit: nothing that a model reads
        return 0


def answer_of(data: bytes, decoder: msgspec.json.Decoder[T], kind: type[T]) -> T | None:
    """A provider's JSON, read as far as `kind` asks. `None`: JSON, but of another build.

    More lenient than with callers, since these bytes pass unchanged: half surrogate pairs (an emoji cut between two
    chunks) and NaN are let through. Not JSON at all: `MalformedAnswer`.
    """
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        # Bytes would be tried as UTF-16 and UTF-32 too.
        return msgspec.convert(json.loads(data.decode("utf-8-sig", "surrogatepass")), kind)
    except (msgspec.ValidationError, UnicodeEncodeError):  # the latter: half a surrogate pair in a member's name
        return None
    except (ValueError, RecursionError) as error:
        raise MalformedAnswer("not JSON") from error


def _places(body: bytes, members: Mapping[str, Raw | bytes]) -> dict[str, tuple[int, int]] | None:
    """Where each value stands. `None`: a key stands twice or is not spelled plainly.

    Every value is compared with the bytes at its place, so that no repeated member can shift the reading.
    """
    places = {}
    at = body.index(b"{") + 1
    closed = False
    for key, raw in members.items():
        found = _KEY.match(body, at)
        if found is None or found[1] != key.encode():
            return None
        start = found.end()
        if not body.startswith(raw, start):
            return None
        at = start + len(raw)
        places[key] = (start, at)
        after = body[at]
        if after != _COMMA and after != _BRACE:
            gap = _AFTER_VALUE.match(body, at)
            if gap is None:
                return None
            at = gap.start(1)
            after = body[at]
        at += 1
        closed = after == _BRACE
    if members and (not closed or body[at:].strip(SPACE)):
        return None
    return places


class _Pace:
    """Counts what was decoded since the last pause."""

    __slots__ = ("spent",)

    def __init__(self) -> None:
        self.spent = 0

    def due(self, size: int) -> bool:
        self.spent += size
        if self.spent < STEP_BYTES:
            return False
        self.spent = 0
        return True


def _walk(raw: bytes | Raw, level: int, pace: _Pace) -> Generator[None, None, object]:
    size = len(raw)
    first = memoryview(raw.lstrip(SPACE) if level == 0 else raw)[:1] if size > STEP_BYTES else b""
    if level == _SPLIT_LEVELS or first not in (b"{", b"["):
        if pace.due(size):
            yield
        return _ANY.decode(raw)
    if first == b"{":
        members = {}
        parts = _OBJECT.decode(raw)
        yield
        for key, part in parts.items():
            members[key] = yield from _walk(part, level + 1, pace)
        return members
    items = []
    raws = _ARRAY.decode(raw)
    yield
    for part in raws:
        item = yield from _walk(part, level + 1, pace)
        items.append(item)
    return items


def _as_object(value: object) -> dict[str, Any]:
    if type(value) is not dict:
        raise BadRequest("The request body must be a JSON object.")
    return value


def _refusal(error: Exception) -> BadRequest:
    """msgspec's messages name the fault and its position, never the content."""
    text = str(error)
    if isinstance(error, RecursionError):
        text = "it is nested too deeply"
    elif "surrogate" in text:
        text = "a string holds half of a surrogate pair (\\ud800 to \\udfff)"
    elif "out of range" in text:
        text = "a number is not finite or has too many digits"
    elif "truncated" in text:
        text = "it ends too early, or a string holds half of a surrogate pair"
    return BadRequest(f"The request body cannot be read as JSON: {text}.", code="invalid_json")
