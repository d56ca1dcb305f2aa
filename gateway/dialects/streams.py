"""What every dialect's listener does with a provider's stream: events in, their kinds out.

Most events of a stream differ from the one before in a piece of text alone. Such an event is known by the bytes around
the text, and is not read again.
"""

import re
from collections.abc import Collection

import msgspec

from gateway.dialects.neutral import EventKind, InBandError, MalformedAnswer, StreamEvent, Usage
from gateway.dialects.sse import Splitter

LESSONS = 8
"""How often a stream's events may change their build before each is read for itself."""

_PLAIN = re.compile(rb'[^"\\\x00-\x1f]+')
"""What stands for itself in a string of JSON."""


class Listener:
    """One stream. A dialect says in `listen` what an event means."""

    __slots__ = ("_before", "_behind", "_lessons", "_splitter", "done", "error", "output_bytes", "terminal", "usage")

    def __init__(self, max_event_bytes: int) -> None:
        self._splitter = Splitter(max_event_bytes)
        self._before = self._behind = b""
        """The bytes around the text of an event that is content and has nothing else to tell; empty: none is known."""
        self._lessons = LESSONS
        self.usage = Usage()
        self.terminal = False
        self.done = False
        self.output_bytes = 0
        self.error: InBandError | None = None

    def listen(self, name: bytes, payload: bytes) -> EventKind:
        """The kind of an event, from its `event` field and its data, which is not empty.

        Raises `MalformedAnswer` for data that is not JSON. Odd JSON is an `opening`: it passes and commits nothing.
        """
        raise NotImplementedError

    def only_text(self, payload: bytes) -> str | None:
        """The text of an event that adds it to the answer and has no other effect, whatever the text; else `None`.

        `payload`: the data of an event that is content.
        """
        raise NotImplementedError

    @property
    def pending(self) -> bool:
        return self._splitter.pending

    def feed(self, data: bytes) -> list[StreamEvent]:
        splitter = self._splitter
        if not splitter.held and len(data) <= splitter.limit and self._repeats(data):
            return [StreamEvent("content", data)]
        events: list[StreamEvent] = []
        kind: EventKind
        try:
            for raw, name, payload in splitter.feed(data):
                if self._repeats(raw):
                    kind = "content"
                elif not payload:
                    kind = "comment"
                else:
                    kind = self.listen(name, payload)
                    if kind == "content" and self._lessons:
                        self._learn(raw, payload)
                events.append(StreamEvent(kind, raw))
        except MalformedAnswer as error:
            raise MalformedAnswer(str(error), events=events) from error
        if splitter.overflow:
            self._before = b""  # nothing is heard any more
            raise MalformedAnswer("an event beyond the size limit", events=events)
        return events

    def _repeats(self, raw: bytes) -> bool:
        """Whether it is the known event with another text, whole and alone; takes note of the text."""
        before, behind = self._before, self._behind
        if not before or not raw.startswith(before) or not raw.endswith(behind):
            return False
        start, end = len(before), len(raw) - len(behind)
        if _PLAIN.fullmatch(raw, start, end) is None or not (raw.isascii() or _is_utf8(raw)):
            return False
        self.output_bytes += end - start
        return True

    def _learn(self, raw: bytes, payload: bytes) -> None:
        """Finds the text, and sees from the same event with another text that it is what stands there."""
        self._lessons -= 1
        text = self.only_text(payload)
        if text is None:
            return
        quoted = b'"%b"' % text.encode("utf-8", "replace")
        if b"\r" in raw or raw.count(quoted) != 1 or payload.count(quoted) != 1:
            return
        if self.only_text(payload.replace(quoted, b'"other than %b' % quoted[1:])) != f"other than {text}":
            return
        at = raw.index(quoted)
        self._before, self._behind = raw[: at + 1], raw[at + len(quoted) - 1 :]

    def flush(self) -> list[StreamEvent]:
        last = self._splitter.flush()
        if last is None:
            return []
        raw, name, payload = last
        if not payload:
            return []
        try:
            kind = self.listen(name, payload)
        except MalformedAnswer:
            return []
        self._splitter.discard()
        return [StreamEvent(kind, raw)]

    def fail(self, error: object) -> EventKind:
        """Keeps an in-band error, whatever its build."""
        kind = message = ""
        if type(error) is dict:
            kind = _text(error.get("type")) or _text(error.get("code"))
            message = _text(error.get("message"))
        elif type(error) is str:
            message = error
        self.error = InBandError(type=kind, message=message)
        return "error"


def lone_text(delta: msgspec.Struct, names: Collection[str]) -> str | None:
    """The one thing that a delta holds, if that is a text under one of these names."""
    given = [(name, value) for name, value in msgspec.structs.asdict(delta).items() if value is not None]
    if len(given) != 1:
        return None
    name, text = given[0]
    return text if name in names and type(text) is str and text else None


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _text(value: object) -> str:
    return value.encode("utf-8", "replace").decode() if type(value) is str else ""
