"""`checkconfig`, `importconfig` and `exportconfig` as a person at a shell meets them."""

import io
import sys
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from accounts.core.document import CallerEntry
from accounts.models import Caller
from accounts.store import callers_from_rows
from accounts.tokens import issue
from gateway import publish
from gateway.models import Revision
from routing.core.document import Document
from routing.store import document_from_rows

GOOD = """\
version: 1
providers:
  house:
    base_url: http://127.0.0.1:9001/v1
    dialect: openai-chat
    models:
      small:
        model: small-1
models:
  chat:
    strategy: weighted
    targets:
      - provider: house
        model_ref: small
        weight: 0.004
callers:
  team:
    allow: [chat]
"""
BAD = GOOD.replace("0.004", "heavy").replace("provider: house", "provider: hose")


def run(*words: str) -> tuple[str, str]:
    """What the command says on standard output and standard error."""
    out, err = io.StringIO(), io.StringIO()
    call_command(*words, stdout=out, stderr=err, no_color=True)
    return out.getvalue(), err.getvalue()


def refusal(*words: str) -> tuple[list[str], str]:
    """The problems, one a line, and the last word. A CommandError ends a process with 1."""
    err = io.StringIO()
    with pytest.raises(CommandError) as refused:
        call_command(*words, stdout=io.StringIO(), stderr=err, no_color=True)
    assert refused.value.returncode == 1
    return err.getvalue().splitlines(), str(refused.value)


def file_of(tmp_path: Path, text: str) -> str:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return str(path)


def test_checkconfig_needs_no_database(tmp_path: Path) -> None:
    assert run("checkconfig", file_of(tmp_path, GOOD)) == ("Good: 1 provider, 1 model group, 1 caller.\n", "")
    assert refusal("checkconfig", file_of(tmp_path, BAD)) == (
        [
            "models.chat.targets[0].provider: unknown provider 'hose'; did you mean 'house'? (line 13)",
            "models.chat.targets[0].weight: must be a number, not text (line 15)",
        ],
        "2 problems.",
    )


def test_checkconfig_says_what_looks_wrong_and_is_allowed(tmp_path: Path) -> None:
    plain_http = GOOD.replace("http://127.0.0.1:9001/v1", "http://inference.example/v1\n    api_key_env: KEY")
    assert run("checkconfig", file_of(tmp_path, plain_http)) == (
        "Good: 1 provider, 1 model group, 1 caller.\n",
        "warning: providers.house.base_url: the credential is sent unencrypted; use https (line 4)\n",
    )


@pytest.mark.parametrize("command", ["checkconfig", "importconfig"])
def test_a_file_that_cannot_be_read_is_named(command: str, tmp_path: Path) -> None:
    assert refusal(command, str(tmp_path / "none.yaml")) == ([], f"{tmp_path / 'none.yaml'}: No such file or directory")


@pytest.mark.django_db
def test_importconfig_shows_applies_and_publishes(tmp_path: Path) -> None:
    file = file_of(tmp_path, GOOD)
    changes = """\
+ callers.team.allow: ["chat"]
+ models.chat.strategy: weighted
+ models.chat.targets[house/small].provider: house
+ models.chat.targets[house/small].model_ref: small
+ models.chat.targets[house/small].weight: 0.004
+ providers.house.base_url: http://127.0.0.1:9001/v1
+ providers.house.dialect: openai-chat
+ providers.house.models.small.model: small-1
"""
    assert (
        run("importconfig", file, "--dry-run")[0] == f"{changes}8 changes; nothing was changed, this was a dry run.\n"
    )
    assert (document_from_rows(), callers_from_rows(), publish.latest()) == (Document(), {}, None)
    assert run("importconfig", file, "--author", "ada")[0] == f"{changes}8 changes; published revision 1.\n"
    assert (Revision.objects.get().author, Revision.objects.get().note) == ("ada", f"imported from {file}")
    again = "0 changes; revision 1 says the same and goes on serving.\n"
    assert run("importconfig", file)[0] == again


@pytest.mark.django_db
def test_importconfig_changes_nothing_on_any_problem(tmp_path: Path) -> None:
    run("importconfig", file_of(tmp_path, GOOD))
    before = (document_from_rows(), callers_from_rows())
    assert refusal("importconfig", file_of(tmp_path, BAD))[1] == "2 problems."
    assert (document_from_rows(), callers_from_rows(), publish.latest()) == (*before, 1)


@pytest.mark.django_db
def test_callers_that_a_file_does_not_name_become_inactive_and_keep_their_tokens(tmp_path: Path) -> None:
    run("importconfig", file_of(tmp_path, GOOD))
    issue(Caller.objects.get(name="team"))
    out, _ = run("importconfig", file_of(tmp_path, GOOD.replace("  team:", "  other:")))
    assert out == (
        '+ callers.other.allow: ["chat"]\n'
        "+ callers.team.active: false\n"
        "2 changes; revision 1 says the same and goes on serving.\n"
    )
    assert callers_from_rows() == {
        "other": CallerEntry(allow=("chat",)),
        "team": CallerEntry(allow=("chat",), active=False),
    }
    assert Caller.objects.get(name="team").tokens.count() == 1


@pytest.mark.django_db
def test_exportconfig_writes_what_importconfig_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("importconfig", file_of(tmp_path, GOOD))
    assert run("exportconfig") == (GOOD, "")
    target = tmp_path / "exported.yaml"
    assert run("exportconfig", str(target)) == ("", "")
    assert target.read_text() == GOOD
    monkeypatch.setattr(sys, "stdin", _Input(GOOD))
    assert run("importconfig", "-")[0] == "0 changes; revision 1 says the same and goes on serving.\n"
    assert refusal("exportconfig", str(tmp_path / "none" / "x"))[1].endswith("No such file or directory")


class _Input:
    def __init__(self, text: str) -> None:
        self.buffer: Any = io.BytesIO(text.encode())
