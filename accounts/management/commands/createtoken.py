"""`createtoken CALLER [--groups a,b] [--expires 30d]`: a new token, alone on standard output."""

import difflib
import getpass
from argparse import ArgumentParser
from datetime import datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from accounts import groups, tokens
from accounts.core.duration import MEANING, parse_duration
from accounts.core.errors import BadDuration, NotIssuable
from accounts.models import Caller


class Command(BaseCommand):
    help = "Issues a token for a caller and prints it, this once: only a digest is kept."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("caller", metavar="CALLER", help="the caller's name")
        parser.add_argument("--groups", metavar="A,B", help="only these model groups, narrower than the caller's")
        parser.add_argument("--expires", metavar="30d", help=f"how long it is good ({MEANING}); default: for ever")

    def handle(self, *, caller: str, groups: str | None, expires: str | None, **options: Any) -> None:
        row = _caller(caller)
        names = None if groups is None else _groups(groups)
        try:
            _, secret = tokens.issue(row, groups=names, expires=_moment(expires), author=f"{_user()} (createtoken)")
        except NotIssuable as error:
            raise CommandError(f"--{error.field}: {error}") from error
        self.stdout.write(secret)
        if not row.active:
            self.stderr.write(f"Caller '{row.name}' is not active: the token is refused until it is.")


def _caller(name: str) -> Caller:
    try:
        return Caller.objects.get(name=name)
    except Caller.DoesNotExist:
        names = list(Caller.objects.values_list("name", flat=True))
        raise CommandError(f"there is no caller '{name}'{_nearest(name, names)}") from None


def _groups(text: str) -> list[str]:
    chosen = [name.strip() for name in text.split(",") if name.strip()]
    if not chosen:
        raise CommandError("--groups: name at least one group, or leave it out for all that the caller may use")
    known = groups.names()
    unknown = [] if known is None else [name for name in chosen if name not in known]
    if unknown:
        raise CommandError(
            "\n".join(f"--groups: there is no group '{name}'{_nearest(name, known or [])}" for name in unknown)
        )
    return chosen


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return timezone.now() + parse_duration(text)
    except BadDuration as error:
        raise CommandError(f"--expires: {error}") from error


def _nearest(name: str, names: list[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    if near:
        return f"; did you mean '{near[0]}'?"
    return "" if names else "; there are none yet"


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user without a name
        return "unknown"
