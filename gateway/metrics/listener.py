"""Serves `/metrics`: on an address of its own, or as an answer to whoever brings the token."""

import hmac
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

CLIENT_SECONDS = 5.0
"""How long a client may say nothing."""
MAX_CLIENTS = 8
"""Served at a time; further ones are hung up on."""


class Listening:
    """The socket that was taken before the server's processes were made: they all answer on it."""

    bound: socket.socket | None = None


LISTENING = Listening()

SWITCH_SECONDS = 0.0002
"""How long an exposition keeps the interpreter before another thread has its turn."""

Wsgi = Callable[[dict[str, Any], Any], Iterable[bytes]]


def listen_for_metrics(bound: socket.socket, registry: CollectorRegistry, *, token: str | None) -> None:
    """Answers on the socket, in threads of its own. Several processes may answer on one socket."""
    server = _Server(bound)
    server.set_app(application(registry, token=token))
    threading.Thread(target=server.serve_forever, name="pilotage-metrics-listener", daemon=True).start()


def application(registry: CollectorRegistry, *, token: str | None) -> Wsgi:
    """`token`: what `Authorization: Bearer` must bring; `None`: anybody may read."""
    exposition = make_wsgi_app(registry)

    def guarded(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["PATH_INFO"] != "/metrics":
            return _plain(start_response, "404 Not Found", "The metrics are at /metrics.\n")
        if token is not None and not brings(environ.get("HTTP_AUTHORIZATION", ""), token):
            return _plain(start_response, "401 Unauthorized", "A token is needed.\n", ("WWW-Authenticate", "Bearer"))
        with giving_way():
            answer: Iterable[bytes] = exposition(environ, start_response)
        return answer

    return guarded


@contextmanager
def giving_way() -> Iterator[None]:
    """Inside, exchanges wait for this thread only a fraction of the usual time: a large exposition takes a while."""
    with _one_at_a_time:
        usual = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_SECONDS)
        try:
            yield
        finally:
            sys.setswitchinterval(usual)


_one_at_a_time = threading.Lock()


def brings(authorization: str, token: str) -> bool:
    scheme, _, given = authorization.partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())


def _plain(start_response: Any, status: str, text: str, *headers: tuple[str, str]) -> list[bytes]:
    start_response(status, [("Content-Type", "text/plain; charset=utf-8"), *headers])
    return [text.encode()]


class _Handler(WSGIRequestHandler):
    timeout = CLIENT_SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        """A scrape is no event."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, bound: socket.socket) -> None:
        super().__init__(bound.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = bound
        self.server_name, self.server_port = bound.getsockname()[:2]
        self.setup_environ()
        self._places = threading.Semaphore(MAX_CLIENTS)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that left is none of ours."""
