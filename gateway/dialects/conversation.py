"""Which conversation a request belongs to: an id that the client gives it, else the beginning that it sends every time."""

from collections.abc import Mapping
from math import inf
from typing import Any, Final

import msgspec

from gateway.dialects.jsonbytes import encode
from gateway.dialects.neutral import Call
from routing.core.affinity import EXPLICIT_ID_MAX, conversation_key
from routing.core.catalog import AffinityPolicy

SESSION_HEADERS: Final = (
    b"x-claude-code-session-id",
    b"x-session-affinity",
    b"x-session-id",
    b"session-id",
    b"session_id",
    b"thread-id",
)
"""In the order in which they count, after the policy's own."""

_BILLING_HEADER = "x-anthropic-billing-header:"
"""How Claude Code's first system block begins; it changes with every release and says nothing of the conversation."""

_SESSION_MARK = "_session_"
"""Before the session id in `metadata.user_id`: `user_<digest>_account__session_<uuid>`."""

_CLEAN_LEVELS = 16
"""Cache marks stand on parts and on parts inside parts; what is nested deeper is taken as it is."""

MAX_KEYED_BYTES = 4 * 1024 * 1024
"""Beginnings that are the same up to the part that passes this bound are one conversation: hashing tens of megabytes of images
would hold everybody up."""


def key_of(
    call: Call, *, headers: Mapping[bytes, bytes], caller: str, group: str, policy: AffinityPolicy
) -> bytes | None:
    named = explicit_id(call, headers, policy.session_header)
    cache_key = call.content.get("prompt_cache_key")
    return conversation_key(
        caller=caller,
        group=group,
        dialect=call.dialect,
        explicit_id=named,
        prefix=_prefix(call) if named is None else None,
        prompt_cache_key=cache_key if type(cache_key) is str else None,
    )


def explicit_id(call: Call, headers: Mapping[bytes, bytes], session_header: str | None) -> str | None:
    """The first that is 1 to 256 printable characters."""
    if session_header is not None:
        found = _usable(headers.get(session_header.encode()))
        if found is not None:
            return found
    for name in SESSION_HEADERS:
        if name in headers:
            found = _usable(headers[name])
            if found is not None:
                return found
    metadata = call.content.get("metadata")
    return _session_of(metadata.get("user_id")) if type(metadata) is dict else None


def prefix(call: Call, *, room: float = inf) -> list[bytes]:
    """The system context and everything before the model's first word, in one spelling, up to the part that passes `room` bytes.

    The same for a text and a list of one text part, `developer` and `system`, `input_text` and `text`; without cache
    marks, ids, tools and Claude Code's billing header. Where the model has the first word, as a greeting that is the
    same for everybody, what it answers to next is taken in as well.
    """
    pieces: list[bytes] = []
    system = call.content.get("system") if call.dialect == "anthropic" else None
    if system:
        parts = [part for part in _parts(system) if not (type(part) is str and part.startswith(_BILLING_HEADER))]
        if parts:
            pieces.append(b"\0system")
            room = _write(parts, pieces, room)
    asked = False
    for message in call.content["messages"]:
        if room < 0:
            break
        role = message.get("role")
        if role == "assistant":
            if asked:
                break
        elif role == "developer":
            role = "system"
        elif role != "system":
            asked = True
        pieces.append(b"\0" + role.encode() if type(role) is str else b"\0")
        room = _write(_parts(message.get("content")), pieces, room)
    return pieces


def _prefix(call: Call) -> list[bytes] | None:
    try:
        return prefix(call, room=MAX_KEYED_BYTES)
    except RecursionError:  # nested to the decoder's limit
        return None


def _write(parts: list[object], pieces: list[bytes], room: float) -> float:
    """A text as its own bytes, which costs less than JSON for a long one; any other part as JSON. The room that is left."""
    for part in parts:
        piece = part.encode() if type(part) is str else b"\0" + encode(part)
        pieces.append(piece)
        room -= len(piece)
        if room < 0:
            break
    return room


def _parts(content: object) -> list[object]:
    """Texts as strings, other parts as they are but for marks and ids."""
    if type(content) is str:
        return [content] if content else []
    if type(content) is not list:
        return []
    parts: list[object] = []
    for part in content:
        if type(part) is not dict:
            parts.append(part)
        elif part.get("type") in ("text", "input_text") and type(part.get("text")) is str:
            parts.append(part["text"])
        else:
            parts.append(
                {name: _clean(value, 1) for name, value in part.items() if name not in ("cache_control", "id")}
            )
    return parts


def _clean(value: Any, level: int) -> Any:
    if level == _CLEAN_LEVELS:
        return value
    if type(value) is dict:
        return {name: _clean(inner, level + 1) for name, inner in value.items() if name != "cache_control"}
    if type(value) is list:
        return [_clean(inner, level + 1) for inner in value]
    return value


class _UserId(msgspec.Struct, gc=False):
    session_id: Any = None


_USER_ID = msgspec.json.Decoder(_UserId)


def _session_of(user_id: object) -> str | None:
    """The session id inside Claude Code's `metadata.user_id`: a member of a JSON object, or after `_session_`."""
    if type(user_id) is not str:
        return None
    if user_id[:1] == "{":
        try:
            session = _USER_ID.decode(user_id).session_id
        except (msgspec.DecodeError, RecursionError):
            return None
        return session if type(session) is str and _is_id(session) else None
    _, mark, session = user_id.rpartition(_SESSION_MARK)
    return session if mark and _is_id(session) else None


def _usable(value: bytes | None) -> str | None:
    if value is None:
        return None
    text = value.decode("latin-1")
    return text if _is_id(text) else None


def _is_id(text: str) -> bool:
    return 0 < len(text) <= EXPLICIT_ID_MAX and text.isprintable()
