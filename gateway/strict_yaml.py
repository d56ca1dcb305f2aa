"""YAML as this project takes it: plain data only, every key once, and words that mean what YAML 1.2 says.

`on`, `yes` and `no` are text, `010` is text, dates stay text; there are no anchors, aliases, merge keys, tags, second
documents or keys that are not text. `parse` reports everything at once and never raises on data; it takes time and
memory in proportion to the text, which is bounded, as is the depth.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import yaml

from routing.core.errors import Problem
from routing.core.reading import below

MAX_BYTES = 4 * 1024 * 1024
MAX_DEPTH = 32

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_TRUES = frozenset({"true", "True", "TRUE"})
_FALSES = frozenset({"false", "False", "FALSE"})
_WHOLE = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_FRACTION = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]{1,3})?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_ODD_BREAKS = re.compile("[\r\x85\u2028\u2029\ufeff]")
_MAX_DIGITS = 64
"""Beyond this a number is taken for text, which no number's place accepts."""

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(slots=True)
class Parsed:
    data: object = None
    lines: dict[str, int] = field(default_factory=dict)
    """Line of each key, from 1, by its path."""
    unread: set[str] = field(default_factory=set)
    """Where an alias stood; the data has `None` there."""
    problems: list[Problem] = field(default_factory=list)
    """What is refused here, before anybody asks what the data means."""


def parse(text: bytes) -> Parsed:
    """The one document of `text`: dict, list, str, int, Decimal, float (only infinite or not a number), bool, None."""
    if len(text) > MAX_BYTES:
        return Parsed(problems=[Problem("", f"the file is larger than {MAX_BYTES:,} bytes")])
    try:
        characters = text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        return Parsed(problems=[Problem("", f"line {line}: the file is not UTF-8")])
    builder = _Builder(characters)
    try:
        builder.document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = ", ".join(part for part in (error.context, error.problem) if part)
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        builder.parsed.problems.append(Problem("", f"{where}{what}"))
    except yaml.YAMLError as error:
        builder.parsed.problems.append(Problem("", " ".join(str(error).split())))
    except _Stop as stop:
        builder.parsed.problems.append(stop.problem)
    return builder.parsed


def dump(data: Mapping[str, object]) -> str:
    """Block style with lists of plain words on one line; what `parse` reads back as equal data."""
    return yaml.dump(
        data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=float("inf")
    )


class _Stop(Exception):
    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


class _Builder:
    """Builds data straight from the parser's events, so that nothing is ever expanded."""

    def __init__(self, characters: str) -> None:
        self.parsed = Parsed()
        self._events: Iterator[Any] = yaml.parse(characters, Loader=_LOADER)
        self._refused_reference = False

    def document(self) -> None:
        next(self._events)  # the stream's start
        event = next(self._events)
        if isinstance(event, yaml.StreamEndEvent):
            return
        self.parsed.data = self._value(next(self._events), "", 1)
        next(self._events)  # the document's end
        event = next(self._events)
        if not isinstance(event, yaml.StreamEndEvent):
            self._problem("", event, "a second document begins here; the file holds one")

    def _value(self, event: Any, path: str, depth: int) -> object:
        if depth > MAX_DEPTH:
            raise _Stop(Problem("", f"line {_line(event)}: nested deeper than {MAX_DEPTH}"))
        if isinstance(event, yaml.AliasEvent):
            self._reference(path, event)
            self.parsed.unread.add(path)
            return None
        if event.anchor is not None:
            self._reference(path, event)
        if event.tag is not None:
            self._problem(path, event, "tags (words that begin with '!') are not taken")
        if isinstance(event, yaml.ScalarEvent):
            return plain_value(event.value) if event.implicit[0] else event.value
        if isinstance(event, yaml.SequenceStartEvent):
            return self._list(path, depth)
        return self._mapping(path, depth)

    def _list(self, path: str, depth: int) -> list[object]:
        items: list[object] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            place = f"{path}[{len(items)}]"
            self.parsed.lines[place] = _line(event)
            items.append(self._value(event, place, depth + 1))
        return items

    def _mapping(self, path: str, depth: int) -> dict[str, object]:
        items: dict[str, object] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._key(event, path, depth)
            if key is None:
                self._value(next(self._events), path, depth + 1)
                continue
            place = below(path, key)
            twice = key in items
            if twice:
                self._problem(place, event, f"given again in line {_line(event)}")
            else:
                self.parsed.lines[place] = _line(event)
            value = self._value(next(self._events), place, depth + 1)
            if not twice:
                items[key] = value
        return items

    def _key(self, event: Any, path: str, depth: int) -> str | None:
        """`None` after reporting a key that is none."""
        value = self._value(event, path, depth + 1)
        if not isinstance(event, yaml.ScalarEvent):
            if not isinstance(event, yaml.AliasEvent):
                self._problem(path, event, "a key must be text")
        elif not isinstance(value, str):
            self._problem(below(path, event.value), event, "a key must be text; put it in quotes")
        elif value == "<<" and event.implicit[0]:
            self._problem(below(path, value), event, "merge keys are not taken; write the keys out")
        else:
            return value
        return None

    def _reference(self, path: str, event: Any) -> None:
        """Once: a file that is full of them need not be told of each."""
        if not self._refused_reference:
            self._refused_reference = True
            self._problem(
                path, event, f"anchors and aliases ({event.anchor[:64]!a}) are not taken; write the value out"
            )

    def _problem(self, path: str, event: Any, message: str) -> None:
        where = "" if path else f"line {_line(event)}: "
        self.parsed.problems.append(Problem(path, f"{where}{message}"))
        self.parsed.lines.setdefault(path, _line(event))


def plain_value(text: str) -> object:
    """What an unquoted scalar means."""
    if text in _NULLS:
        return None
    if text in _TRUES or text in _FALSES:
        return text in _TRUES
    if len(text) <= _MAX_DIGITS:
        if _WHOLE.fullmatch(text):
            return int(text)
        if _FRACTION.fullmatch(text):
            return Decimal(text)
        if _NOT_FINITE.fullmatch(text):
            return float(text.replace(".", "", 1))
    return text


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


class _Dumper(yaml.SafeDumper):
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: object) -> bool:
        return True

    def _text(self, data: str) -> yaml.ScalarNode:
        style = "'" if not isinstance(plain_value(data), str) else None
        if _ODD_BREAKS.search(data):
            style = '"'  # elsewhere they are folded into line breaks or spaces
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)

    def _fraction(self, data: float) -> yaml.ScalarNode:
        exact = Decimal(repr(data))
        if data == int(data) and abs(data) <= 2**53:
            return self.represent_scalar("tag:yaml.org,2002:int", str(int(data)))
        shown = format(exact, "f")
        if len(shown) > 24 or "." not in shown:
            digits = format(exact.normalize(), "e")
            shown = digits if "." in digits else digits.replace("e", ".0e")
        return self.represent_scalar("tag:yaml.org,2002:float", shown)

    def _list(self, data: list[object]) -> yaml.SequenceNode:
        words = not any(isinstance(item, dict | list) for item in data)
        return self.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=words)


_Dumper.add_representer(str, _Dumper._text)
_Dumper.add_representer(float, _Dumper._fraction)
_Dumper.add_representer(list, _Dumper._list)
