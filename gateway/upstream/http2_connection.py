"""HTTP/2 on a connection, one exchange at a time, on h2.

Streams do not share a connection: then a cancelled call closes its connection as it does in HTTP/1.1, and no answer waits
behind another one's unread bytes. h2 judges frames and their order; what is well-formed but not to be trusted is refused here.
"""

import asyncio
from collections.abc import Iterator

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    InformationalResponseReceived,
    RemoteSettingsChanged,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import DenialOfServiceError, H2Error
from h2.settings import SettingCodes, Settings
from hpack import HeaderTuple, NeverIndexedHeaderTuple

from gateway.upstream.client import Headers
from gateway.upstream.connection import Bounds, Connection, Owner, Response
from gateway.upstream.errors import ConnectionLost, ProtocolError, ResponseTimeout, ResponseTooLarge, UpstreamError

_WINDOW = 262_144
"""Body bytes that a server may send ahead of the reader, padding counted."""
_FRAME_HEAD = 9
_MAX_FRAME = 16_384
_GOAWAY = 7
_ANSWER_FRAMES = frozenset({0, 1, 9})
"""DATA, HEADERS, CONTINUATION."""
_WINDOW_UPDATE_BYTES = 13
_MAX_UNTAKEN = 1 << 20
"""Replies (to pings, settings) waiting for a server that reads nothing, above which it is left."""
_MAX_IDLE_BYTES = 16_384
"""What a server may say between two answers."""
_LAST_STREAM = 1 << 30
"""A connection is not used for a stream beyond this; ids end at twice that."""
_SECRET = frozenset({b"authorization", b"proxy-authorization", b"x-api-key"})


class Http2Connection(Connection):
    """See `Connection`. The server has agreed to HTTP/2 in the TLS handshake."""

    __slots__ = ("_arrived", "_h2", "_is_leaving", "_rest", "_stream", "_unacknowledged")

    def __init__(self, owner: Owner, bounds: Bounds, loop: asyncio.AbstractEventLoop, generation: int) -> None:
        super().__init__(owner, bounds, loop, generation)
        self._h2 = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        self._h2.local_settings = Settings(
            client=True,
            initial_values={
                SettingCodes.ENABLE_PUSH: 0,
                SettingCodes.INITIAL_WINDOW_SIZE: _WINDOW,
                SettingCodes.MAX_FRAME_SIZE: _MAX_FRAME,
                SettingCodes.MAX_HEADER_LIST_SIZE: bounds.max_head_bytes,
            },
        )
        self._h2.decoder.max_header_list_size = bounds.max_head_bytes
        self._arrived = bytearray()
        self._is_leaving = False
        """The server has said that it takes no further request."""
        self._rest = memoryview(b"")
        """Of the request's body, what has not been handed to h2."""
        self._stream = 0
        self._unacknowledged = 0
        """Body bytes that have come and for which the server has not been given new room."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self.closed:
            self._h2.initiate_connection()
            self._h2.increment_flow_control_window(_WINDOW - self._h2.inbound_flow_control_window)
            self._flush()

    # Sending.

    def _begin(self, head: bytes, body: bytes) -> bool:
        try:
            self._stream = self._h2.get_next_available_stream_id()
            self._h2.send_headers(self._stream, _fields(head), end_stream=not body)
        except H2Error as error:
            self.fail(_translated(error, "the request cannot be sent"))
            return True
        self._rest = memoryview(body)
        self._unsent = bool(body)
        self._send_more()
        return not self._unsent

    async def _send_rest(self, response: Response, head: bytes, body: bytes, by: float) -> None:
        # An answer that comes before the request is out ends the sending; such a connection is not used again.
        while self._unsent and response.is_under_way and not response.status:
            if not await self.news(response, by):
                self.fail(ResponseTimeout("the request could not be sent in time"))
            self._send_more()

    def _send_more(self) -> None:
        """As much of the body as the server's windows and the transport take now."""
        h2, stream, response = self._h2, self._stream, self._response
        if response is None or response.status:
            return
        try:
            while not self._write_paused:
                size = min(len(self._rest), h2.local_flow_control_window(stream), h2.max_outbound_frame_size)
                if size <= 0:  # nothing is left, or nothing more is taken now
                    break
                self._unsent = size < len(self._rest)
                h2.send_data(stream, self._rest[:size], end_stream=not self._unsent)
                self._rest = self._rest[size:]
                self._flush()
            self._flush()
        except H2Error as error:
            self.fail(_translated(error, "the request cannot be sent"))

    def _flush(self) -> None:
        data = self._h2.data_to_send()
        if data and not self.closed:
            self._transport.write(data)

    # Receiving.

    def _feed(self, response: Response, data: bytes) -> None:
        was_body, got_body = response.status != 0, False
        try:
            for frame in self._frames(data):
                if frame[3] == _GOAWAY:
                    self._prepare_for_leave(frame)
                    continue
                if frame[3] in _ANSWER_FRAMES:
                    self.heard = True
                for event in self._h2.receive_data(frame):
                    got_body |= self._react(response, event)
                if not response.is_under_way:
                    break
        except UpstreamError as fault:
            self.fail(fault)
        except H2Error as error:
            self.fail(_translated(error, "the answer is not HTTP/2"))
        if not response.is_under_way:
            if not self.closed:
                self._read_on()
            return
        if was_body:
            self._quiet_bytes = 0 if got_body else self._quiet_bytes + len(data)
            if self._quiet_bytes > self._bounds.max_head_bytes:
                self.fail(ResponseTooLarge("frames without end and without a body"))
                return
        if not response.is_ahead:
            self._acknowledge()
        self._flush()
        if self._transport.get_write_buffer_size() > _MAX_UNTAKEN:
            self.fail(ProtocolError("a server that talks and does not listen"))
        elif response.is_wanted and (response.status or self._unsent):
            self._wake()

    def _react(self, response: Response, event: Event) -> bool:
        """Whether it brought a byte of the body. Raises the fault that ends the exchange."""
        if getattr(event, "stream_id", self._stream) not in (self._stream, 0):
            return False
        match event:
            case DataReceived():
                self._unacknowledged += event.flow_controlled_length
                if event.data and response.status not in (204, 304):
                    response.add(event.data)
                    return True
            case ResponseReceived():
                self._take_head(response, [(bytes(name), bytes(value)) for name, value in event.headers])
            case InformationalResponseReceived():
                if dict(event.headers).get(b":status") == b"101":
                    self._refuse(ProtocolError("an upgrade to another protocol that was not asked for"))
                self._count_interim()
            case StreamEnded():
                self._keep = not self._is_leaving and self._stream < _LAST_STREAM
                self._quiet_bytes = 0
                self._acknowledge()
                self._flush()
                self._finish(response, surplus=False)
            case StreamReset():
                # With another code than this one, the server may have taken the request.
                self.heard = self.heard or event.error_code != ErrorCodes.REFUSED_STREAM
                self._refuse(ConnectionLost(f"the server ended the exchange with the code {int(event.error_code)}"))
            case WindowUpdated() | RemoteSettingsChanged() if self._unsent:
                # A large request brings one for each piece that the server takes: they are no part of a head.
                self._head_bytes -= min(self._head_bytes, _WINDOW_UPDATE_BYTES)
        return False

    def _take_head(self, response: Response, headers: Headers) -> None:
        # h2 has refused malformed and repeated pseudo-headers, connection headers, and names or values with line breaks.
        status = int(headers[0][1]) if headers[0][1].isdigit() else 0
        if not 200 <= status <= 599:
            self._refuse(ProtocolError(f"the status {status} is none of HTTP"))
        response.headers.extend(headers[1:])
        lengths = [value for name, value in headers if name == b"content-length"]
        if len(lengths) > 1 or any(len(length) > 18 for length in lengths):
            self._refuse(ProtocolError("several content-lengths, or one beyond reason"))
        if lengths:
            response.content_length = int(lengths[0])
        response.status = status

    def _prepare_for_leave(self, goaway: bytes) -> None:
        # h2 would end every stream here; a server that leaves in order still finishes the one it has accepted.
        if len(goaway) < _FRAME_HEAD + 8 or goaway[5:9] != b"\0\0\0\0":
            self._refuse(ProtocolError("a malformed GOAWAY"))
        self._is_leaving = True
        if self._stream > int.from_bytes(goaway[9:13], "big") & 0x7FFFFFFF:
            code = int.from_bytes(goaway[13:17], "big")
            self._refuse(ConnectionLost(f"the server leaves without an answer, with the code {code}"))

    def _feed_idle(self, data: bytes) -> None:
        self._quiet_bytes += len(data)
        if self._quiet_bytes > _MAX_IDLE_BYTES:
            self.close()
            return
        self._arrived += data
        self._read_on()

    def _read_on(self) -> None:
        """What stands between two answers: settings, pings, room for more; never a part of an answer."""
        try:
            for frame in self._frames(b""):
                if frame[3] == _GOAWAY:
                    self.close()
                    return
                self._h2.receive_data(frame)  # refuses parts of an answer: no stream is open
        except (UpstreamError, H2Error):
            self.close()
            return
        self._flush()

    def _frames(self, data: bytes) -> Iterator[bytes]:
        """Whole frames as they come complete. They are handed on one by one, so that a bad one takes no good one with it."""
        arrived = self._arrived
        arrived += data
        while len(arrived) >= _FRAME_HEAD:
            size = int.from_bytes(arrived[:3], "big")
            if size > _MAX_FRAME:
                self._refuse(ProtocolError("a frame that is too long, or not HTTP/2"))
            if len(arrived) < _FRAME_HEAD + size:
                return
            frame = bytes(arrived[: _FRAME_HEAD + size])
            del arrived[: _FRAME_HEAD + size]
            yield frame

    def resume_reading(self) -> None:
        # Nothing is paused: the server's window is what holds it back.
        if self._unacknowledged and not self.closed:
            self._acknowledge()
            self._flush()

    def _acknowledge(self) -> None:
        if self._unacknowledged:
            self._h2.acknowledge_received_data(self._unacknowledged, self._stream)
            self._unacknowledged = 0


def _fields(head: bytes) -> list[HeaderTuple]:
    """A head in the form of HTTP/1.1, made by `RequestHead`, as HTTP/2's header list."""
    start, host, *lines = head[:-4].split(b"\r\n")
    method, target, _ = start.split(b" ")
    fields = [
        HeaderTuple(b":method", method),
        HeaderTuple(b":scheme", b"https"),
        HeaderTuple(b":authority", host.partition(b": ")[2]),
        HeaderTuple(b":path", target),
    ]
    for line in lines:
        name, _, value = line.partition(b": ")
        fields.append((NeverIndexedHeaderTuple if name in _SECRET else HeaderTuple)(name, value))
    return fields


def _translated(error: H2Error, what: str) -> UpstreamError:
    """Without h2's own text, which may repeat what was received."""
    kind = ResponseTooLarge if isinstance(error, DenialOfServiceError) else ProtocolError
    translated = kind(f"{what}: {type(error).__name__}")
    translated.__cause__ = error
    return translated
