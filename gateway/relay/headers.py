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

NOT_FORWARDED = HOP_BY_HOP | CREDENTIALS | OURS

RETURNED = frozenset({b"openai-processing-ms", b"openai-version", b"openai-model", b"x-should-retry"})
"""What of a provider's answer head a client may see. Its account, its limits and its servers stay with us."""

RETURNED_ON_ERROR = RETURNED | {b"retry-after", b"retry-after-ms"}


def forwarded(headers: Iterable[Header], *, fixed: frozenset[bytes]) -> Headers:
    """The caller's fields that go upstream, in order. `fixed`: names the provider sets itself, which win."""
    kept = [
        field
        for field in headers
        if field[0] not in NOT_FORWARDED and field[0] not in fixed and not field[0].startswith(b"x-pilotage-")
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
