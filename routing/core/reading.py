"""Outside data (parsed YAML or JSON, form values) to the dataclasses of `document.py`, strictly, and back.

`read` goes by the field types and their Annotated marks alone, so it reads any part of a Document as well as the whole.
It never raises on data and reports every problem at once. Messages never repeat a value that could be a secret.
"""

import datetime
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from decimal import Decimal
from difflib import get_close_matches
from functools import lru_cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from routing.core.document import GivenFieldsOf, Matches, NotYet, Within
from routing.core.errors import Problem

__all__ = ["Problem", "read", "suggestion", "write"]

T = TypeVar("T")

MAX_NUMBER = 2**53
"""Every number of a configuration lies within +-this: whole numbers up to it survive JSON and floats unchanged."""

_Reader = Callable[[object, str, list[Problem]], object]
"""Takes a value, its path and the list that problems are added to. What it returns after adding one is of no use."""


def read(kind: type[T], data: object, path: str = "") -> tuple[T | None, list[Problem]]:
    """`data` as a `kind`, or `None` and everything that is wrong with it, each with its path below `path`."""
    problems: list[Problem] = []
    value = _structure(kind)(data, path, problems)
    if problems or not isinstance(value, kind):
        return None, problems
    return value, problems


def write(value: object) -> dict[str, object]:
    """A dataclass of `document.py` as plain data (dict, list, str, int, float, bool, None; dates as ISO text).

    What has its default value is left out, except what a target overrides. Credentials (fields without repr) are never
    written. Otherwise `read(type(value), write(value))` gives an equal value.
    """
    kind: Any = type(value)
    plan = _plan(kind)
    explicit: frozenset[str] = frozenset()
    if plan.given is not None:
        explicit = getattr(value, plan.given[0])
    written: dict[str, object] = {}
    for name in plan.written:
        item = getattr(value, name)
        field = plan.fields[name].field
        if name in explicit or not _is_default(field, item):
            written[name] = _plain(item)
    return written


@lru_cache(maxsize=1024)
def suggestion(word: str, words: tuple[str, ...]) -> str:
    """`; did you mean 'latency'?`, or nothing when no word is near. Remembered, as one renamed provider is asked for often."""
    word = word[:128]
    near = get_close_matches(word, words, n=1) or get_close_matches(word.lower().replace("-", "_"), words, n=1)
    return f"; did you mean '{near[0]}'?" if near else ""


def below(path: str, key: object) -> str:
    """The path of a key inside the mapping at `path`."""
    if isinstance(key, str) and _PLAIN_KEY.fullmatch(key):
        return f"{path}.{key}" if path else key
    if isinstance(key, str):
        return f"{path}[{key[:64]!a}]"
    short = key is None or isinstance(key, bool | float | datetime.date) or (isinstance(key, int) and abs(key) < 2**53)
    return f"{path}[{key if short else type(key).__name__}]"


_PLAIN_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/:-]{0,127}")


# Writing.


def _is_default(field: "Field[Any]", value: object) -> bool:
    if field.default is not MISSING:
        return bool(value == field.default)
    if field.default_factory is not MISSING:
        return bool(value == field.default_factory())
    return False


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return write(value)
    match value:
        case Mapping():
            return {key: _plain(item) for key, item in value.items()}
        case tuple() | list():
            return [_plain(item) for item in value]
        case bool():
            return value
        case float() | Decimal():
            return int(value) if value == int(value) else float(value)
        case datetime.date():
            return value.isoformat()
        case _:
            return value


# Reading, type by type.


@dataclass(frozen=True, slots=True)
class _PlannedField:
    field: "Field[Any]"
    read: _Reader
    required: bool


@dataclass(frozen=True, slots=True)
class _Plan:
    fields: Mapping[str, _PlannedField]
    required: tuple[str, ...]
    written: tuple[str, ...]
    """A class's own fields before the inherited ones."""
    given: tuple[str, frozenset[str]] | None
    """The field that takes the names of the given ones, and which names count."""


@lru_cache(maxsize=256)
def _plan(kind: Any) -> _Plan:
    hints = get_type_hints(kind, include_extras=True)
    planned: dict[str, _PlannedField] = {}
    given: tuple[str, frozenset[str]] | None = None
    for field in fields(kind):
        marks = get_args(hints[field.name])[1:] if get_origin(hints[field.name]) is Annotated else ()
        filled = next((mark for mark in marks if isinstance(mark, GivenFieldsOf)), None)
        if filled is not None:
            given = (field.name, frozenset(each.name for each in fields(filled.kind)))
            continue
        required = field.default is MISSING and field.default_factory is MISSING
        planned[field.name] = _PlannedField(field, _reader(hints[field.name]), required)
    own = [name for name in planned if name in kind.__annotations__]
    order = own + [name for name in planned if name not in own]
    return _Plan(
        fields=planned,
        required=tuple(name for name, each in planned.items() if each.required),
        written=tuple(name for name in order if planned[name].field.repr),
        given=given,
    )


@lru_cache(maxsize=1024)
def _reader(hint: Any) -> _Reader:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _marked(arguments[0], arguments[1:])
    if origin in (Union, UnionType):
        (inner,) = (each for each in arguments if each is not NoneType)
        return _optional(_reader(inner))
    if origin is Literal:
        return _choice(arguments, arguments)
    if origin is tuple:
        return _sequence(_reader(arguments[0]))
    if origin is Mapping:
        return _mapping(_reader(arguments[0]), _reader(arguments[1]))
    if is_dataclass(hint):
        return _structure(hint)
    return _SCALARS[hint]


def _structure(kind: Any) -> _Reader:
    def reads(value: object, path: str, problems: list[Problem]) -> object:
        data = _as_mapping(value, path, problems)
        if data is None:
            return None
        plan, before = _plan(kind), len(problems)
        values: dict[str, object] = {}
        for key, item in data.items():
            planned = plan.fields.get(key) if isinstance(key, str) else None
            if planned is None:
                hint = suggestion(key, tuple(plan.fields)) if isinstance(key, str) else ""
                problems.append(Problem(below(path, key), f"unknown key{hint}"))
            elif not (isinstance(planned.read, _NotServed) and _is_empty(item) and not planned.required):
                values[planned.field.name] = planned.read(item, below(path, key), problems)
        problems.extend(Problem(below(path, name), "must be given") for name in plan.required if name not in data)
        if plan.given is not None:
            name, counted = plan.given
            values[name] = counted.intersection(values)
        return kind(**values) if len(problems) == before else None

    return reads


def _as_mapping(value: object, path: str, problems: list[Problem]) -> Mapping[object, object] | None:
    """A section whose lines are all commented out arrives as null; it is an empty one."""
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return value
    problems.append(Problem(path, f"must be a mapping, not {_kind_of(value)}"))
    return None


def _mapping(read_key: _Reader, read_value: _Reader) -> _Reader:
    def reads(value: object, path: str, problems: list[Problem]) -> object:
        data = _as_mapping(value, path, problems)
        if data is None:
            return None
        read_items: dict[object, object] = {}
        for key, item in data.items():
            inner = below(path, key)
            before = len(problems)
            name = read_key(key, inner, problems)
            if len(problems) > before:
                problems[before] = Problem(inner, f"name {problems[before].message}")
            read_items[name] = read_value(item, inner, problems)
        return read_items

    return reads


def _sequence(read_item: _Reader) -> _Reader:
    def reads(value: object, path: str, problems: list[Problem]) -> object:
        if value is None:
            return ()
        if not isinstance(value, list | tuple):
            problems.append(Problem(path, f"must be a list, not {_kind_of(value)}"))
            return ()
        return tuple(read_item(item, f"{path}[{number}]", problems) for number, item in enumerate(value))

    return reads


def _optional(read_value: _Reader) -> _Reader:
    return lambda value, path, problems: None if value is None else read_value(value, path, problems)


def _choice(choices: tuple[str, ...], served: tuple[str, ...]) -> _Reader:
    """`served`: those of the choices to offer."""
    words = ", ".join(served)

    def reads(value: object, path: str, problems: list[Problem]) -> object:
        if not isinstance(value, str):
            problems.append(Problem(path, f"must be one of {words}, not {_kind_of(value)}"))
        elif value not in choices:
            hint = suggestion(value, served)
            problems.append(Problem(path, f"{value[:64]!a} is not one of {words}{hint}"))
        return value

    return reads


def _marked(hint: Any, marks: tuple[object, ...]) -> _Reader:
    not_yet = next((mark for mark in marks if isinstance(mark, NotYet)), None)
    reader = _reader(hint)
    if not_yet is not None and get_origin(hint) is Literal:
        unless = not_yet.unless if isinstance(not_yet.unless, tuple) else (not_yet.unless,)
        reader = _choice(get_args(hint), tuple(word for word in get_args(hint) if word in unless))
    for mark in marks:
        match mark:
            case Within():
                reader = _within(reader, mark)
            case Matches():
                reader = _matching(reader, mark)
            case NotYet():
                reader = _NotServed(reader, mark)
            case _:
                raise TypeError(f"unknown mark {mark!r}")
    return reader


def _within(read_value: _Reader, bounds: Within) -> _Reader:
    if bounds.high is None:
        rule = f"must be at least {_number(bounds.low)}"
    else:
        rule = f"must be from {_number(bounds.low)} to {_number(bounds.high)}"

    def reads(value: object, path: str, problems: list[Problem]) -> object:
        before = len(problems)
        number = read_value(value, path, problems)
        if (
            len(problems) == before
            and isinstance(number, int | float | Decimal)
            and not bounds.low <= number <= (MAX_NUMBER if bounds.high is None else bounds.high)
        ):
            problems.append(Problem(path, rule))
        return number

    return reads


def _matching(read_value: _Reader, rule: Matches) -> _Reader:
    pattern = re.compile(rule.pattern)

    def reads(value: object, path: str, problems: list[Problem]) -> object:
        before = len(problems)
        text = read_value(value, path, problems)
        if len(problems) == before and isinstance(text, str) and not pattern.fullmatch(text):
            problems.append(Problem(path, f"must be {rule.meaning}"))
        return text

    return reads


@dataclass(frozen=True, slots=True)
class _NotServed:
    read: _Reader
    mark: NotYet

    def __call__(self, value: object, path: str, problems: list[Problem]) -> object:
        before = len(problems)
        item = self.read(value, path, problems)
        if len(problems) == before and not self._served(item):
            word = f"{item[:64]!a} is " if isinstance(item, str) and self.mark.unless is not None else ""
            problems.append(Problem(path, f"{word}not available in this release"))
        return item

    def _served(self, item: object) -> bool:
        unless = self.mark.unless
        return item in unless if isinstance(unless, tuple) else type(item) in (type(unless), float) and item == unless


def _is_empty(value: object) -> bool:
    return value is None or (isinstance(value, Mapping) and not value)


def _read_bool(value: object, path: str, problems: list[Problem]) -> object:
    if not isinstance(value, bool):
        problems.append(Problem(path, f"must be true or false, not {_kind_of(value)}"))
    return value


def _read_int(value: object, path: str, problems: list[Problem]) -> object:
    if isinstance(value, bool) or not isinstance(value, int):
        fraction = " with a fraction" if isinstance(value, float | Decimal) else ""
        problems.append(Problem(path, f"must be a whole number, not {_kind_of(value)}{fraction}"))
    elif not -MAX_NUMBER <= value <= MAX_NUMBER:
        problems.append(Problem(path, _TOO_LARGE))
    return value


def _read_float(value: object, path: str, problems: list[Problem]) -> object:
    number = _finite(value, path, problems)
    return None if number is None else float(number)


def _read_decimal(value: object, path: str, problems: list[Problem]) -> object:
    """Exact: a float counts as the shortest decimal that means it, so 0.004 is 0.004."""
    number = _finite(value, path, problems)
    if number is None:
        return None
    exact = Decimal(repr(number)) if isinstance(number, float) else Decimal(number)
    if Decimal(repr(float(exact))) != exact:
        problems.append(Problem(path, "has more digits than can be kept; 15 always can"))
    return exact


def _finite(value: object, path: str, problems: list[Problem]) -> int | float | Decimal | None:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        problems.append(Problem(path, f"must be a number, not {_kind_of(value)}"))
    elif not (value.is_finite() if isinstance(value, Decimal) else isinstance(value, int) or math.isfinite(value)):
        problems.append(Problem(path, "must be a finite number"))
    elif not -MAX_NUMBER <= value <= MAX_NUMBER:
        problems.append(Problem(path, _TOO_LARGE))
    else:
        return value
    return None


def _read_text(value: object, path: str, problems: list[Problem]) -> object:
    if not isinstance(value, str):
        problems.append(Problem(path, f"must be text, not {_kind_of(value)}"))
    elif _UNSTORABLE.search(value):
        problems.append(Problem(path, "holds a character that cannot be stored"))
    return value


def _read_date(value: object, path: str, problems: list[Problem]) -> object:
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return value
    if isinstance(value, str) and _ISO_DATE.fullmatch(value):
        try:
            return datetime.date.fromisoformat(value)
        except ValueError:
            pass
    problems.append(Problem(path, "must be a date such as 2026-11-01"))
    return None


def _read_anything(value: object, path: str, problems: list[Problem]) -> object:
    return value


_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
"""No database text or UTF-8 file holds them."""

_ISO_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TOO_LARGE = f"must not be beyond {MAX_NUMBER:,}"

_SCALARS: Mapping[object, _Reader] = {
    bool: _read_bool,
    int: _read_int,
    float: _read_float,
    str: _read_text,
    Decimal: _read_decimal,
    datetime.date: _read_date,
    object: _read_anything,
}


def _kind_of(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float() | Decimal():
            return "a number"
        case str():
            return "text"
        case Mapping():
            return "a mapping"
        case list() | tuple():
            return "a list"
        case datetime.date():
            return "a date"
        case _:
            return f"a {type(value).__name__}"


def _number(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else repr(value)
