"""`manage.py serve` whose processes also write down what they hold: tasks, places, connections. For the soak alone.

    python -m bench.watched FOLDER serve --port 0

Each process appends a line to `FOLDER/PID.jsonl` twice a second.
"""

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

EVERY_S = 0.5


def main() -> None:
    folder = Path(sys.argv[1])
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")
    from django.core.management import execute_from_command_line

    from gateway import http_protocol

    class WatchedServer(http_protocol.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            file = (folder / f"{os.getpid()}.jsonl").open("a", buffering=1)

            def look() -> None:
                asyncio.get_running_loop().call_later(EVERY_S, look)
                file.write(json.dumps(held(len(self.server_state.connections))) + "\n")

            look()

    http_protocol.Server = WatchedServer
    execute_from_command_line(["manage.py", *sys.argv[2:]])


def held(clients: int) -> dict[str, float]:
    """What this process has in hand, as numbers that are the same whenever nothing goes on."""
    from gateway import asgi

    seen: dict[str, float] = {"at": time.time(), "tasks": len(asyncio.all_tasks()), "clients": clients}
    relay = asgi.relay._relay
    if relay is not None:
        admission = relay.admission
        catalog = relay.snapshot.catalog
        providers = catalog.providers if catalog is not None else ()
        transports = relay.transport._of.values()
        seen |= {
            "in_flight": admission.in_flight,
            "queued": admission.queued,
            "callers": admission.callers,
            "held_bytes": admission.held_bytes,
            "attempts": sum(relay.observations.provider_in_flight(name) for name in providers),
            "lent": sum(transport.in_use(name) for transport in transports for name in providers),
            "connections": sum(transport.open_connections for transport in transports),
        }
    return seen


if __name__ == "__main__":
    main()
