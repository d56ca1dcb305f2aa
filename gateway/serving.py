"""Starting a server around the ASGI application, and stopping it without losing an answer.

No Django here: `manage.py serve` hands in what it read from the settings.
"""

import errno
import gc
import logging
import os
import resource
import signal
import socket
import time
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

log = logging.getLogger("pilotage.serving")

BACKLOG = 2048
MAX_PORT = 65_535
COLLECT_AFTER = (5_000, 20, 100)
"""Thresholds of the collector. A request leaves hardly a cycle behind: at Python's own thresholds looking for some took a
twentieth of the time. Small enough that one look at the youngest stays within a few milliseconds."""

SOCKETS = b"/admin/reports/live/socket"
"""The one path at which there is a websocket: `gateway.asgi` says what answers there."""
KEEP_ALIVE_SECONDS = 75
"""Longer than the pools of usual clients and proxies keep a connection, so that it is they who close it."""


class Draining:
    """Whether this process was told to stop."""

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def clear(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set


DRAINING = Draining()
"""Set at the first SIGTERM or SIGINT; `/readyz` then answers 503."""


class Place:
    """This process among the workers of its server."""

    def __init__(self) -> None:
        self.server = 0
        """The process that the workers have in common; 0: this one serves alone."""
        self.number = 0


PLACE = Place()


class PortTaken(Exception):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """What a client may take its time with."""

    head_seconds: float = 10.0
    """For the request line and all header fields."""
    min_body_bytes_per_second: int = 1024
    """Over the time that the body has taken so far, after a grace of `head_seconds`. 0: no limit."""
    write_stall_seconds: float = 60.0
    """For reading anything of what waits to be sent."""


def listen(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A listening socket. `shared`: others of this process may listen beside it on the same port.

    Raises `PortTaken`, which names address and port.
    """
    if not 0 <= port <= MAX_PORT:  # the resolver would take it modulo 65,536
        raise PortTaken(f"{port} is no port: it must be from 0 to {MAX_PORT}")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as problem:
        raise PortTaken(f"cannot listen on {host}: {problem.strerror}") from problem
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(address)
        bound.listen(BACKLOG)
        bound.setblocking(False)
    except OSError as problem:
        bound.close()
        if problem.errno == errno.EADDRINUSE:
            raise PortTaken(f"port {port} on {host} is already in use") from problem
        raise PortTaken(f"cannot listen on port {port} of {host}: {problem.strerror}") from problem
    return bound


def address_of(bound: socket.socket) -> str:
    """`http://127.0.0.1:8000`, with the port that was really taken."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve_uvicorn(
    application: Callable[[], Application],
    *,
    host: str,
    port: int,
    workers: int,
    limits: ClientLimits,
    drain_seconds: float,
) -> int:
    """Serves until told to stop; returns the exit code. `application` is called in the process that serves.

    Raises `PortTaken` before anything is served.
    """
    _raise_descriptor_limit()
    if workers == 1:
        bound = listen(host, port)
        log.info("Pilotage serves %s", address_of(bound))
        return _run_uvicorn(application(), bound, limits, drain_seconds, parent=None)
    # One socket for each worker: the kernel then spreads connections evenly over them. Without `shared` the first
    # attempt tells whether somebody else has the port.
    probe = listen(host, port)
    port = probe.getsockname()[1]
    probe.close()
    sockets = [listen(host, port, shared=True) for _ in range(workers)]
    log.info("Pilotage serves %s with %d workers", address_of(sockets[0]), workers)

    def worker(number: int, parent: int) -> int:
        PLACE.server, PLACE.number = parent, number
        for other, bound in enumerate(sockets):
            if other != number:
                bound.close()
        return _run_uvicorn(application(), sockets[number], limits, drain_seconds, parent=parent)

    return Supervisor(workers, worker, patience_s=drain_seconds + 10).run(close=sockets)


def _run_uvicorn(
    application: Application, bound: socket.socket, limits: ClientLimits, drain_seconds: float, *, parent: int | None
) -> int:
    from gateway.http_protocol import server_for

    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    server = server_for(application, limits=limits, drain_seconds=drain_seconds, parent=parent)
    _settle_memory()
    server.run(sockets=[bound])
    return 0


def serve_daphne(application: Callable[[], Application], *, host: str, port: int) -> int:
    """Serves until told to stop; returns the exit code. Raises `PortTaken` before anything is served."""
    from daphne.endpoints import build_endpoint_description_strings
    from daphne.server import Server
    from twisted.internet import reactor

    _raise_descriptor_limit()
    bound = listen(host, port)
    app = application()
    log.info("Pilotage serves %s", address_of(bound))
    _settle_memory()
    server = Server(
        application=app,
        endpoints=build_endpoint_description_strings(file_descriptor=bound.fileno()),
        server_name="",
        verbosity=1,
    )
    reactor.addSystemEventTrigger("before", "shutdown", DRAINING.set)  # type: ignore[arg-type]  # its interface counts no `self`
    server.run()
    return 0


def refuse_root_path(application: Application) -> Application:
    """The outermost layer: Daphne takes the application's root from a header that any client can send."""

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if not scope.get("root_path"):
            return await application(scope, receive, send)
        if scope["type"] == "websocket":
            return await send({"type": "websocket.close", "code": 1008})
        if scope["type"] != "http":
            return await application(scope, receive, send)
        id = f"req_{uuid.uuid4().hex}"
        error = '"type":"invalid_request_error","code":"root_path_refused","message":"Daphne-Root-Path is not accepted"'
        if scope["path"].startswith("/v1/messages"):
            text = f'{{"type":"error","error":{{{error}}},"request_id":"{id}"}}'
        else:
            text = f'{{"error":{{{error},"param":null}}}}'
        body = text.encode()
        head = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"x-request-id", id.encode()),
            (b"connection", b"close"),
        ]
        await send({"type": "http.response.start", "status": 400, "headers": head})
        await send({"type": "http.response.body", "body": body})

    return guarded


def _settle_memory() -> None:
    """What is loaded by now stays: the collector need not walk it again and again while requests wait."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)


def _raise_descriptor_limit() -> None:
    """Every stream takes two descriptors; the soft limit is often 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Supervisor:
    """Forks workers, starts a new one for each that dies, and passes a stop on to all of them."""

    QUICK_S = 5.0
    """A worker that lives shorter than this has failed to start."""
    MAX_FAILURES = 5
    """So many failures to start in a row, and the supervisor gives up."""

    def __init__(self, workers: int, work: Callable[[int, int], int], *, patience_s: float) -> None:
        """`work(number, parent_pid)` serves in the child and returns its exit code.

        `patience_s`: how long after a stop a worker may live before it is killed.
        """
        self._workers = workers
        self._work = work
        self._patience_s = patience_s
        self._numbers: dict[int, int] = {}
        self._born: dict[int, float] = {}

    def run(self, *, close: list[socket.socket]) -> int:
        """Returns the exit code: of the supervisor in the parent, of its work in a child.

        `close`: sockets that the parent keeps for the workers to come, and closes when it is told to stop.
        """
        signals = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        parent = os.getpid()
        due = dict.fromkeys(range(self._workers), 0.0)
        failures = 0
        stop_by = 0.0
        failed = False
        while True:
            now = time.monotonic()
            if not stop_by:
                for number in [number for number, at in due.items() if at <= now]:
                    del due[number]
                    pid = os.fork()
                    if pid == 0:
                        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
                        return self._work(number, parent)
                    self._numbers[pid] = number
                    self._born[pid] = now
            elif not self._numbers:
                return 1 if failed else 0
            elif now > stop_by:
                self._signal(signal.SIGKILL)
            info = signal.sigtimedwait(signals, 0.5)
            if info is not None and info.si_signo != signal.SIGCHLD:
                if not stop_by:
                    stop_by = time.monotonic() + self._patience_s
                    for bound in close:
                        bound.close()
                self._signal(info.si_signo)
            for number, lived, status in self._buried():
                if stop_by:
                    continue
                failures = failures + 1 if lived < self.QUICK_S else 0
                log.error("worker %d died: %s", number, _fate(status), extra={"lived_seconds": round(lived, 1)})
                if failures >= self.MAX_FAILURES:
                    log.error("%d workers in a row failed to start", failures)
                    failed = True
                    stop_by = time.monotonic() + self._patience_s
                    for bound in close:
                        bound.close()
                    self._signal(signal.SIGTERM)
                due[number] = time.monotonic() + (0.1 if failures < 2 else 1.0)

    def _signal(self, number: int) -> None:
        for pid in self._numbers:
            os.kill(pid, number)

    def _buried(self) -> list[tuple[int, float, int]]:
        """Number, life time in seconds and wait status of every worker that has ended."""
        ended = []
        while self._numbers:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid in self._numbers:
                ended.append((self._numbers.pop(pid), time.monotonic() - self._born.pop(pid), status))
        return ended


def _fate(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"signal {-code}" if code < 0 else f"exit code {code}"
