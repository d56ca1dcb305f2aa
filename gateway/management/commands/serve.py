"""Runs the gateway and its admin."""

import logging
import sys
from argparse import ArgumentParser
from importlib import import_module
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, connection, connections
from django.db.migrations.executor import MigrationExecutor

from gateway.metrics.listener import LISTENING
from gateway.serving import (
    Application,
    ClientLimits,
    PortTaken,
    address_of,
    listen,
    serve_daphne,
    serve_uvicorn,
)

log = logging.getLogger("pilotage.serving")


class Command(BaseCommand):
    help = "Serves the gateway and its admin. Never migrates the database."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--host", default="127.0.0.1", help="address to listen on; default 127.0.0.1")
        parser.add_argument("--port", type=int, default=8000, help="default 8000; 0 takes a free one")
        parser.add_argument("--server", choices=("uvicorn", "daphne"), default="uvicorn")
        parser.add_argument("--workers", type=int, default=1, help="processes; more than one on uvicorn only")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["workers"] < 1:
            raise CommandError("--workers must be at least 1")
        if options["server"] == "daphne" and options["workers"] > 1:
            raise CommandError("Daphne serves with one process: use uvicorn, or several services on ports of their own")
        self._require_migrations()
        host, port, process = options["host"], options["port"], settings.PILOTAGE
        if process.metrics_port is not None:
            try:
                LISTENING.bound = bound = listen(process.metrics_host, process.metrics_port)
            except PortTaken as problem:
                raise CommandError(
                    f"the metrics (PILOTAGE_METRICS_HOST, PILOTAGE_METRICS_PORT): {problem}"
                ) from problem
            log.info("metrics at %s/metrics", address_of(bound))
        try:
            if options["server"] == "daphne":
                code = serve_daphne(_application, host=host, port=port)
            else:
                code = serve_uvicorn(
                    _application,
                    host=host,
                    port=port,
                    workers=options["workers"],
                    limits=ClientLimits(
                        head_seconds=process.head_seconds,
                        min_body_bytes_per_second=process.min_body_bytes_per_second,
                        write_stall_seconds=process.write_stall_seconds,
                    ),
                    drain_seconds=process.drain_seconds,
                )
        except PortTaken as problem:
            raise CommandError(str(problem)) from problem
        sys.exit(code)

    def _require_migrations(self) -> None:
        try:
            executor = MigrationExecutor(connection)
            plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
        except DatabaseError as problem:
            # The gateway can serve from its last good configuration on disk.
            self.stderr.write(f"The database does not answer, so its migrations were not checked: {problem}")
            return
        finally:
            connections.close_all()  # a worker must not inherit one
        if plan:
            raise CommandError(
                f"the database is {len(plan)} migration(s) behind; run `manage.py migrate`, then start again"
            )


def _application() -> Application:
    asgi = import_module("gateway.asgi")
    asgi.relay.start(patience_s=5.0)  # connections wait in the backlog until the configuration is loaded
    application: Application = asgi.application
    return application
