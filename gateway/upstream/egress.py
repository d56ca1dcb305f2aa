"""The egress proxy of a provider: where it is.

The proxy's address is judged as a provider's would be. The provider's name is resolved by the proxy.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote_to_bytes, urlsplit

from gateway.upstream.dialing import Place
from gateway.upstream.errors import ConnectError
from routing.core.catalog import Provider

_NO_URL = "holds no proxy's URL such as http://proxy.example:3128"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    place: Place
    authorization: bytes | None = field(default=None, repr=False)
    """The value of `proxy-authorization`."""


def proxy_of(provider: Provider, environ: Mapping[str, str]) -> Proxy | None:
    """`None` without `proxy_env`. Raises `ConnectError`, which names the variable and never repeats what it holds."""
    variable = provider.proxy_env
    if variable is None:
        return None
    what = f"provider {provider.name}: the environment variable {variable}"
    value = environ.get(variable, "").strip()
    if not value:
        raise ConnectError(f"{what} is not set")
    try:
        url = urlsplit(value)
        port = url.port or (443 if url.scheme == "https" else 80)
        host = (url.hostname or "").encode("idna" if url.hostname and not url.hostname.isascii() else "ascii").decode()
    except ValueError:  # UnicodeError is one
        raise ConnectError(f"{what} {_NO_URL}") from None
    bare = url.path in ("", "/") and not url.query and not url.fragment and host.isprintable()
    if url.scheme not in ("http", "https") or not host or not port or not bare:
        raise ConnectError(f"{what} {_NO_URL}")
    authorization = None
    if url.username is not None:
        user = unquote_to_bytes(url.username) + b":" + unquote_to_bytes(url.password or "")
        authorization = b"Basic " + base64.b64encode(user)
    return Proxy(place=Place(host=host, port=port, tls=url.scheme == "https"), authorization=authorization)
