"""HTTP/1.1 on a connection.

The parser (llhttp) refuses what is malformed; what is well-formed but not to be trusted is refused here.
"""

import asyncio
from typing import NoReturn

import httptools

from gateway.upstream.connection import WRITE_WHOLE, Bounds, Connection, Owner, Response
from gateway.upstream.errors import ProtocolError, ResponseTimeout, ResponseTooLarge, UpstreamError


class Http1Connection(Connection):
    """See `Connection`; the parser calls its `on_` methods."""

    __slots__ = ("_complete", "_fault", "_has_transfer_encoding", "_is_interim", "_last_piece", "_parser")

    def __init__(self, owner: Owner, bounds: Bounds, loop: asyncio.AbstractEventLoop, generation: int) -> None:
        super().__init__(owner, bounds, loop, generation)
        self._parser = httptools.HttpResponseParser(self)

    def _reset(self) -> None:
        super()._reset()
        self._complete = False
        self._fault: UpstreamError | None = None
        self._has_transfer_encoding = False
        self._is_interim = False
        self._last_piece = b""

    def _begin(self, head: bytes, body: bytes) -> bool:
        if len(body) > WRITE_WHOLE:
            return False
        self._transport.write(head + body)
        return True

    async def _send_rest(self, response: Response, head: bytes, body: bytes, by: float) -> None:
        # An answer that comes before the request is out ends the sending; such a connection is not used again.
        self._unsent = True
        self._transport.write(head)
        view = memoryview(body)
        for start in range(0, len(body), WRITE_WHOLE):
            while self._write_paused and not response.status and response.is_under_way:
                if not await self.news(response, by):
                    self.fail(ResponseTimeout("the request could not be sent in time"))
            if response.status or not response.is_under_way:
                return
            self._transport.write(view[start : start + WRITE_WHOLE])
        self._unsent = False

    def _feed(self, response: Response, data: bytes) -> None:
        self.heard = True
        is_body = response.status != 0
        self._last_piece = b""
        surplus = False
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self._complete:
                self.fail(self._fault or ProtocolError(f"the response is not HTTP/1.1: {error}"))
                return
            surplus = True
        if self._complete:
            surplus = surplus or self._has_surplus(response, data)
            self._last_piece = b""
            self._finish(response, surplus=surplus)
            return
        if is_body:
            self._quiet_bytes = 0 if self._last_piece else self._quiet_bytes + len(data)
            if self._quiet_bytes > self._bounds.max_head_bytes:
                self.fail(ResponseTooLarge("chunk framing or trailers without end"))
                return
        if response.status:
            self._tell(response)

    def _has_surplus(self, response: Response, data: bytes) -> bool:
        """Whether `data` goes on after the message's end with line breaks, which the parser skips. In doubt: yes."""
        if self._has_transfer_encoding:
            return not (data.endswith(b"0\r\n\r\n") or (len(data) < 5 and b"0\r\n\r\n".endswith(data)))
        return not data.endswith(self._last_piece or b"\r\n\r\n") or data.endswith(b"\r\n\r\n\r\n")

    def _feed_idle(self, data: bytes) -> None:
        self.close()

    # What the parser tells.

    def on_message_begin(self) -> None:
        if self._complete:
            raise _Surplus

    def on_header(self, name: bytes, value: bytes) -> None:
        response = self._response
        if response is None or response.status:
            return  # a trailer: nobody asked for one
        name = name.lower()
        response.headers.append((name, value))
        if name == b"content-length":
            response.content_length = int(value)
        elif name == b"transfer-encoding":
            if self._has_transfer_encoding or value.strip().lower() != b"chunked":
                self._refuse(ProtocolError("a transfer-encoding other than chunked"))
            self._has_transfer_encoding = True

    def on_headers_complete(self) -> None:
        response = self._response
        assert response is not None
        parser = self._parser
        status = parser.get_status_code()
        has_framing = self._has_transfer_encoding or response.content_length is not None
        if status < 200:
            self._accept_interim(response, status, has_framing)
            return
        if status > 599:
            self._refuse(ProtocolError(f"the status {status} is none of HTTP"))
        version = parser.get_http_version()
        if version != "1.1" and (version != "1.0" or self._has_transfer_encoding):
            self._refuse(ProtocolError(f"an answer in HTTP/{version}"))
        if status in (204, 304):
            self._keep = version == "1.1" and not has_framing and parser.should_keep_alive()
        else:
            # An answer in HTTP/1.0 may ask to be kept; too few of those servers can be believed.
            self._keep = version == "1.1" and parser.should_keep_alive()
            response.complete_by_eof = not has_framing
        response.status = status

    def _accept_interim(self, response: Response, status: int, has_framing: bool) -> None:
        if status < 100:
            self._refuse(ProtocolError(f"the status {status} is none of HTTP"))
        if status == 101:
            self._refuse(ProtocolError("an upgrade to another protocol that was not asked for"))
        if has_framing:
            self._refuse(ProtocolError("an interim answer with a body"))
        self._count_interim()
        self._is_interim = True
        response.headers.clear()

    def on_body(self, piece: bytes) -> None:
        response = self._response
        if response is not None:
            response.add(piece)
            self._last_piece = piece

    def on_message_complete(self) -> None:
        if self._is_interim:
            self._is_interim = False
        else:
            self._complete = True

    def _refuse(self, fault: UpstreamError) -> NoReturn:
        # The parser swallows what its callbacks raise.
        self._fault = fault
        raise fault


class _Surplus(Exception):
    """Bytes past the end of the message."""
