"""The configuration file as a JSON Schema (2020-12), so that an editor completes and checks it while it is written.

Made from the same dataclasses and marks that `routing.core.reading` reads by, and as strict. What only the compiler knows
(names that refer to something, keys that exclude each other, expressions) is left to `checkconfig FILE`.
"""

import ast
import datetime
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from accounts.core.document import CallerEntry
from gateway.config import CallerInFile, File
from routing.core import document
from routing.core.document import GivenFieldsOf, Matches, NotYet, Within
from routing.core.reading import MAX_NUMBER

Schema = dict[str, Any]

PAGE = Path(__file__).parent.parent / "docs" / "configuration.md"
"""Where the keys are described. Without it, only what the dataclasses say themselves is told."""

_SECTIONS: Mapping[str, type] = {
    "`providers.NAME`": document.Provider,
    "`providers.NAME.models.NAME`": document.ModelFields,
    "`models.NAME`": document.Group,
    "Targets": document.Target,
    "`routing_policy.dynamic_score`": document.DynamicScore,
    "`callers.NAME`": CallerEntry,
}
_DATE = "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"


def configuration_schema() -> Schema:
    """Plain data, ready for JSON."""
    definitions: dict[str, Schema] = {}
    root = _structure(File, definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Pilotage configuration",
        **root,
        "$defs": dict(sorted(definitions.items())),
    }


def _structure(kind: Any, definitions: dict[str, Schema]) -> Schema:
    hints = get_type_hints(kind, include_extras=True)
    properties: dict[str, Schema] = {}
    required: list[str] = []
    for field in fields(kind):
        hint = hints[field.name]
        if any(isinstance(mark, GivenFieldsOf) for mark in get_args(hint)):
            continue
        is_required = field.default is MISSING and field.default_factory is MISSING
        if is_required:
            required.append(field.name)
        properties[field.name] = _described(_of(hint, definitions, is_required=is_required), kind, field)
    # A section whose lines are all commented out arrives as null; it is an empty one.
    made: Schema = {"type": "object" if required else ["object", "null"], "properties": properties}
    if required:
        made["required"] = required
    return {**made, "additionalProperties": False}


def _of(hint: Any, definitions: dict[str, Schema], *, is_required: bool = False) -> Schema:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _marked(arguments[0], arguments[1:], definitions, is_required=is_required)
    if origin in (Union, UnionType):
        (inner,) = (each for each in arguments if each is not NoneType)
        return _or_null(_of(inner, definitions))
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is tuple:
        return {"type": ["array", "null"], "items": _of(arguments[0], definitions)}
    if origin is Mapping:
        made: Schema = {"type": ["object", "null"], "additionalProperties": _of(arguments[1], definitions)}
        names = _of(arguments[0], definitions)
        return made if names == {"type": "string"} else {**made, "propertyNames": names}
    if is_dataclass(hint):
        name = getattr(hint, "__name__", "")
        name = "Caller" if hint is CallerInFile else name
        if name not in definitions:
            definitions[name] = {}
            definitions[name] = _structure(hint, definitions)
        return {"$ref": f"#/$defs/{name}"}
    return dict(_SCALARS[hint])


_SCALARS: Mapping[object, Schema] = {
    bool: {"type": "boolean"},
    int: {"type": "integer", "minimum": -MAX_NUMBER, "maximum": MAX_NUMBER},
    float: {"type": "number", "minimum": -MAX_NUMBER, "maximum": MAX_NUMBER},
    Decimal: {"type": "number", "minimum": -MAX_NUMBER, "maximum": MAX_NUMBER},
    str: {"type": "string"},
    datetime.date: {"type": "string", "format": "date", "pattern": f"^{_DATE}$"},
    object: {},
}


def _marked(hint: Any, marks: tuple[object, ...], definitions: dict[str, Schema], *, is_required: bool) -> Schema:
    made = _of(hint, definitions)
    for mark in marks:
        match mark:
            case Within(low, high):
                made |= {"minimum": low, "maximum": MAX_NUMBER if high is None else high}
            case Matches(pattern, meaning):
                made |= {"pattern": f"^(?:{pattern})$", "description": f"{meaning[0].upper()}{meaning[1:]}."}
            case NotYet(unless):
                made = _served(unless, is_required=is_required)
    return made


def _served(unless: object, *, is_required: bool) -> Schema:
    """What this release takes of a key that it does not serve."""
    words: list[object] = list(unless) if isinstance(unless, tuple) else [] if unless is None else [unless]
    empty: list[object] = [] if is_required else [None] if words else [None, {}]
    return {"enum": [*words, *empty]}


def _or_null(made: Schema) -> Schema:
    if isinstance(made.get("type"), str):
        return {**made, "type": [made["type"], "null"]}
    if "enum" in made:
        return {**made, "enum": [*made["enum"], None]}
    return made if "null" in made.get("type", ()) else {"anyOf": [made, {"type": "null"}]}


# What the keys mean.


def _described(made: Schema, kind: Any, field: "Field[Any]") -> Schema:
    said = [_page().get((each, field.name)) or _docstrings(each).get(field.name) for each in kind.__mro__[:-1]]
    text = next((each for each in said if each), made.get("description"))
    described = {**made, "description": text} if text else made
    if isinstance(field.default, str | int | float | Decimal) and field.default != "":
        default = field.default
        described = {**described, "default": float(default) if isinstance(default, Decimal) else default}
    return described


@cache
def _docstrings(kind: type) -> Mapping[str, str]:
    """The texts below the fields of a class, on one line each."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for above, below in zip(definition.body, definition.body[1:], strict=False):
        match above, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = " ".join(text.split())
    return found


@cache
def _page() -> Mapping[tuple[type, str], str]:
    """What the tables of the page say of each key."""
    try:
        text = PAGE.read_text(encoding="utf-8")
    except OSError:
        return {}
    return dict(_rows(text))


def _rows(text: str) -> Iterator[tuple[tuple[type, str], str]]:
    kind: type | None = None
    for line in text.splitlines():
        if line.startswith("#"):
            kind = _SECTIONS.get(line.lstrip("# "))
        elif kind is not None and line.startswith("|"):
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            for name in re.findall(r"`(\w+)`", cells[0]):
                yield (kind, name), cells[-1]
