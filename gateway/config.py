"""The configuration file: YAML to a Document and callers and back, strictly, with every problem reported at once."""

import copy
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any

from accounts.core.document import CallerEntry
from gateway import strict_yaml
from routing import key_files
from routing.core.compile import compile_document, warnings
from routing.core.document import NAME, Document, Group, NotYet, Provider, Within
from routing.core.errors import ConfigurationError, Problem
from routing.core.reading import below, read, suggestion, write


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What one file says. It has been compiled once, so it can be published."""

    document: Document
    callers: Mapping[str, CallerEntry]
    warnings: tuple[Problem, ...] = ()
    """What is allowed and yet looks wrong."""


def load(text: bytes) -> Configuration:
    """Raises ConfigurationError with everything that is wrong, in the order of the file, each with its line."""
    parsed = strict_yaml.parse(text)
    problems = list(parsed.problems)
    if parsed.data is None and not problems:
        problems = [Problem("", "the file is empty; `providers: {}` says that nothing is configured")]
    if parsed.data is None:
        raise ConfigurationError(problems)
    file, found = read(File, parsed.data)
    problems += [problem for problem in found if problem.path not in parsed.unread]
    if file is None or problems:
        problems += _problems_despite(parsed.data, problems)
    else:
        try:
            compile_document(document_of(file), revision=0, created=0)
        except ConfigurationError as error:
            problems += error.problems
        problems += key_files.problems(document_of(file))
    problems += _unknown_groups(parsed.data)
    if file is None or problems:
        raise ConfigurationError(_in_order(problems, parsed.lines))
    return Configuration(
        document=document_of(file),
        callers={name: _entry(caller) for name, caller in file.callers.items()},
        warnings=tuple(_in_order(warnings(document_of(file)), parsed.lines)),
    )


def dump(document: Document, callers: Mapping[str, CallerEntry]) -> str:
    """The whole file: what has its default is left out, names are sorted, keys stand in the documented order."""
    return strict_yaml.dump({"version": 1, **plain(document), "callers": plain_callers(callers)})


def plain(document: Document) -> dict[str, Any]:
    """As the file says it, without literal keys."""
    return {
        "providers": {name: _plain_provider(provider) for name, provider in sorted(document.providers.items())},
        "models": {name: _plain_group(group) for name, group in sorted(document.models.items())},
    }


def plain_callers(callers: Mapping[str, CallerEntry]) -> dict[str, Any]:
    return {name: write(caller) for name, caller in sorted(callers.items())}


def _plain_provider(provider: Provider) -> dict[str, Any]:
    said = write(provider)
    if provider.models:
        said["models"] = {name: write(model) for name, model in sorted(provider.models.items())}
    if provider.headers:
        said["headers"] = dict(sorted(provider.headers.items()))
    return said


def _plain_group(group: Group) -> dict[str, Any]:
    said = write(group)
    return {key: said[key] for key in sorted(said, key=_GROUP_KEYS.index)}


_GROUP_KEYS = (
    *("description", "strategy", "model_identity", "attempts", "targets"),
    *("contract", "spend_ceiling", "thresholds", "routing_policy"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerInFile(CallerEntry):
    """The same with the reader's marks, which `accounts` does not know."""

    spend_ceiling: Annotated[Mapping[str, object], NotYet()] = field(default_factory=dict)
    limits: Annotated[Mapping[str, object], NotYet()] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """The top of the file."""

    version: Annotated[int, Within(1, 1)] = 1
    providers: Mapping[Annotated[str, NAME], Provider] = field(default_factory=dict)
    models: Mapping[Annotated[str, NAME], Group] = field(default_factory=dict)
    callers: Mapping[Annotated[str, NAME], CallerInFile] = field(default_factory=dict)


def document_of(file: File) -> Document:
    return Document(providers=file.providers, models=file.models)


def _entry(caller: CallerInFile) -> CallerEntry:
    return CallerEntry(**{each.name: getattr(caller, each.name) for each in fields(CallerEntry)})


def _unknown_groups(data: object) -> Iterator[Problem]:
    """Callers may name only groups of the file, or `*`. Looks at what is there, readable or not."""
    groups, callers = _names(data, "models"), _names(data, "callers")
    for name, caller in callers.items():
        allow = caller.get("allow") if isinstance(caller, dict) else None
        for position, group in enumerate(allow if isinstance(allow, list) else ()):
            if isinstance(group, str) and group != "*" and group not in groups:
                path = f"{below(below('callers', name), 'allow')}[{position}]"
                yield Problem(path, f"unknown group {group[:64]!a}{suggestion(group, tuple(groups))}")


def _names(data: object, key: str) -> dict[str, Any]:
    named = data.get(key) if isinstance(data, dict) else None
    return named if isinstance(named, dict) else {}


def _problems_despite(data: object, known: Collection[Problem]) -> list[Problem]:
    """What the compiler says of a file that has these problems already, less what they may have caused.

    The values at fault are taken out, stand-ins take the place of what must be given, and what can then be read is
    compiled. A group whose provider is at fault is judged by its score terms alone.
    """
    remaining = copy.deepcopy(data)
    places = {path: (container, key) for path, container, key in _places(remaining, "")}
    for problem in known:
        _take_out(problem.path, places)
    providers = {name: read(Provider, value)[0] for name, value in _names(remaining, "providers").items()}
    groups = {name: read(Group, value)[0] for name, value in _names(remaining, "models").items()}
    readable = Document(
        providers={name: provider for name, provider in providers.items() if provider is not None},
        models={name: group for name, group in groups.items() if group is not None},
    )
    try:
        compile_document(readable, revision=0, created=0)
    except ConfigurationError as error:
        found = error.problems
    else:
        return []
    at_fault = {
        name
        for name in _names(data, "providers")
        if any(_is_at_or_below(problem.path, below("providers", name)) for problem in known)
    }
    doubtful = [
        below("models", name)
        for name, group in readable.models.items()
        if any(target.provider in at_fault for target in group.targets)
    ]
    return [
        problem
        for problem in found
        if not any(_may_cause(each, problem) for each in known)
        and (".score_terms" in problem.path or not any(_is_at_or_below(problem.path, group) for group in doubtful))
    ]


def _may_cause(known: Problem, found: Problem) -> bool:
    """Above, at or below the value that was taken out; or beside it, and one of what is judged with it or was meant."""
    if _is_at_or_below(known.path, found.path) or _is_at_or_below(found.path, known.path):
        return True
    if _parent(known.path) != _parent(found.path):
        return False
    key = _last_key(found.path)
    return _last_key(known.path) in _JUDGED_WITH.get(key, ()) or f"'{key}'" in known.message


_JUDGED_WITH: Mapping[str, Collection[str]] = {
    "api_key": ("api_key_env", "api_key_file", "base_url"),
    "api_key_env": ("api_key", "api_key_file"),
    "api_key_file": ("api_key", "api_key_env"),
    "auth": ("api_key", "api_key_env", "api_key_file", "dialect"),
    "default_ms": ("max_ms",),
    "expression": ("weights", "require_tags", "prefer_tags"),
    "first_seconds": ("max_seconds",),
    "min_budget_tokens": ("max_budget_tokens",),
    "model_ref": ("model", "provider"),
    "output_token_field": ("dialect", "model"),
    "proxy_env": ("transport",),
    "supported": ("always_on", "control", "efforts", "min_budget_tokens", "max_budget_tokens", "signing_family"),
    "workload": ("quality_score", "pass_rate"),
}
"""What the compiler looks at besides a key when it finds fault with it there."""


_STAND_INS = {
    "base_url": "https://stand-in.invalid/v1",
    "dialect": "openai-chat",
    "model": "stand-in",
    "name": "stand-in",
    "provider": "stand-in",
    "strategy": "dynamic_score",
}


def _take_out(path: str, places: Mapping[str, tuple[Any, Any]]) -> None:
    """An item of a list takes the list with it, lest the others change their places."""
    container, key = places.get(path) or _missing(path, places)
    if isinstance(container, list):
        container, key = places.get(_parent(path), (None, None))
    if isinstance(container, dict):
        container.pop(key, None)
        if key in _STAND_INS:
            container[key] = _STAND_INS[key]


def _missing(path: str, places: Mapping[str, tuple[Any, Any]]) -> tuple[Any, Any]:
    """Where a key should stand that was not given."""
    above = _parent(path)
    if above not in places:
        return None, None
    container, key = places[above]
    return container[key] if isinstance(container, list) else container.get(key), path[len(above) + 1 :]


def _places(data: object, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Each path, what holds its value, and under which key."""
    items: Iterator[tuple[Any, object, str]]
    if isinstance(data, dict):
        items = ((key, value, below(path, key)) for key, value in data.items())
    elif isinstance(data, list):
        items = ((index, value, f"{path}[{index}]") for index, value in enumerate(data))
    else:
        return
    for key, value, place in items:
        yield place, data, key
        yield from _places(value, place)


_LAST_STEP = re.compile(r"(?:\.[^.\[\]]+|\['(?:[^'\\]|\\.)*'\]|\[[^\[\]]*\])\Z")


def _parent(path: str) -> str:
    return _LAST_STEP.sub("", path) if _LAST_STEP.search(path) else ""


def _last_key(path: str) -> str:
    return path[len(_parent(path)) :].lstrip(".")


def _is_at_or_below(path: str, above: str) -> bool:
    return path == above or not above or (path.startswith(above) and path[len(above)] in ".[")


def _in_order(problems: Collection[Problem], lines: Mapping[str, int]) -> list[Problem]:
    numbered = [(_line_of(problem.path, lines), problem) for problem in problems]
    return [
        Problem(problem.path, f"{problem.message} (line {line})") if problem.path and line else problem
        for line, problem in sorted(numbered, key=lambda each: each[0])
    ]


def _line_of(path: str, lines: Mapping[str, int]) -> int:
    """The line of the nearest key above that stands in the file; 0: none."""
    while path and path not in lines:
        path = _parent(path)
    return lines.get(path, 0) if path else 0
