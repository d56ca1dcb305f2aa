"""Key files: none may lie where the gateway keeps its own secrets."""

from pathlib import Path

import pytest
from django.conf import settings

from routing.core.document import Document, Provider
from routing.core.errors import Problem
from routing.key_files import is_there, problems

OWN = Path(settings.PILOTAGE.data_dir)
REFUSED = [
    Problem("providers.p.api_key_file", "must not lie in the data directory, whose files are the gateway's own secrets")
]


def told_of(path: object) -> list[Problem]:
    provider = Provider(base_url="https://api.example/v1", dialect="openai-chat", api_key_file=str(path))
    return list(problems(Document(providers={"p": provider}, models={})))


def test_a_file_in_the_data_directory_is_refused_however_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(OWN / "token_pepper")
    (tmp_path / "folder").symlink_to(OWN)
    for path in (
        OWN,
        OWN / "token_pepper",
        OWN / "spool" / ".." / "secret_key",
        OWN / "not-there-yet",
        tmp_path / "link",
        tmp_path / "folder" / "pilotage.sqlite3",
        f"{OWN}/token_pepper\0",
    ):
        assert told_of(path) == REFUSED, path


def test_a_file_elsewhere_is_not(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path in (tmp_path / "key", "/run/secrets/hosted", f"{OWN}-elsewhere/key", tmp_path / "loop", "x" * 5000):
        assert told_of(path) == [], path


def test_a_provider_without_a_key_file_is_none_of_its_business() -> None:
    provider = Provider(base_url="https://api.example/v1", dialect="openai-chat", api_key_env="KEY")
    assert list(problems(Document(providers={"p": provider}, models={}))) == []


def test_what_is_referred_to_is_there_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "x")
    monkeypatch.setenv("EMPTY_KEY", "")
    (tmp_path / "key").write_text("x")
    assert [is_there(name, None) for name in ("SOME_KEY", "EMPTY_KEY", "NO_SUCH_KEY")] == [True, False, False]
    assert [is_there(None, str(tmp_path / name)) for name in ("key", "none")] == [True, False]
    assert is_there(None, None)
