"""Reads the spool into the database: once, or for as long as it is left running."""

import gc
import signal
import threading
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from reports.ingest import Ingest
from reports.ingest_files import AlreadyRunning


class Command(BaseCommand):
    help = "Reads the records in PILOTAGE_DATA_DIR/spool into the database. One for each host."
    requires_system_checks = ()  # it serves no pages; and the database may still be away

    def add_arguments(self, parser: ArgumentParser) -> None:
        how = parser.add_mutually_exclusive_group(required=True)
        how.add_argument("--follow", action="store_true", help="go on until SIGTERM or Ctrl-C")
        how.add_argument("--once", action="store_true", help="read what is there and end")

    def handle(self, *args: Any, **options: Any) -> None:
        process = settings.PILOTAGE
        ingest = Ingest(
            process.data_dir / "spool",
            batch_lines=process.ingest_batch_lines,
            max_candidates=process.max_candidates,
            max_aside_bytes=process.ingest_aside_max_bytes,
        )
        # A batch is some hundred thousand objects without a cycle: looking through them is a third of its time.
        gc.freeze()
        gc.set_threshold(200_000, 10, 10)
        try:
            with ingest.reader.alone():
                if options["follow"]:
                    self._follow(ingest, process.ingest_poll_seconds)
                else:
                    ingest.once()
        except AlreadyRunning as error:
            raise CommandError(f"{error}; one is enough") from error

    def _follow(self, ingest: Ingest, poll_s: float) -> None:
        stop = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        self.stdout.write(f"Ingest reads {ingest.reader.directory}")
        self.stdout.flush()
        ingest.follow(stop, poll_s=poll_s)
