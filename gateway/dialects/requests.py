"""What every dialect asks of a request body."""

from typing import Any

from gateway.dialects.neutral import BadRequest, Call
from routing.core.document import Dialect


def call_of(dialect: Dialect, body: bytes, content: dict[str, Any]) -> Call:
    """What both dialects ask of a body."""
    model = content.get("model")
    if type(model) is not str or not model:
        raise BadRequest("'model' must be a non-empty string.", param="model")
    messages = content.get("messages")
    if type(messages) is not list or not messages:
        raise BadRequest("'messages' must be a non-empty list.", param="messages")
    for number, message in enumerate(messages):
        if type(message) is not dict:
            raise BadRequest(f"'messages[{number}]' must be an object.", param="messages")
    stream = content.get("stream")
    if stream is not None and type(stream) is not bool:
        raise BadRequest("'stream' must be true or false.", param="stream")
    return Call(dialect=dialect, model=model, stream=stream is True, body=body, content=content)


def read_cap(content: dict[str, Any], name: str) -> int | None:
    """A cap on output tokens: a whole number over zero, `None` when absent or null."""
    cap = content.get(name)
    if cap is None:
        return None
    if type(cap) is not int or cap < 1:
        raise BadRequest(f"'{name}' must be a whole number of at least 1.", param=name)
    return cap
