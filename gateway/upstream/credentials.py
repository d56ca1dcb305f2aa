"""What a provider is sent with every request: the head's fixed lines, its credential among them.

A key is a reference (`api_key_env`, `api_key_file`) that is looked up when it is used, so that a rotated key needs no restart.
No message of this module ever contains a key.
"""

import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from gateway.upstream.client import Headers
from gateway.upstream.errors import ConnectError, CredentialMissing, ProtocolError
from routing.core.catalog import Provider

OWN_HEADERS = frozenset(
    {
        b"host", b"content-length", b"transfer-encoding", b"connection", b"keep-alive", b"proxy-connection", b"upgrade",
        b"te", b"trailer", b"expect", b"accept-encoding", b"authorization", b"proxy-authorization", b"x-api-key",
    }
)  # fmt: skip
"""What only the transport may say: no request may bring one of these."""

_FRAMING = OWN_HEADERS - {b"authorization", b"proxy-authorization", b"x-api-key"}
_TOKEN = frozenset(b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")
_FILE_LOOK_S = 1.0
"""A key file's modification time is looked at no more often than this."""
_MAX_KEY_BYTES = 16_384
_MAX_PATHS = 64
"""Prepared request starts kept for one provider; a provider is called at a handful of paths."""


class Credential:
    """A provider's key, read where the configuration points when it is asked for."""

    def __init__(self, provider: Provider, environ: Mapping[str, str]) -> None:
        self._provider = provider
        self._environ = environ
        self._file_key = b""
        self._file_mark: tuple[int, int, int] | None = None
        self._look_again_at = float("-inf")

    def current(self, now: float) -> bytes | None:
        """The key; `None` when none is configured or `auth` is `none`. `now` is any monotonic clock, in seconds.

        Raises `CredentialMissing` when the reference leads nowhere, or to something that no header can carry.
        """
        provider = self._provider
        if provider.auth == "none":
            return None
        if provider.api_key_env is not None:
            value = self._environ.get(provider.api_key_env)
            if not value:
                raise CredentialMissing(
                    f"provider {provider.name}: the environment variable {provider.api_key_env} is not set"
                )
            return _sendable(value, f"provider {provider.name}: the value of {provider.api_key_env}")
        if provider.api_key_file is not None:
            if now >= self._look_again_at:
                self._read_file(provider.api_key_file)
                self._look_again_at = now + _FILE_LOOK_S
            return self._file_key
        if provider.api_key is not None:
            return _sendable(provider.api_key, f"provider {provider.name}: api_key")
        return None

    def _read_file(self, path: str) -> None:
        name = self._provider.name
        try:
            status = os.stat(path)
            mark = (status.st_mtime_ns, status.st_size, status.st_ino)
            if mark == self._file_mark:
                return
            with open(path, "rb") as file:
                content = file.read(_MAX_KEY_BYTES + 1)
        except OSError as error:
            self._file_mark = None
            raise CredentialMissing(f"provider {name}: api_key_file {path}: {error.strerror or 'unreadable'}") from None
        self._file_mark = None
        if len(content) > _MAX_KEY_BYTES:
            raise CredentialMissing(f"provider {name}: api_key_file {path} is longer than {_MAX_KEY_BYTES} bytes")
        self._file_key = _sendable(content.decode("latin-1"), f"provider {name}: api_key_file {path}")
        self._file_mark = mark


class RequestHead:
    """Builds the heads of one provider's requests from a block that is joined once and kept."""

    def __init__(self, provider: Provider, environ: Mapping[str, str]) -> None:
        """Raises `ConnectError` when the base URL or a fixed header cannot be sent."""
        try:
            url = urlsplit(provider.base_url)
        except ValueError as error:
            raise ConnectError(f"provider {provider.name}: the base URL is none") from error
        self._host = _host(url.netloc, provider)
        self._base_path = _path(url.path.rstrip("/"), provider)
        self._auth = provider.auth
        self._fixed = _fixed_headers(provider)
        self._fixed_names = frozenset(name for name, _ in self._fixed)
        self._credential = Credential(provider, environ)
        self._key: bytes | None = None
        self._block = b""
        self._starts: dict[str, bytes] = {}

    @property
    def authority(self) -> str:
        """Host and, where the base URL names one, port."""
        return self._host.decode("ascii")

    def build(self, path: str, headers: Headers, length: int, now: float) -> bytes:
        """The whole head up to and with its empty line, for a body of `length` bytes.

        A request header that the provider's fixed headers also name gives way to them. Raises `CredentialMissing`, and
        `ProtocolError` for a path or header that must not be sent.
        """
        key = self._credential.current(now)
        if key != self._key or not self._block:
            self._block = self._join_block(key)
            self._key = key
            self._starts.clear()
        start = self._starts.get(path)
        if start is None:
            start = self._add_start(path)
        lines = []
        fixed = self._fixed_names
        for name, value in headers:
            if name in OWN_HEADERS:
                raise ProtocolError(
                    f"the request brings the header {name.decode('latin-1')!r}, which is the transport's own"
                )
            if name not in fixed:
                lines.append(b"%b: %b\r\n" % (name, value))
        block = b"".join(lines)
        if block.count(b"\n") != len(lines) or block.count(b"\r") != len(lines) or b"\0" in block:
            raise ProtocolError("a request header holds a line break or a NUL")
        return b"%b%bcontent-length: %d\r\n\r\n" % (start, block, length)

    def _join_block(self, key: bytes | None) -> bytes:
        lines = [(b"host", self._host), (b"accept-encoding", b"identity"), *self._fixed]
        if key is not None:
            name, value = (b"x-api-key", key) if self._auth == "x-api-key" else (b"authorization", b"Bearer " + key)
            if name not in self._fixed_names:
                lines.append((name, value))
        return b"".join(b"%b: %b\r\n" % line for line in lines)

    def _add_start(self, path: str) -> bytes:
        target = f"{self._base_path}{path}"
        if not target.startswith("/") or not target.isascii() or not target.isprintable() or " " in target:
            raise ProtocolError(f"the request path {path!r} cannot be sent")
        if len(self._starts) >= _MAX_PATHS:
            self._starts.clear()
        start = self._starts[path] = b"POST %b HTTP/1.1\r\n%b" % (target.encode(), self._block)
        return start


def _sendable(key: str, what: str) -> bytes:
    key = key.strip()
    if not key:
        raise CredentialMissing(f"{what} is empty")
    if not key.isascii() or not key.isprintable():
        raise CredentialMissing(f"{what} holds a character that no header can carry")
    return key.encode()


def _fixed_headers(provider: Provider) -> Headers:
    fixed: Headers = []
    for name, value in provider.headers:
        lowered = name.lower().encode("latin-1", "replace")
        if not lowered or not _TOKEN.issuperset(lowered):
            raise ConnectError(f"provider {provider.name}: {name!r} is no header name")
        if lowered in _FRAMING:
            raise ConnectError(f"provider {provider.name}: the header {name!r} is the transport's own")
        try:
            encoded = value.strip().encode("latin-1")
        except UnicodeEncodeError:
            encoded = b"\0"
        if any((byte < 32 and byte != 9) or byte == 127 for byte in encoded):
            raise ConnectError(f"provider {provider.name}: the value of the header {name!r} cannot be sent")
        fixed.append((lowered, encoded))
    return fixed


def _host(netloc: str, provider: Provider) -> bytes:
    host = netloc.rpartition("@")[2]
    try:
        encoded = host.encode("ascii") if host.isascii() else host.encode("idna")
    except UnicodeError:
        encoded = b""
    if not encoded or any(byte <= 32 or byte == 127 for byte in encoded):
        raise ConnectError(f"provider {provider.name}: the base URL names no host")
    return encoded


def _path(path: str, provider: Provider) -> str:
    if not path.isascii() or not (path.isprintable() and " " not in path):
        raise ConnectError(f"provider {provider.name}: the base URL's path cannot be sent")
    return path
