"""`checkconfig FILE`: everything that is wrong with a file, without a database. `--schema`: the file's form, for editors."""

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from gateway.json_schema import configuration_schema
from gateway.management.files import load_file


class Command(BaseCommand):
    help = "Reads and compiles FILE and lists every problem. Changes nothing and needs no database."
    requires_system_checks: list[str] = []  # noqa: RUF012 - Django's attribute

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", metavar="FILE", nargs="?", help="a YAML file, or - for standard input")
        parser.add_argument("--schema", action="store_true", help="print a JSON Schema of the file and read none")

    def handle(self, *args: Any, file: str | None, schema: bool, **options: Any) -> None:
        if schema == (file is not None):
            raise CommandError("Give either a FILE or --schema.")
        if file is None:
            self.stdout.write(json.dumps(configuration_schema(), indent=2, ensure_ascii=False))
            return
        configuration = load_file(file, self.stderr)
        document = configuration.document
        self.stdout.write(
            f"Good: {_count(len(document.providers), 'provider')}, {_count(len(document.models), 'model group')}, "
            f"{_count(len(configuration.callers), 'caller')}."
        )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
