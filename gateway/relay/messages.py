"""The little of ASGI that the relay speaks: typed messages, a bounded body, an answer."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Header = tuple[bytes, bytes]

JSON: Header = (b"content-type", b"application/json")

UNFINISHED = "pilotage.unfinished"
"""In a scope's `extensions`: the server closes the connection, without the mark that ends a message, when the application
returns from an answer that it did not end."""

HANG_UP = "pilotage.hang_up"
"""In a scope's `extensions`: a function that takes what to call, with the request's task, when the client leaves before
its answer is whole. Without it only `receive` tells."""

WRITE_AT_ONCE = "pilotage.write_at_once"
"""In a scope's `extensions`: a function that gives, for the request under way, one that writes a piece of its answer's body
at once. That one's `False`: it did not, because the head is not out or the client slow or gone, and the piece has to be sent."""

WriteAtOnce = Callable[[bytes], bool]
"""See `WRITE_AT_ONCE`."""

BODY_FOLLOWS = "pilotage.body_follows"
"""In a start message: the body comes at once, so the head may wait for it."""

WHOLE_BODY = "pilotage.whole_body"
"""In a scope's `extensions`: a start message may hold the whole body under this key, and is then all of the answer."""


class ClientLeft(Exception):
    """The client closed its connection before its request was whole or its answer complete."""


class BodyTooLarge(Exception):
    """The request body is over the bound."""


async def read_body(receive: Receive, *, declared: int | None, limit: int) -> bytes:
    """The whole request body, at most `limit` bytes.

    `declared` is Content-Length: over the bound, nothing is read at all. Raises `BodyTooLarge`, `ClientLeft`.
    """
    if declared is not None and declared > limit:
        raise BodyTooLarge
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientLeft
    body: bytes = message.get("body", b"")
    if len(body) > limit:
        raise BodyTooLarge
    if not message.get("more_body", False):
        return body
    pieces, size = [body], len(body)
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        piece: bytes = message.get("body", b"")
        size += len(piece)
        if size > limit:
            raise BodyTooLarge
        pieces.append(piece)
        if not message.get("more_body", False):
            return b"".join(pieces)


async def answer(
    send: Send, status: int, headers: list[Header], body: bytes, *, head_only: bool = False, in_one: bool = False
) -> None:
    """One whole answer. `head_only`: the length is that of `body`, which a HEAD request does not get.

    `in_one`: the server takes it in one message (`WHOLE_BODY`).
    """
    if status != 204:
        headers.append((b"content-length", b"%d" % len(body)))
    if in_one:
        return await send({"type": "http.response.start", "status": status, "headers": headers, WHOLE_BODY: body})
    await send({"type": "http.response.start", "status": status, "headers": headers, BODY_FOLLOWS: True})
    await send({"type": "http.response.body", "body": b"" if head_only else body})
    return None
