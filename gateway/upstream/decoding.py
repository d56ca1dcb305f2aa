"""Answers that a provider compressed although it was asked not to, made plain again, for every transport.

The standard library knows gzip and deflate. What comes in another coding, or is not what its coding says, is no answer.
"""

import asyncio
import zlib

from gateway.upstream.client import Headers, UpstreamResponse
from gateway.upstream.errors import ConnectionLost, EncodingError, ResponseTooLarge

_OUTPUT_BYTES = 65_536
"""Decoded at a time: what a few compressed bytes can become stays small."""
_INPUT_BYTES = 4_096
"""Handed to the decoder at a time: it copies what it has not used yet."""
_TURN_BYTES = 1_048_576
"""Decoded (a few milliseconds) before others get their turn."""

_FRUITLESS_MEMBERS = 100
"""Of a gzipped body that may follow each other without a decoded byte."""

_GZIP = 16 + zlib.MAX_WBITS
_ZLIB = zlib.MAX_WBITS
_RAW = -zlib.MAX_WBITS


def plain(response: UpstreamResponse) -> UpstreamResponse:
    """The response itself when it has no content coding, else one that decodes it.

    That one's headers name neither coding nor length. Its body raises `EncodingError` where it cannot be decoded; `limit`
    of `read` holds for the decoded bytes.
    """
    for name, _ in response.headers:
        if name == b"content-encoding":
            codings = _codings(response.headers)
            return _Decoded(response, codings) if codings else response
    return response


def _codings(headers: Headers) -> list[bytes]:
    """All content codings but `identity`, in the order of their use (RFC 9110, section 8.4)."""
    named = [
        coding.strip().lower() for name, value in headers if name == b"content-encoding" for coding in value.split(b",")
    ]
    return [coding for coding in named if coding not in (b"", b"identity")]


class _Decoded(UpstreamResponse):
    """See `UpstreamResponse`."""

    def __init__(self, response: UpstreamResponse, codings: list[bytes]) -> None:
        self.status = response.status
        self.headers = [field for field in response.headers if field[0] not in (b"content-encoding", b"content-length")]
        self.complete_by_eof = response.complete_by_eof
        self._response = response
        self._decoder: _Inflating | None = None
        if codings in ([b"gzip"], [b"x-gzip"], [b"deflate"]):
            self._decoder = _Inflating(gzip=codings != [b"deflate"])
        self._since_turn = 0

    async def receive(self, *, by: float) -> bytes:
        decoder = self._decoder
        if decoder is None:
            raise EncodingError("a content coding that is not known here, or several")
        while True:
            try:
                decoded = decoder.take()
            except zlib.error as error:
                raise EncodingError("the body is not in the coding that its head names") from error
            if decoded:
                self._since_turn += len(decoded)
                if self._since_turn > _TURN_BYTES:
                    self._since_turn = 0
                    await asyncio.sleep(0)
                return decoded
            data = await self._response.receive(by=by)
            self._since_turn = 0
            if data:
                decoder.give(data)
            elif decoder.is_whole:
                return b""
            else:
                raise ConnectionLost("the compressed body ended early")

    async def read(self, *, by: float, limit: int) -> bytes:
        pieces: list[bytes] = []
        size = 0
        while data := await self.receive(by=by):
            size += len(data)
            if size > limit:
                self.close()
                raise ResponseTooLarge(f"a decoded body of more than {limit} bytes")
            pieces.append(data)
        return b"".join(pieces)

    def close(self) -> None:
        self._response.close()


class _Inflating:
    """A body in gzip or deflate: what is given comes out in bounded pieces, as far as it can be known."""

    def __init__(self, *, gzip: bool) -> None:
        self._gzip = gzip
        self._member: zlib._Decompress | None = zlib.decompressobj(_GZIP) if gzip else None
        """`None`: the first two bytes of a deflated body have not come."""
        self._input = memoryview(b"")
        self._rest = b""
        """Was handed to the decoder and not used by it; comes before `_input`."""
        self._is_full = False
        """The decoder may hold more than it could give."""
        self._has_ended = True  # an answer without a body may well name a coding
        self._fruitless = 0

    @property
    def is_whole(self) -> bool:
        """The body may end here."""
        return self._has_ended and not self._rest

    def give(self, data: bytes) -> None:
        """Once `take` has nothing more."""
        if self._member is None:
            data = self._rest + data
            if len(data) < 2:
                self._rest = data
                return
            self._rest = b""
            # Zlib's format, as RFC 9110 says, or the bare one that some servers send in its place.
            is_zlib = data[0] & 0x0F == 8 and int.from_bytes(data[:2], "big") % 31 == 0
            self._member = zlib.decompressobj(_ZLIB if is_zlib else _RAW)
        self._input = memoryview(data)

    def take(self) -> bytes:
        """The next decoded bytes; `b""`: more has to be given first. Raises `zlib.error`."""
        member = self._member
        while member is not None:
            piece: bytes | memoryview = self._rest
            if not piece:
                piece, self._input = self._input[:_INPUT_BYTES], self._input[_INPUT_BYTES:]
                if not piece and not self._is_full:
                    break
            if member.eof:
                member = self._member = self._next_member()
            decoded = member.decompress(piece, _OUTPUT_BYTES)
            self._has_ended = member.eof
            self._is_full = len(decoded) == _OUTPUT_BYTES and not member.eof
            self._rest = member.unused_data if member.eof else member.unconsumed_tail
            if decoded:
                self._fruitless = 0
                return decoded
        return b""

    def _next_member(self) -> "zlib._Decompress":
        """A gzipped body may have several members in a row (RFC 1952)."""
        self._fruitless += 1
        if not self._gzip or self._fruitless > _FRUITLESS_MEMBERS:
            raise zlib.error("bytes past the end")
        return zlib.decompressobj(_GZIP)
