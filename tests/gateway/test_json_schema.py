"""The schema that editors check by says yes and no where the reader does."""

import copy
import datetime
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from jsonschema import Draft202012Validator

from gateway import strict_yaml
from gateway.config import File
from gateway.json_schema import configuration_schema
from routing.core.reading import read

HERE = Path(__file__).parent / "configuration"
SCHEMA = configuration_schema()
FORM = Draft202012Validator(SCHEMA, format_checker=Draft202012Validator.FORMAT_CHECKER)


def said(text: bytes) -> Any:
    """A file's data with dates as an editor sees them: as text."""
    return _plain(strict_yaml.parse(text).data)


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {key: _plain(item) for key, item in value.items()}
        case list():
            return [_plain(item) for item in value]
        case datetime.date():
            return value.isoformat()
        case _:
            return value


def wrong_places(data: Any) -> set[str]:
    return {".".join(map(str, error.absolute_path)) for error in FORM.iter_errors(data)}


def is_read(data: Any) -> bool:
    return not read(File, data)[1]


EXAMPLE = said(Path("config.example.yaml").read_bytes())


def test_it_is_a_schema_of_the_draft_that_it_names() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == Draft202012Validator.META_SCHEMA["$id"]


@pytest.mark.parametrize("file", ["config.example.yaml", "tests/gateway/configuration/group.yaml", "gateway/demo.yaml"])
def test_good_files_are_good(file: str) -> None:
    assert wrong_places(said(Path(file).read_bytes())) == set()


def test_unknown_keys_wrong_types_and_what_is_missing_are_found_where_they_stand() -> None:
    data = copy.deepcopy(EXAMPLE)
    provider = data["providers"]["hosted"]
    provider["max_in_flight"] = "many"
    provider["timeouts"]["conect_ms"] = 1
    provider["dialect"] = "openai-chats"
    del provider["base_url"]
    group = next(iter(data["models"]))
    data["models"][group]["targets"][0]["weight"] = -1
    assert wrong_places(data) == {
        "providers.hosted",
        "providers.hosted.max_in_flight",
        "providers.hosted.timeouts",
        "providers.hosted.dialect",
        f"models.{group}.targets.0.weight",
    }


def _places(data: Any) -> Iterator[tuple[Any, Any]]:
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield data, key
        yield from _places(value)


VALUES: list[Any] = [None, True, -1, 0.5, 2**60, "no such word", "", "2026-02-30", [], ["x"], {}, {"no such key": 1}]


def _changed() -> Iterator[tuple[str, Any]]:
    """The example with one value replaced, taken out, or joined by another key; and the file of mistakes in parts."""
    for section in EXAMPLE:
        yield from _changed_part({section: copy.deepcopy(EXAMPLE[section])})
    for name in ("providers", "models", "callers"):
        for entry, value in said((HERE / "wrong.yaml").read_bytes()).get(name, {}).items():
            yield f"{name}.{entry} of wrong.yaml", {name: {entry: value}}


def _changed_part(data: Any) -> Iterator[tuple[str, Any]]:
    for container, key in list(_places(data)):
        kept = container[key]
        for value in VALUES:
            container[key] = value
            yield f"{key} = {value!r}", data
        container[key] = kept
        if isinstance(container, dict):
            order = list(container.items())
            del container[key]
            yield f"no {key}", data
            container.clear()
            container.update(order)


def test_it_agrees_with_the_reader_on_every_change_of_the_example() -> None:
    """But for what JSON cannot tell apart or only an editor would write: `{}` for a single word that may be left out."""
    differences, refused, total = [], 0, 0
    for what, data in _changed():
        total += 1
        taken = is_read(data)
        refused += not taken
        if taken != FORM.is_valid(data) and not (taken and what.endswith(" = {}")):
            differences.append(f"{what}: the reader says {'yes' if taken else 'no'}")
    assert differences == []
    assert total > 2000
    assert refused > 1500


def test_keys_say_what_they_mean_and_their_defaults() -> None:
    weight = SCHEMA["$defs"]["Target"]["properties"]["weight"]
    assert weight == {
        "type": "number",
        "minimum": 0,
        "maximum": 2**53,
        "default": 1.0,
        "description": "At least 0; fractions are kept. 0: only when nothing else is left.",
    }
    told = {
        kind: [key for key, value in SCHEMA["$defs"][kind]["properties"].items() if "description" not in value]
        for kind in ("Provider", "Model", "Group", "Target", "DynamicScore", "Caller")
    }
    assert told == {kind: [] for kind in told}


def test_the_command_prints_it_and_takes_either_a_file_or_the_word() -> None:
    out = io.StringIO()
    call_command("checkconfig", "--schema", stdout=out)
    assert json.loads(out.getvalue()) == SCHEMA
    for words in ([], ["config.example.yaml", "--schema"]):
        with pytest.raises(CommandError, match=r"^Give either a FILE or --schema\.$"):
            call_command("checkconfig", *words)
