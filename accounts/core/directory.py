"""Who may call: callers and token digests, compiled for one dictionary look-up per request."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from accounts.core.errors import Unauthenticated
from accounts.core.secret import LENGTH, digest_of, well_formed


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    name: str
    project: str = ""
    environment: str = ""
    active: bool = True
    allow: frozenset[str] = frozenset()
    """Group names; holds `*` when every group is allowed."""
    tags: frozenset[str] = frozenset()
    see_routing: bool = False
    """Answers name the serving target and the decision's mode in `x-pilotage-*` headers."""

    def may_use(self, group: str) -> bool:
        return group in self.allow or "*" in self.allow


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    caller: Caller
    shown: str
    """The first 12 characters, by which people know it."""
    digest: bytes
    expires_at: float | None = None
    """Unix seconds; `None`: never."""
    revoked: bool = False
    groups: frozenset[str] | None = None
    """Narrower than the caller's; `None`: all that the caller may use."""

    def may_use(self, group: str) -> bool:
        return self.caller.may_use(group) and (self.groups is None or group in self.groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    version: int
    tokens: Mapping[bytes, Token]
    """By digest."""
    met: dict[bytes, Token] = field(default_factory=dict, init=False, repr=False, compare=False)
    """By the secret itself, those that were presented to this process: no digest for the second time, and never more of
    them than `tokens` has. Goes with the directory."""


def presented(headers: Iterable[tuple[bytes, bytes]], *, api_key_first: bool = False) -> bytes:
    """The token that a request carries, `b""` when it carries none: the one extractor for every endpoint. Names are in
    lower case."""
    bearer = api_key = b""
    for name, value in headers:
        if name == b"authorization":
            scheme, _, rest = value.strip().partition(b" ")
            if scheme.lower() == b"bearer" and not bearer:
                bearer = rest.strip()
        elif name == b"x-api-key" and not api_key:
            api_key = value.strip()
    return (api_key or bearer) if api_key_first else (bearer or api_key)


def find(directory: Directory, secret: bytes | str, pepper: bytes, now: float) -> Token:
    """The Token that a client presented, good at `now` (Unix seconds). Raises `Unauthenticated` for anything else.

    Text that is no token is told by its checksum, before any digest. The comparison needs no constant time: what is
    looked up is the keyed digest, of which a client can learn nothing by trying.
    """
    if len(secret) != LENGTH:
        raise Unauthenticated("malformed")
    if isinstance(secret, str):
        secret = secret.encode("utf-8", "surrogatepass")
    token = directory.met.get(secret)
    if token is None:
        if not well_formed(secret):
            raise Unauthenticated("malformed")
        token = directory.tokens.get(digest_of(secret, pepper))
        if token is None:
            raise Unauthenticated("unknown")
        directory.met[secret] = token
    if token.revoked:
        raise Unauthenticated("revoked")
    if token.expires_at is not None and now >= token.expires_at:
        raise Unauthenticated("expired")
    if not token.caller.active:
        raise Unauthenticated("inactive")
    return token
