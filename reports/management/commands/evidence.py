"""Everything that is known of one exchange."""

from argparse import ArgumentParser
from typing import Any

import msgspec
from django.core.management.base import BaseCommand, CommandError

from reports.evidence import as_document, evidence
from reports.evidence_text import as_text


class Command(BaseCommand):
    help = "Tells everything that is known of one exchange. Exit code 1: nothing is."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("id", help="what the client saw as x-request-id")
        parser.add_argument("--format", choices=["text", "json"], default="text", help="default text")

    def handle(self, *args: Any, **options: Any) -> None:
        found = evidence(options["id"])
        if options["format"] == "json":
            self.stdout.write(msgspec.json.format(msgspec.json.encode(as_document(found))).decode())
        else:
            self.stdout.write(as_text(found), ending="")
        if found.completeness == "unknown":
            raise CommandError("no exchange is known by this id, or it was deleted for its age")
