"""What differs between two configurations, one readable line a change.

`+ path: value`, `- path: value`, `~ path: old -> new`. Targets, score terms and evaluations are told apart by what they
name and not by their place, so that one inserted at the top is one line and not a change of all that follow.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from routing.core.reading import below

_SHOWN = 160
"""Characters of a value."""


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Both as plain data of the file, without credentials."""
    return list(_between(old, new, ""))


def _between(old: Any, new: Any, path: str) -> Iterator[str]:
    if old == new:
        return
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted({*old, *new}, key=str):
            place = below(path, key)
            if key not in new:
                yield from _leaves("-", old[key], place)
            elif key not in old:
                yield from _leaves("+", new[key], place)
            else:
                yield from _between(old[key], new[key], place)
        return
    if _holds_mappings(old) and _holds_mappings(new):
        yield from _between_named(_named(old), _named(new), path)
        return
    yield f"~ {path}: {_shown(old)} -> {_shown(new)}"


def _between_named(old: Mapping[str, Any], new: Mapping[str, Any], path: str) -> Iterator[str]:
    for key in [*old, *(key for key in new if key not in old)]:
        place = f"{path}[{key}]"
        if key not in new:
            yield from _leaves("-", old[key], place)
        elif key not in old:
            yield from _leaves("+", new[key], place)
        else:
            yield from _between(old[key], new[key], place)
    stayed_old = [key for key in old if key in new]
    stayed_new = [key for key in new if key in old]
    if stayed_old != stayed_new:
        yield f"~ {path}: order {', '.join(old)} -> {', '.join(new)}"


def _leaves(sign: str, value: Any, path: str) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _leaves(sign, item, below(path, key))
    elif _holds_mappings(value) and value:
        for key, item in _named(value).items():
            yield from _leaves(sign, item, f"{path}[{key}]")
    else:
        yield f"{sign} {path}: {_shown(value)}"


def _holds_mappings(value: Any) -> bool:
    return (
        isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(item, Mapping) for item in value)
    )


def _named(items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """By what each item names; a name that comes again gets `#2`."""
    named: dict[str, Any] = {}
    for item in items:
        what = item.get("model_ref") or item.get("model")
        name = f"{item.get('provider')}/{what}" if what else str(item.get("name", ""))
        number = 1
        while (key := name if number == 1 else f"{name}#{number}") in named:
            number += 1
        named[key] = item
    return named


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False) if not isinstance(value, str) or not value.isprintable() else value
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
