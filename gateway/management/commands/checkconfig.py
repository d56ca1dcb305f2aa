"""`checkconfig FILE`: everything that is wrong with a file, without a database."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from gateway.management.files import load_file


class Command(BaseCommand):
    help = "Reads and compiles FILE and lists every problem. Changes nothing and needs no database."
    requires_system_checks: list[str] = []  # noqa: RUF012 - Django's attribute

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", metavar="FILE", help="a YAML file, or - for standard input")

    def handle(self, *args: Any, file: str, **options: Any) -> None:
        configuration = load_file(file, self.stderr)
        document = configuration.document
        self.stdout.write(
            f"Good: {_count(len(document.providers), 'provider')}, {_count(len(document.models), 'model group')}, "
            f"{_count(len(configuration.callers), 'caller')}."
        )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
