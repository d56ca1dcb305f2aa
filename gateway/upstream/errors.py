"""What can go wrong on the way to a provider.

UpstreamError
├── AtCapacity           the provider's bound on connections is reached; nothing was sent
├── ConnectError         refused, unreachable, DNS, TLS, address not allowed; nothing was sent
│   └── CredentialMissing   the provider's key is not where the configuration points; nothing was sent
├── ConnectTimeout       no connection within `connect_s`; nothing was sent
├── ResponseTimeout      nothing (more) came before the caller's deadline
├── ConnectionLost       reset or closed before the message was complete
├── ProtocolError        not HTTP/1.1, or outside what it allows
├── EncodingError        compressed, although that was not asked for, in a way that cannot be undone
└── ResponseTooLarge     head, 1xx count or body over the bound
"""


class UpstreamError(Exception):
    """Any failure of one attempt below the meaning of the answer."""

    code = "upstream_error"
    is_timeout = False


class AtCapacity(UpstreamError):
    code = "at_capacity"


class ConnectError(UpstreamError):
    code = "upstream_connect_error"


class CredentialMissing(ConnectError):
    """Names the variable or the file, never what is in it."""

    code = "upstream_credential_missing"


class ConnectTimeout(UpstreamError):
    code = "upstream_connect_timeout"
    is_timeout = True


class ResponseTimeout(UpstreamError):
    code = "upstream_timeout"
    is_timeout = True


class ConnectionLost(UpstreamError):
    code = "upstream_connection_lost"


class ProtocolError(UpstreamError):
    code = "upstream_protocol_error"


class EncodingError(UpstreamError):
    code = "upstream_encoding_error"


class ResponseTooLarge(UpstreamError):
    code = "upstream_response_too_large"
