"""Server-sent events out of a stream of bytes: whole events, their bytes as they came, whatever the split of the input.

The grammar is WHATWG's (HTML, "Server-sent events"): lines end in LF, CRLF or CR, an empty line ends an event.
"""

import re
from collections.abc import Callable

_BOM = b"\xef\xbb\xbf"

_EVENT_END = re.compile(rb"\n\n|\r\r|\n\r(?:\n|(?=[^\n]))")
"""Two line ends in a row. LF CR waits for the byte after it, which may be the LF of a CRLF; CR CR does not."""

_LINE_END = re.compile(rb"\r\n|\n|\r")


RawEvent = tuple[bytes, bytes, bytes]
"""An event's bytes, with the empty line that ends it and any empty lines before it, without the stream's byte order mark
(which means something else behind a keepalive of ours); its `event` field, else empty; its
`data` fields, joined by LF. Without data it is no event in WHATWG's sense, but a comment for instance."""


class Splitter:
    """Cuts a stream into events of at most `max_event_bytes`."""

    __slots__ = ("_begun", "_carriage_returns", "_looked", "held", "limit", "overflow")

    def __init__(self, max_event_bytes: int) -> None:
        self.limit = max_event_bytes
        self.held = bytearray()
        """Of an event that has not ended."""
        self._looked = 0
        """Of those, the bytes in which no end can begin."""
        self._carriage_returns = False
        self._begun = False
        self.overflow = False
        """An event grew beyond the limit: nothing more is read."""

    @property
    def pending(self) -> bool:
        """Part of an event has come and not its end."""
        return bool(self.held.strip(b"\r\n"))

    def feed(self, data: bytes) -> list[RawEvent]:
        if self.overflow:
            return []
        if not self._carriage_returns and b"\r" in data:
            self._carriage_returns = True
        events: list[RawEvent] = []
        start = 0
        looked = 0
        if self.held:
            self.held += data
            looked = self._looked
            if self._end(self.held, looked) < 0:
                self._wait()
                return events
            data = bytes(self.held)
            self.held.clear()
        while True:
            end = self._end(data, looked)
            if end < 0:
                break
            if end - start > self.limit:
                self.overflow = True
                return events
            events.append(self._event(data[start:end]))
            start = looked = end
        if start < len(data):
            self.held += data[start:] if start else data
            self._wait()
        return events

    def flush(self) -> RawEvent | None:
        """At the end of the stream: what is left, read as if its empty line had come. Nothing is taken away."""
        if self.overflow or not self.pending:
            return None
        raw = bytes(self.held)
        if not raw.endswith(b"\n\r"):
            raw += b"\n" if raw.endswith(b"\n") else b"\n\n"
        return self._event(raw)

    def discard(self) -> None:
        self.held.clear()
        self._looked = 0

    def _wait(self) -> None:
        self._looked = max(0, len(self.held) - 2)
        if len(self.held) > self.limit:
            self.overflow = True

    def _end(self, data: bytes | bytearray, at: int) -> int:
        """Where the first event ends, -1 if it does not."""
        if not self._carriage_returns:
            found = data.find(b"\n\n", at)
            return found if found < 0 else found + 2
        match = _EVENT_END.search(data, at)
        return -1 if match is None else match.end()

    def _event(self, raw: bytes) -> RawEvent:
        if not self._begun:
            self._begun = True
            raw = raw.removeprefix(_BOM)
        if raw.startswith(b"data: ") and raw.find(b"\n") == len(raw) - 2 and not self._carriage_returns:
            return raw, b"", raw[6:-2]
        if raw.startswith(b"event: ") and not self._carriage_returns:
            line_end = raw.find(b"\n")
            if raw.startswith(b"data: ", line_end + 1) and raw.find(b"\n", line_end + 1) == len(raw) - 2:
                return raw, raw[7:line_end], raw[line_end + 7 : -2]
        return self._by_line(raw)

    def _by_line(self, raw: bytes) -> RawEvent:
        name = b""
        data = []
        for line in _LINE_END.split(raw):
            field, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if field == b"data":
                data.append(value)
            elif field == b"event":
                name = value
        return raw, name, b"\n".join(data)


def with_data(raw: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """An event with other data, its other fields and comments as they were."""
    kept = []
    old = []
    for line in _LINE_END.split(raw):
        field, _, value = line.partition(b":")
        if field == b"data":
            old.append(value.removeprefix(b" "))
        elif line:
            kept.append(line + b"\n")
    data = b"\n".join(old)
    new = change(data)
    if not old or new == data:
        return raw
    return b"".join(kept) + b"".join([b"data: " + line + b"\n" for line in new.split(b"\n")]) + b"\n"
