"""What may stand behind the `?`: declared once, read strictly, and described from the same declaration."""

import base64
import binascii
import contextlib
import difflib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any, ClassVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from django.conf import settings
from django.http import QueryDict
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from reports.api.access import Viewer
from reports.api.errors import ApiError, BadParameter

MOST_VALUES = 50
"""Of a parameter that may be given several times: each becomes a part of one statement."""
LONGEST_NAME = 255
"""As in the tables."""
LARGEST = 2**53 - 1
"""The largest number that every JSON reader keeps."""
EARLIEST, LATEST = date(1970, 1, 1), date(9998, 1, 1)
"""Days that every zone and both databases can count with."""


@extend_schema_field({"type": "string", "format": "date-time"})
class Moment(serializers.Field[datetime, Any, Any, Any]):
    """A point in time with its offset, as UTC."""

    expected = "a time with its offset, such as 2026-11-30T12:00:00Z, from 1970 to 9997"

    def to_internal_value(self, data: Any) -> datetime:
        # A `+` that was not written as %2B arrives as a space.
        text = re.sub(r" (?=\d\d:?\d\d$)", "+", data)
        with contextlib.suppress(ValueError, OverflowError):
            moment = datetime.fromisoformat(text)
            if moment.tzinfo is not None and "T" in text.upper():
                moment = moment.astimezone(UTC)
                if EARLIEST <= moment.date() < LATEST:
                    return moment
        raise serializers.ValidationError(f"{_shown(data)} is not a time with its offset.")


class Day(serializers.DateField):
    expected = "a day, such as 2026-11-30, from 1970 to 9997"

    def to_internal_value(self, value: Any) -> date:
        if re.fullmatch(r"\d{4}-\d\d-\d\d", value, re.ASCII):
            with contextlib.suppress(ValueError):
                day = date.fromisoformat(value)
                if EARLIEST <= day < LATEST:
                    return day
        raise serializers.ValidationError(f"{_shown(value)} is not a day.")


@extend_schema_field({"type": "string", "example": "Europe/Paris"})
class Zone(serializers.Field[ZoneInfo, Any, Any, Any]):
    expected = "a name of the time zone database, such as Europe/Paris"

    def to_internal_value(self, data: Any) -> ZoneInfo:
        with contextlib.suppress(ValueError, ZoneInfoNotFoundError, OSError):
            if re.fullmatch(r"[A-Za-z0-9_+/-]{1,64}", data, re.ASCII):
                return ZoneInfo(data)
        raise serializers.ValidationError(f"{_shown(data)} is not a time zone.")


@extend_schema_field({"type": "string"})
class Cursor(serializers.Field[tuple[Any, ...], Any, Any, Any]):
    """Where a page ended: what its last row is ordered by. It says where to go on and grants nothing."""

    expected = "what `next` of an earlier answer holds, with the same parameters beside it"

    def __init__(self, *kinds: Callable[[str], Any]) -> None:
        super().__init__(required=False, help_text="Where to go on: taken from `next` of the page before.")
        self.kinds = kinds

    def to_internal_value(self, data: Any) -> tuple[Any, ...]:
        with contextlib.suppress(ValueError, binascii.Error, OverflowError):
            parts = json.loads(base64.urlsafe_b64decode(data.encode("ascii")))
            if isinstance(parts, list) and all(isinstance(each, str) for each in parts) and "\0" not in "".join(parts):
                if len(self.kinds) == 1:  # any number of names behind it
                    return (self.kinds[0](parts[0]), *parts[1:]) if parts else self._refuse(data)
                if len(parts) == len(self.kinds):
                    return tuple(kind(part) for kind, part in zip(self.kinds, parts, strict=True))
        return self._refuse(data)

    def _refuse(self, data: str) -> tuple[Any, ...]:
        raise serializers.ValidationError(f"{_shown(data)} is not a cursor of this list.")


def cursor_text(parts: Sequence[Any]) -> str:
    texts = [each.isoformat() if isinstance(each, date) else str(each) for each in parts]
    return base64.urlsafe_b64encode(json.dumps(texts, separators=(",", ":")).encode()).decode()


def utc(text: str) -> datetime:
    """Of a cursor. Raises `ValueError`."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None or not EARLIEST <= moment.date() < LATEST:
        raise ValueError(text)
    return moment


def cursor_day(text: str) -> date:
    """Of a cursor. Raises `ValueError`."""
    day = date.fromisoformat(text)
    if not EARLIEST <= day < LATEST:
        raise ValueError(text)
    return day


def whole(text: str) -> int:
    """Of a cursor. Raises `ValueError`."""
    number = int(text)
    if not 0 <= number < 2**63:
        raise ValueError(text)
    return number


def names(help_text: str) -> serializers.ListField:
    """A parameter that may be given several times: any of the names counts, and nothing is a name too."""
    each = serializers.CharField(allow_blank=True, trim_whitespace=False, max_length=LONGEST_NAME)
    text = f"{help_text} May be given several times; empty: those that have none."
    return serializers.ListField(child=each, required=False, max_length=MOST_VALUES, help_text=text)


def one_of(words: Sequence[str], help_text: str) -> serializers.ListField:
    """The same for a closed set of words."""
    each = serializers.ChoiceField(choices=list(words))
    text = f"{help_text} May be given several times."
    return serializers.ListField(child=each, required=False, max_length=MOST_VALUES, help_text=text)


def number(help_text: str, *, low: int = 0, high: int = LARGEST) -> serializers.IntegerField:
    return serializers.IntegerField(required=False, min_value=low, max_value=high, help_text=help_text)


class Query(serializers.Serializer[Any]):
    """The parameters of one address. Raises for one that is unknown, given twice, empty or wrong; all at once."""

    routing: ClassVar[frozenset[str]] = frozenset()
    """Parameters that only those may use who see routing: their answers would tell of it."""

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        return {**self.first_fields(), **super().get_fields()}

    def first_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        """Those whose names Python keeps for itself, such as `from`."""
        return {}


class NoQuery(Query):
    """Of an address that takes none."""


class Paged(Query):
    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        most = settings.PILOTAGE.api_max_page_size
        size = number(f"Rows of a page; {page_size()} without it.", low=1, high=most)
        return {**super().get_fields(), "page_size": size, "cursor": self.cursor_field()}

    def cursor_field(self) -> Cursor:
        raise NotImplementedError


def page_size() -> int:
    return min(settings.PILOTAGE.api_page_size, settings.PILOTAGE.api_max_page_size)


def read_parameters(query: type[Query], given: QueryDict, viewer: Viewer) -> Mapping[str, Any]:
    """Values by name, of those that were given. Raises `ApiError`."""
    read = query(data={})
    known = read.fields
    problems = [_unknown(name, known) for name in given if name not in known]
    data: dict[str, Any] = {}
    for name, values in given.lists():
        if name not in known:
            continue
        if isinstance(known[name], serializers.ListField):
            data[name] = values
        elif len(values) == 1:
            data[name] = values[0]
        else:
            problems.append(BadParameter(name=name, message="It was given more than once.", expected="one value"))
    read.initial_data = data
    read.is_valid()
    for name, errors in read.errors.items():
        message = " ".join(dict.fromkeys(_messages(errors)))
        expected = expectation(known[name]) if name in known else "another value"
        problems.append(BadParameter(name=name, message=message, expected=expected))
    if problems:
        raise ApiError("invalid_parameters", problems)
    if not viewer.sees_routing and (hidden := sorted(query.routing & set(data))):
        raise ApiError(
            "routing_hidden",
            [BadParameter(name=name, message="It would tell how requests are routed.", expected="nothing") for name in hidden],
        )  # fmt: skip
    said: dict[str, Any] = read.validated_data
    return said


def next_page(path: str, given: QueryDict, last: Sequence[Any]) -> str:
    """The address of the page behind the row that is ordered by `last`: without a host, as the one that asks knows it."""
    parameters = given.copy()
    parameters["cursor"] = cursor_text(last)
    return f"{path}?{parameters.urlencode()}"


def expectation(field: serializers.Field[Any, Any, Any, Any]) -> str:
    match field:
        case serializers.ListField(child=child):
            return f"{expectation(child)}, at most {MOST_VALUES} times"
        case serializers.ChoiceField():
            return f"one of {', '.join(map(str, field.choices))}"
        case serializers.BooleanField():
            return "true or false"
        case serializers.IntegerField():
            return f"a whole number from {field.min_value} to {field.max_value}"
        case serializers.CharField():
            return f"a name of at most {field.max_length} characters"
    return str(getattr(field, "expected", field.help_text))


def _unknown(name: str, known: Mapping[str, Any]) -> BadParameter:
    near = difflib.get_close_matches(name[:64], known, 1)
    hint = f" Did you mean {near[0]}?" if near else ""
    expected = f"one of {', '.join(known)}" if known else "no parameters"
    return BadParameter(name=name[:64], message=f"There is no such parameter.{hint}", expected=expected)


def _messages(errors: Any) -> list[str]:
    if isinstance(errors, Mapping):
        return [text for each in errors.values() for text in _messages(each)]
    if isinstance(errors, list):
        return [text for each in errors for text in _messages(each)]
    return [str(errors)]


def _shown(value: Any) -> str:
    text = str(value)
    return repr(text if len(text) <= 64 else text[:61] + "...")
