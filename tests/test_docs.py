"""What is registered is documented: settings, configuration keys, scores, exclusion reasons, refusal codes."""

import dataclasses
import re
import typing
from pathlib import Path

import pytest

from gateway import env
from gateway.relay.refusals import KINDS
from routing.core import document, stats
from routing.core.decision import AffinityOutcome, Mode
from routing.core.expressions import NAMES

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def page(name: str) -> str:
    return (DOCS / name).read_text()


def keys(schema: type, seen: set[str] | None = None) -> set[str]:
    """Every key below a dataclass of the configuration document."""
    found: set[str] = set() if seen is None else seen
    for field in dataclasses.fields(schema):
        if field.name == "overrides":
            continue
        found.add(field.name)
        for inner in _dataclasses_in(typing.get_type_hints(schema)[field.name]):
            keys(inner, found)
    return found


def _dataclasses_in(hint: object) -> list[type]:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return [hint]
    return [inner for argument in typing.get_args(hint) for inner in _dataclasses_in(argument)]


@pytest.mark.parametrize("setting", env.SETTINGS, ids=lambda setting: setting.name)
def test_every_setting_is_documented(setting: env.Setting) -> None:
    assert f"`{setting.name}`" in page("settings.md")


@pytest.mark.parametrize("key", sorted(keys(document.Document)))
def test_every_key_of_the_file_is_documented(key: str) -> None:
    assert re.search(rf"\b{key}\b", page("configuration.md"))


@pytest.mark.parametrize("key", sorted(keys(document.DynamicScore) | keys(document.HealthThresholds)))
def test_every_policy_key_is_documented_where_routing_is_explained(key: str) -> None:
    assert re.search(rf"\b{key}\b", page("routing.md") + page("health.md"))


@pytest.mark.parametrize("name", NAMES)
def test_every_score_is_documented(name: str) -> None:
    assert f"`{name}`" in page("routing.md")


@pytest.mark.parametrize("word", [*typing.get_args(Mode), *typing.get_args(AffinityOutcome)])
def test_every_mode_and_affinity_outcome_is_documented(word: str) -> None:
    assert f"`{word}`" in page("routing.md")


@pytest.mark.parametrize("reason", typing.get_args(stats.ExclusionReason))
def test_every_exclusion_by_health_is_documented(reason: str) -> None:
    assert f"`{reason}`" in page("routing.md")


@pytest.mark.parametrize("code", KINDS)
def test_every_refusal_code_is_documented_with_its_status_and_type(code: str) -> None:
    kind = KINDS[code]
    assert f"| `{code}` | {kind.status} | `{kind.type}` |" in page("errors.md")


def test_every_relative_link_in_the_documentation_leads_somewhere() -> None:
    broken = [
        f"{path.name}: {target}"
        for path in [ROOT / "README.md", *DOCS.glob("*.md")]
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text())
        if not (path.parent / target).exists()
    ]
    assert broken == []


def test_every_dependency_is_documented() -> None:
    lines = (ROOT / "requirements.in").read_text().splitlines() + (
        ROOT / "requirements-test.in"
    ).read_text().splitlines()
    names = {re.split(r"[~=<>\[]", line)[0] for line in lines if line and not line.startswith(("-", "#"))}
    text = page("dependencies.md").lower()
    assert {name for name in names if name.lower() not in text} == set()


def test_the_lock_names_no_index_and_pins_everything_by_hash() -> None:
    for lock in ROOT.glob("requirements*.lock"):
        text = lock.read_text()
        assert "://" not in text, lock.name
        assert "--hash=sha256:" in text
