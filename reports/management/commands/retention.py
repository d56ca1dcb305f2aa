"""Says what has been kept long enough; with --apply, deletes it."""

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from reports.retention import KINDS, Plan, plan, run


class Command(BaseCommand):
    help = "Show what has been kept long enough and why other rows stay. Nothing is deleted without --apply."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--apply", action="store_true", help="delete it, in small batches")

    def handle(self, *, apply: bool, **_: Any) -> None:
        for each in plan():
            for line in _lines(each):
                self.stdout.write(line)
        if not apply:
            self.stdout.write("Nothing was deleted. With --apply it is.")
            return
        deleted = run()
        for kind in KINDS:
            self.stdout.write(f"deleted {kind}: {_amount(kind, deleted.rows.get(kind, 0))}")
        for kind, why in deleted.waiting.items():
            self.stdout.write(f"waiting {kind}: {why}")


def _lines(of: Plan) -> list[str]:
    if not of.keep_days:
        return [f"{of.kind}: kept for ever"]
    if of.oldest is None:
        lines = [f"{of.kind}: kept {of.keep_days} days, none is older"]
    else:
        lines = [f"{of.kind}: {_amount(of.kind, of.rows)} from {of.oldest} to {of.newest}, kept {of.keep_days} days"]
    lines += [f"  stays: {exchanges} exchanges, {name}" for name, exchanges in of.held]
    if of.waiting:
        lines.append(f"  waits: {of.waiting}")
    return lines


def _amount(kind: str, rows: int) -> str:
    return f"{rows} bytes" if kind == "damaged" else f"{rows} rows"
