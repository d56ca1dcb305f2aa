"""The one ASGI application that every server runs: the relay, or Django, by the path."""

import os
from collections.abc import Awaitable
from typing import Any

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter
from channels.security.websocket import AllowedHostsOriginValidator
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")

pages: Any = get_asgi_application()

from gateway.relay.messages import Receive, Scope, Send  # noqa: E402  # Django is set up by the line above
from gateway.runtime import Runtime  # noqa: E402
from gateway.serving import SOCKETS, refuse_root_path  # noqa: E402
from reports.consumers import LiveConsumer  # noqa: E402

relay = Runtime()


WITHOUT_VERSION = ("/chat/completions", "/messages", "/models", "/responses")
"""Where clients come whose base URL lacks `/v1`: they read JSON, and are told so."""


def is_for_the_relay(scope: Scope) -> bool:
    """Whether a request is answered without Django: the API and what load balancers ask."""
    path: str = scope["path"]
    return (
        path.startswith(("/v1/", "//", *WITHOUT_VERSION))
        or path in ("/v1", "/healthz", "/readyz")
        or (path == "/" and scope["method"] == "HEAD")
    )


def http(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
    served: Awaitable[None] = (relay if is_for_the_relay(scope) else pages)(scope, receive, send)
    return served


live: Any = AllowedHostsOriginValidator(AuthMiddlewareStack(LiveConsumer.as_asgi()))


async def websocket(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["path"].encode() == SOCKETS:
        await live(scope, receive, send)
    else:
        await send({"type": "websocket.close", "code": 1008})


application = refuse_root_path(ProtocolTypeRouter({"http": http, "websocket": websocket}))
