"""Runs the stand-in provider."""

import logging
from argparse import ArgumentParser
from typing import Any

import msgspec
import uvicorn
from django.core.management.base import BaseCommand, CommandError

from gateway.serving import PortTaken, listen
from gateway.simulator import Behaviour, Simulator


class Command(BaseCommand):
    help = "Runs a stand-in provider for Chat, Messages and Responses, adjustable through /control while it runs."
    requires_system_checks: list[str] = []  # noqa: RUF012 - Django's own way to say so

    def add_arguments(self, parser: ArgumentParser) -> None:
        default = Behaviour()
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=int, default=9001)
        parser.add_argument("--seed", type=int, default=0, help="changes texts and fates; default 0")
        parser.add_argument("--name", default=default.name, help="who the answers say they are from")
        parser.add_argument("--latency-ms", type=float, default=default.latency_ms, help="to the first content")
        parser.add_argument("--jitter-ms", type=float, default=default.jitter_ms, help="added or taken at random")
        parser.add_argument("--tokens-per-second", type=float, default=default.tokens_per_second, help="0: no pauses")
        parser.add_argument("--error-rate", type=float, default=default.error_rate, help="share answered with --status")
        parser.add_argument("--status", type=int, default=default.status)
        parser.add_argument("--retry-after", type=float, default=None, help="seconds, sent with --status")
        parser.add_argument(
            "--error-event-rate", type=float, default=0.0, help="share of streams that open with an error"
        )
        parser.add_argument("--cut-rate", type=float, default=default.cut_rate, help="share that breaks off half-way")
        parser.add_argument("--output-tokens", type=int, default=None, help="default: 20 to 120, by the request")
        parser.add_argument("--reasoning", action="store_true", help="think before every answer")
        parser.add_argument("--hang", action="store_true", help="take requests and never answer")
        parser.add_argument("--api-key", default=None, help="the only credential it takes; default: any")
        parser.add_argument("--model", dest="models", action="append", default=[], help="what /v1/models lists")

    def handle(self, *args: Any, **options: Any) -> None:
        names = Behaviour.__struct_fields__
        try:
            behaviour = msgspec.convert({name: options[name] for name in names}, Behaviour)
        except msgspec.ValidationError as problem:
            raise CommandError(str(problem)) from problem
        try:
            socket = listen(options["host"], options["port"])
        except PortTaken as problem:
            raise CommandError(str(problem)) from problem
        self.stdout.write(f"simulator {behaviour.name} serves http://{options['host']}:{socket.getsockname()[1]}/v1")
        self.stdout.flush()
        # A cut answer is no defect of the application here.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        config = uvicorn.Config(
            Simulator(behaviour, seed=options["seed"]),
            loop="uvloop",
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=1,
        )
        SimulatorServer(config).run(sockets=[socket])


class SimulatorServer(uvicorn.Server):
    def handle_exit(self, sig: int, frame: Any) -> None:
        """Leaves with exit code 0: uvicorn would raise the signal again after it has shut down."""
        self.should_exit = True
