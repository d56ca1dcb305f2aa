"""Lengths of time as people write them: `30d`, `12h`, `90m`, `2w`."""

import re
from datetime import timedelta

from accounts.core.errors import BadDuration

MEANING = "a whole number and m, h, d or w, from 1m to 5200w: 30d"

_WRITTEN = re.compile(r"([0-9]{1,8})([mhdw])", re.ASCII)
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_LONGEST = timedelta(weeks=5200)


def parse_duration(text: str) -> timedelta:
    """Raises `BadDuration`."""
    written = _WRITTEN.fullmatch(text.strip().lower())
    length = timedelta(**{_UNITS[written[2]]: int(written[1])}) if written else timedelta()
    if not timedelta() < length <= _LONGEST:
        raise BadDuration(f"{text!r} is not a length of time; expected {MEANING}")
    return length
