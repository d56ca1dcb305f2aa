"""Sums up what came in: what is pending, or given days once more."""

import time
from datetime import date
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from reports.core.rollup import days_between
from reports.rollups import RollupBusy, report_zone, roll


class Command(BaseCommand):
    help = "Sum up exchanges by quarters of an hour and by day: what is pending, or the days from --from to --to again."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--from", dest="first", type=date.fromisoformat, metavar="DAY", help="such as 2026-03-08")
        parser.add_argument("--to", dest="last", type=date.fromisoformat, metavar="DAY", help="the last day, included")

    def handle(self, *, first: date | None, last: date | None, **_: Any) -> None:
        if (first is None) != (last is None):
            raise CommandError("Give both --from and --to, or neither for what is pending.")
        if first is not None and last is not None and first > last:
            raise CommandError(f"--from {first} is after --to {last}.")
        try:
            if first is None or last is None:
                self._say("pending", None, None)
            else:
                for day in days_between(first, last):
                    self._say(str(day), day, day)
        except RollupBusy as error:
            raise CommandError(f"{error} It is still pending; run this again.") from error

    def _say(self, what: str, first: date | None, last: date | None) -> None:
        started = time.monotonic()
        rolled = roll(first, last)
        self.stdout.write(
            f"{what}: {rolled.hours} hours, {rolled.days} days, {rolled.rows} rows in {time.monotonic() - started:.1f} s"
            f" ({report_zone().key})"
        )
        self.stdout.flush()
