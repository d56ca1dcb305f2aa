"""`importconfig FILE`: makes providers, groups and callers what a file says, and publishes one Revision."""

import getpass
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from gateway import publish
from gateway.management.files import load_file, refuse
from routing.core.errors import ConfigurationError


class Command(BaseCommand):
    help = (
        "Makes providers, model groups and callers what FILE says and publishes one revision. What the file does not "
        "name is removed; callers that it does not name become inactive and keep their tokens."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", metavar="FILE", help="a YAML file, or - for standard input")
        parser.add_argument("--dry-run", action="store_true", help="show the difference and change nothing")
        parser.add_argument("--author", default=None, help="who is named in the revision; default: the system's user")

    def handle(self, *args: Any, file: str, dry_run: bool, author: str | None, **options: Any) -> None:
        configuration = load_file(file, self.stderr)
        note = "imported" if file == "-" else f"imported from {file}"
        try:
            done = publish.import_configuration(configuration, author=author or _user(), note=note, dry_run=dry_run)
        except ConfigurationError as error:
            refuse(error.problems, self.stderr)
        for line in done.changes:
            self.stdout.write(line)
        count = "1 change" if len(done.changes) == 1 else f"{len(done.changes)} changes"
        if dry_run:
            self.stdout.write(f"{count}; nothing was changed, this was a dry run.")
        elif done.published.new:
            self.stdout.write(f"{count}; published revision {done.published.number}.")
        else:
            self.stdout.write(f"{count}; revision {done.published.number} says the same and goes on serving.")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "importconfig"
