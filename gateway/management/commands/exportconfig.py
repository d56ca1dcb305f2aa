"""`exportconfig [FILE]`: the stored configuration as a file, without secrets."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from accounts.store import callers_from_rows
from gateway import config
from gateway.management.files import refuse
from routing.core.errors import ConfigurationError
from routing.store import document_from_rows


class Command(BaseCommand):
    help = "Writes the stored configuration as YAML. Literal keys and tokens are never in it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", metavar="FILE", nargs="?", default="-", help="default: standard output")

    def handle(self, *args: Any, file: str, **options: Any) -> None:
        try:
            text = config.dump(document_from_rows(), callers_from_rows())
        except ConfigurationError as error:
            refuse(error.problems, self.stderr)
        if file == "-":
            self.stdout.write(text, ending="")
            return
        try:
            Path(file).write_text(text, encoding="utf-8")
        except OSError as error:
            raise CommandError(f"{file}: {error.strerror}") from None
