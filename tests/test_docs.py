"""What holds for the documentation as a whole. Settings, keys, scores and reasons are held to theirs beside their own tests."""

import re
from pathlib import Path

import pytest

from gateway.relay.refusals import KINDS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


@pytest.mark.parametrize("code", KINDS)
def test_every_refusal_code_is_documented_with_its_status_and_type(code: str) -> None:
    kind = KINDS[code]
    assert f"| `{code}` | {kind.status} | `{kind.type}` |" in (DOCS / "errors.md").read_text()


def test_every_relative_link_in_the_documentation_leads_somewhere() -> None:
    broken = [
        f"{path.name}: {target}"
        for path in [ROOT / "README.md", *DOCS.glob("*.md")]
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text())
        if not (path.parent / target).exists()
    ]
    assert broken == []


def test_every_dependency_is_documented() -> None:
    lines = [
        line for name in ("requirements.in", "requirements-test.in") for line in (ROOT / name).read_text().splitlines()
    ]
    names = {re.split(r"[~=<>\[]", line)[0] for line in lines if line and not line.startswith(("-", "#"))}
    text = (DOCS / "dependencies.md").read_text().lower()
    assert {name for name in names if name.lower() not in text} == set()


def test_the_locks_name_no_index_and_pin_everything_by_hash() -> None:
    for lock in ROOT.glob("requirements*.lock"):
        text = lock.read_text()
        pinned = re.findall(r"^[a-z0-9][\w.-]*==", text, re.MULTILINE)
        assert "://" not in text, lock.name
        assert len(pinned) == len(re.findall(r"^[a-z0-9][^\n]*\\\n    --hash=sha256:", text, re.MULTILINE)), lock.name
