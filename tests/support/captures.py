"""Reads the recorded requests of real clients in `tests/captures`."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

FOLDER = Path(__file__).parent.parent / "captures"

Endpoint = Literal["chat", "messages", "count_tokens", "models", "root"]

_PATHS: dict[str, Endpoint] = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "messages",
    "/v1/messages/count_tokens": "count_tokens",
    "/": "root",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    name: str
    """`claude-code/tui/003_POST_v1_messages`."""
    folder: str
    """One client's scenario: `claude-code/tui`."""
    endpoint: Endpoint
    method: str
    path: str
    query: str
    headers: tuple[tuple[str, str], ...]
    """Order and case as sent."""
    content: dict[str, Any] | None
    """The parsed body. `None`: the request has none."""

    @property
    def body(self) -> bytes:
        """The body as compact JSON; empty when there is none."""
        if self.content is None:
            return b""
        return json.dumps(self.content, ensure_ascii=False, separators=(",", ":")).encode()

    @property
    def lower_headers(self) -> dict[bytes, bytes]:
        return {name.lower().encode(): value.encode() for name, value in self.headers}


def captures(endpoint: Endpoint | None = None) -> Iterator[Capture]:
    """All, or those of one endpoint, in the order sent."""
    for file in sorted(FOLDER.rglob("*.json"), key=lambda file: (str(file.parent), file.name)):
        recorded = json.loads(file.read_bytes())
        found = _PATHS.get(recorded["path"], "models")
        if endpoint is None or endpoint == found:
            name = str(file.relative_to(FOLDER).with_suffix(""))
            yield Capture(
                name=name,
                folder=name.rpartition("/")[0],
                endpoint=found,
                method=recorded["method"],
                path=recorded["path"],
                query=recorded["query"],
                headers=tuple((key, value) for key, value in recorded["headers"]),
                content=recorded["body"],
            )
