"""Runs a worker: sums up, deletes what is old, reports."""

import sys
import warnings
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand


class Command(BaseCommand):
    help = "Runs the tasks that wait, one at a time. SIGTERM lets the running one end first."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--schedule",
            action="store_true",
            help="also send what is due by the clock; on one machine one worker sends, the others stand by",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        from celery.exceptions import SecurityWarning

        from gateway.celery import app

        # Said to whoever runs it as root, for the sake of pickle, which is refused here.
        warnings.simplefilter("ignore", SecurityWarning)
        words = ["--quiet", "worker", "--without-gossip", "--without-mingle", "--without-heartbeat"]
        if options["schedule"]:
            words.append("--beat")
        sys.exit(app.worker_main(words))
