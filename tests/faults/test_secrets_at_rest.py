"""Tokens at rest are digests whose key is not in the database; the keys of providers stand where the operator put them."""

import hashlib
import hmac
import json
import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import settings

from accounts import tokens
from accounts.models import Caller, Token
from tests.support.grounds import Ground, Grounds, hello
from tests.support.hostile import ask, head, post
from tests.support.loops import run
from tests.support.processes import ROOT
from tests.support.relays import answering, completion
from tests.support.scripted import scripted

pytestmark = pytest.mark.e2e

PROVIDER_KEY = "sk-provider-key-of-the-environment"


@pytest.fixture(scope="module")
def used(grounds: Grounds) -> Ground:
    """A gateway that made and saw tokens in every way, at the most talkative log level, and then stopped."""
    return grounds.start("used", PILOTAGE_LOG_LEVEL="DEBUG", PROVIDER_KEY=PROVIDER_KEY)


@pytest.fixture(scope="module")
def secrets(used: Ground) -> list[str]:
    """All tokens that were ever issued there."""
    with used.process.open_database():
        caller = Caller.objects.get(name="tester")
        issued = [tokens.issue(caller, groups=["nowhere"])[1] for _ in range(3)]
        row, revoked = tokens.issue(caller)
        assert tokens.revoke(row)
    made = subprocess.run(
        [sys.executable, "manage.py", "createtoken", "tester"],
        cwd=ROOT,
        env=os.environ | {"PILOTAGE_DATA_DIR": str(used.process.data), "PILOTAGE_TOKEN_PEPPER": pepper()},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    known = [used.token, *issued, revoked, made]

    async def use() -> None:
        async with scripted(answering(completion())) as upstream:
            group = await used.lead_to(upstream.base_url, api_key_env="PROVIDER_KEY")
            for secret in known:
                for path in ("/v1/chat/completions", f"/v1/models?api_key={secret}", f"/v1/{secret}"):
                    await ask(used.address, post(path, hello(group, user=secret[:8]), token=secret))
                    await ask(used.address, head("GET", path, [("x-api-key", secret)]))
            assert b"Bearer " + PROVIDER_KEY.encode() in [
                request.header(b"authorization") for request in upstream.requests
            ]

    run(use())
    assert used.process.stop() == 0
    return known


def pepper() -> str:
    return (Path(os.environ["PILOTAGE_DATA_DIR"]) / "token_pepper").read_text().strip()


def written(ground: Ground) -> Iterator[tuple[Path, bytes]]:
    for path in sorted(ground.process.folder.rglob("*")):
        if path.is_file():
            yield path, path.read_bytes()


def parts_of(secret: str) -> Iterator[bytes]:
    """Any 14 characters in a row; what is kept for people are the first 12."""
    for start in range(len(secret) - 13):
        yield secret[start : start + 14].encode()
        yield secret[start : start + 14].encode().hex().encode()


def dump(ground: Ground) -> str:
    with sqlite3.connect(ground.process.data / "pilotage.sqlite3") as database:
        text = "\n".join(database.iterdump())
    database.close()
    return text


def test_no_file_and_no_row_holds_a_token(used: Ground, secrets: list[str]) -> None:
    found = {
        (path.name, secret[:12])
        for path, content in written(used)
        for secret in secrets
        if any(part in content for part in parts_of(secret))
    }
    assert found == set()
    text = dump(used)
    assert [secret[:12] for secret in secrets if any(part.decode() in text for part in parts_of(secret))] == []
    assert [secret[:12] for secret in secrets if secret[:12] not in text] == []  # the search sees the rows


def test_what_is_kept_is_a_digest_under_a_key_that_lies_elsewhere(used: Ground, secrets: list[str]) -> None:
    with used.process.open_database():
        kept = {bytes(token.digest) for token in Token.objects.all()}
    assert kept == {hmac.digest(settings.TOKEN_PEPPER, secret.encode(), "sha256") for secret in secrets}
    assert pepper() not in dump(used)
    for path, content in written(used):
        assert pepper().encode() not in content, path
        for secret in secrets:  # nor anything that could be computed without the pepper
            for plain in (hashlib.sha256(secret.encode()), hashlib.sha1(secret.encode()), hashlib.md5(secret.encode())):
                assert plain.digest() not in content, path
                assert plain.hexdigest().encode() not in content, path


def test_a_generated_pepper_is_for_this_user_only_and_not_in_the_database(grounds: Grounds, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "manage.py", "migrate", "--verbosity", "0"],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("PILOTAGE_")}
        | {"PILOTAGE_DATA_DIR": str(tmp_path / "data")},
        check=False,
    )
    assert done.returncode == 0
    for name in ("token_pepper", "secret_key"):
        file = tmp_path / "data" / name
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert file.read_text().strip().encode() not in (tmp_path / "data" / "pilotage.sqlite3").read_bytes()


def test_a_providers_key_of_the_environment_is_written_nowhere(used: Ground, secrets: list[str]) -> None:
    assert [path for path, content in written(used) if PROVIDER_KEY.encode() in content] == []


def test_a_literal_key_stands_in_its_row_and_nowhere_else(grounds: Grounds) -> None:
    """Allowed for providers on this machine only, for trying things out."""
    ground = grounds.start("literal", PILOTAGE_LOG_LEVEL="DEBUG")
    key = "sk-literal-key-of-a-row"

    async def use() -> None:
        async with scripted(answering(completion())) as upstream:
            group = await ground.lead_to(upstream.base_url, api_key=key)
            assert (
                await ask(ground.address, post("/v1/chat/completions", hello(group), token=ground.token))
            ).status == 200
            assert upstream.requests[-1].header(b"authorization") == f"Bearer {key}".encode()

    run(use())
    assert ground.process.stop() == 0
    holding = {path.name for path, content in written(ground) if key.encode() in content}
    assert holding <= {"pilotage.sqlite3", "pilotage.sqlite3-wal"}
    assert [line.partition("(")[0] for line in dump(ground).splitlines() if key in line] == [
        'INSERT INTO "routing_provider" VALUES'
    ] * 2
    assert json.loads((ground.process.data / "last_good" / "revision.json").read_bytes())["revision"] == 2
