"""What every dialect's listener does with a provider's stream: events in, their kinds out."""

from gateway.dialects.neutral import EventKind, InBandError, MalformedAnswer, StreamEvent, Usage
from gateway.dialects.sse import Splitter


class Listener:
    """One stream. A dialect says in `listen` what an event means."""

    __slots__ = ("_splitter", "done", "error", "output_bytes", "terminal", "usage")

    def __init__(self, max_event_bytes: int) -> None:
        self._splitter = Splitter(max_event_bytes)
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

    @property
    def pending(self) -> bool:
        return self._splitter.pending

    def feed(self, data: bytes) -> list[StreamEvent]:
        events: list[StreamEvent] = []
        try:
            for raw, name, payload in self._splitter.feed(data):
                kind = self.listen(name, payload) if payload else "comment"
                events.append(StreamEvent(kind=kind, raw=raw))
        except MalformedAnswer as error:
            raise MalformedAnswer(str(error), events=events) from error
        if self._splitter.overflow:
            raise MalformedAnswer("an event beyond the size limit", events=events)
        return events

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
        return [StreamEvent(kind=kind, raw=raw)]

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


def _text(value: object) -> str:
    return value.encode("utf-8", "replace").decode() if type(value) is str else ""
