"""Which header fields cross the gateway, in each direction."""

from collections.abc import Iterable

from gateway.relay.messages import Header
from gateway.upstream.client import Headers

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"expect",
    }
)
"""RFC 9110, section 7.6.1, and the older names that still occur."""

CREDENTIALS = frozenset(
    {
        b"authorization",
        b"x-api-key",
        b"api-key",
        b"x-goog-api-key",
        b"cookie",
        b"openai-organization",
        b"openai-project",
    }
)
"""Who pays at the provider is never the caller's choice."""

OURS = frozenset({b"host", b"content-length", b"content-encoding", b"accept-encoding"})

WAY = frozenset(
    {
        b"forwarded",
        b"via",
        b"x-real-ip",
        b"x-host",
        b"x-original-host",
        b"x-original-url",
        b"x-rewrite-url",
        b"x-http-method",
        b"x-http-method-override",
        b"x-method-override",
    }
)
"""By these a server takes the word of whoever stands before it for address, host, path or method. That is us."""


def _spellings(name: bytes) -> set[bytes]:
    """With `_` for any `-`: to servers that make variables of fields, both are one."""
    first, *rest = name.split(b"-")
    spelled = {first}
    for part in rest:
        spelled = {start + sign + part for start in spelled for sign in (b"-", b"_")}
    return spelled


NOT_FORWARDED = frozenset(spelling for name in HOP_BY_HOP | CREDENTIALS | OURS | WAY for spelling in _spellings(name))

NOT_FORWARDED_FAMILIES = (b"x-pilotage", b"x_pilotage", b"x-forwarded", b"x_forwarded")
"""Beginnings of names."""

RETURNED = frozenset({b"openai-processing-ms", b"openai-version", b"openai-model", b"x-should-retry"})
"""What of a provider's answer head a client may see. Its account, its limits and its servers stay with us."""

RETURNED_ON_ERROR = RETURNED | {b"retry-after", b"retry-after-ms"}


def forwarded(headers: Iterable[Header], *, fixed: frozenset[bytes]) -> Headers:
    """The caller's fields that go upstream, in order. `fixed`: names the provider sets itself, which win."""
    kept = [
        field
        for field in headers
        if field[0] not in NOT_FORWARDED and field[0] not in fixed and not field[0].startswith(NOT_FORWARDED_FAMILIES)
    ]
    for name, value in headers:
        if name == b"connection":
            named = {token.strip().lower() for token in value.split(b",")}
            named -= {b"keep-alive", b"close", b""}
            if named:
                kept = [field for field in kept if field[0] not in named]
    return kept


def returned(headers: Iterable[Header], names: frozenset[bytes] = RETURNED) -> list[Header]:
    return [field for field in headers if field[0] in names]
