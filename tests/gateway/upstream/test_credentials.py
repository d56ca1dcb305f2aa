"""Where a provider's key comes from."""

import os
from pathlib import Path
from typing import Any

import pytest

from gateway.upstream.credentials import Credential
from gateway.upstream.errors import ConnectError, CredentialMissing
from routing.core.catalog import Provider


def credential(environ: dict[str, str] | None = None, **fields: Any) -> Credential:
    provider = Provider(**{"name": "p", "base_url": "http://127.0.0.1/v1", "dialect": "openai-chat", **fields})
    return Credential(provider, environ or {})


def test_the_environment_is_read_at_every_use() -> None:
    environ = {"KEY": "first"}
    key = credential(environ, api_key_env="KEY")
    assert key.current(0.0) == b"first"
    environ["KEY"] = " second\n"
    assert key.current(0.0) == b"second"


def test_a_literal_key_is_used_as_it_is_and_no_reference_means_no_key() -> None:
    assert credential(api_key="lit").current(0.0) == b"lit"
    assert credential().current(0.0) is None
    assert credential(api_key="lit", auth="none").current(0.0) is None


def test_a_missing_variable_is_named() -> None:
    with pytest.raises(CredentialMissing) as caught:
        credential({"KEY": ""}, api_key_env="KEY").current(0.0)
    assert str(caught.value) == "provider p: the environment variable KEY is not set"
    assert isinstance(caught.value, ConnectError)


def test_a_key_file_is_read_again_when_it_changed_but_looked_at_once_a_second(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("one\n")
    key = credential(api_key_file=str(path))
    assert key.current(10.0) == b"one"
    path.write_text("two, longer\n")
    assert key.current(10.9) == b"one"
    assert key.current(11.0) == b"two, longer"


def test_a_key_file_replaced_by_one_of_the_same_size_and_time_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("one")
    key = credential(api_key_file=str(path))
    assert key.current(0.0) == b"one"
    other = tmp_path / "other"
    other.write_text("two")
    status = path.stat()
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.rename(path)
    assert key.current(1.0) == b"two"


def test_a_key_file_that_went_away_is_named_and_its_old_key_not_used_until_it_is_back(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("one")
    key = credential(api_key_file=str(path))
    assert key.current(0.0) == b"one"
    path.unlink()
    for now in (1.0, 1.1):
        with pytest.raises(CredentialMissing) as caught:
            key.current(now)
        assert str(caught.value) == f"provider p: api_key_file {path}: No such file or directory"
    path.write_text("two")
    assert key.current(1.2) == b"two"


@pytest.mark.parametrize("content", ["s3cr3t\nline", "s3cr3t\u00e9", "s3cr3t\0"])
def test_a_key_that_no_header_can_carry_is_refused_without_showing_it(content: str, tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(content)
    for bad in (credential({"KEY": content}, api_key_env="KEY"), credential(api_key_file=str(path))):
        with pytest.raises(CredentialMissing) as caught:
            bad.current(0.0)
        assert "holds a character that no header can carry" in str(caught.value)
        assert "s3cr3t" not in repr(caught.value)


def test_an_endless_or_empty_key_file_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text(" \n")
    with pytest.raises(CredentialMissing, match="is empty"):
        credential(api_key_file=str(empty)).current(0.0)
    with pytest.raises(CredentialMissing, match="longer than 16384 bytes"):
        credential(api_key_file="/dev/zero").current(0.0)
