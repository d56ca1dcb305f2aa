"""What keeps a process up to date, against real databases and published Revisions."""

import json
import logging
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from django.conf import settings
from django.utils import timezone
from pytest_django import DjangoDbBlocker

from accounts import tokens
from accounts.core.directory import find
from accounts.core.errors import Unauthenticated
from accounts.models import Caller
from gateway import config, loader, publish
from gateway.loader import Follower
from gateway.models import Revision
from gateway.snapshot import Snapshot
from tests.support.databases import serving_from

NOWHERE = "postgres://pilotage@127.0.0.1:1/none"
"""Nothing listens on port 1."""

CONFIGURATION = """
providers:
  house:
    base_url: http://127.0.0.1:9001/v1
    dialect: openai-chat
    api_key: canary-literal-key
    models:
      small: {model: small-1}
models:
  GROUP:
    strategy: static
    targets: [{provider: house, model_ref: small}]
callers:
  team: {allow: ["*"]}
"""


@pytest.fixture
def database_away(django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    with django_db_blocker.unblock(), serving_from(NOWHERE):
        yield


def publish_group(name: str) -> int:
    text = CONFIGURATION.replace("GROUP", name).encode()
    return publish.import_configuration(config.load(text), author="tests").published.number


@contextmanager
def running(follower: Follower) -> Iterator[Snapshot]:
    follower.start()
    assert follower.first_look.wait(20)
    try:
        yield follower.snapshot
    finally:
        follower.stop()


def seconds_until(condition: Callable[[], bool], limit: float = 20.0) -> float:
    begun = time.monotonic()
    while not condition():
        if time.monotonic() - begun > limit:
            raise TimeoutError
        time.sleep(0.01)
    return time.monotonic() - begun


def groups_of(snapshot: Snapshot) -> list[str] | None:
    return None if snapshot.catalog is None else sorted(snapshot.catalog.groups)


def refusal(snapshot: Snapshot, secret: str) -> str | None:
    assert snapshot.directory is not None
    try:
        find(snapshot.directory, secret, settings.TOKEN_PEPPER, timezone.now().timestamp())
    except Unauthenticated as error:
        return error.reason
    return None


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_process_has_what_is_published_and_who_may_call(database: str, tmp_path: Path) -> None:
    number = publish_group("chat")
    _, secret = tokens.issue(Caller.objects.get(name="team"))
    follower = Follower(Snapshot(), data_dir=tmp_path)
    follower.look()
    assert (follower.snapshot.catalog, follower.snapshot.ready) == (publish.load(number), True)
    assert refusal(follower.snapshot, secret) is None


def test_before_anything_is_published_it_is_ready_and_knows_no_group(database: str, tmp_path: Path) -> None:
    follower = Follower(Snapshot(), data_dir=tmp_path)
    follower.look()
    assert (groups_of(follower.snapshot), follower.snapshot.ready) == ([], True)
    publish_group("chat")
    follower.look()
    assert groups_of(follower.snapshot) == ["chat"]


def test_what_did_not_change_is_not_loaded_again(database: str, tmp_path: Path) -> None:
    publish_group("chat")
    follower = Follower(Snapshot(), data_dir=tmp_path)
    follower.look()
    catalog, directory = follower.snapshot.catalog, follower.snapshot.directory
    follower.look()
    assert follower.snapshot.catalog is catalog
    assert follower.snapshot.directory is directory


def test_two_running_processes_follow_every_change_within_two_seconds(database: str, tmp_path: Path) -> None:
    publish_group("chat")
    token, secret = tokens.issue(Caller.objects.get(name="team"))
    seen: list[list[str]] = []
    followers = [
        Follower(Snapshot(), data_dir=tmp_path, on_catalog=lambda catalog: seen.append(sorted(catalog.groups))),
        Follower(Snapshot(), data_dir=tmp_path),
    ]
    with running(followers[0]) as one, running(followers[1]) as two:
        assert [refusal(one, secret), refusal(two, secret)] == [None, None]
        publish_group("code")
        assert seconds_until(lambda: groups_of(one) == groups_of(two) == ["code"]) < 2
        tokens.revoke(token)
        assert seconds_until(lambda: refusal(one, secret) == refusal(two, secret) == "revoked") < 2
    assert seen == [["chat"], ["code"]]


def test_a_revision_that_cannot_be_served_is_reported_once_and_the_old_one_kept(
    database: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publish_group("chat")
    follower = Follower(Snapshot(), data_dir=tmp_path)
    follower.look()
    good = publish_group("code")
    Revision.objects.filter(number=good).update(document='{"providers":{"x":{}}}')
    follower.look()
    follower.look()
    assert groups_of(follower.snapshot) == ["chat"]
    assert len(errors(caplog)) == 1
    assert errors(caplog)[0].startswith("Revision 2 cannot be served, the one before stays: providers.x")
    publish_group("vision")
    follower.look()
    assert groups_of(follower.snapshot) == ["vision"]


def test_callers_are_followed_while_a_revision_cannot_be_served(database: str, tmp_path: Path) -> None:
    _, secret = tokens.issue(Caller.objects.create(name="other"))
    Revision.objects.filter(number=publish_group("chat")).update(document="{")
    follower = Follower(Snapshot(), data_dir=tmp_path)
    follower.look()
    assert (follower.snapshot.catalog, refusal(follower.snapshot, secret)) == (None, "inactive")
    Caller.objects.filter(name="other").update(active=True)
    follower.look()
    assert refusal(follower.snapshot, secret) is None


def test_a_database_that_goes_away_and_comes_back_is_said_once_each_and_serving_goes_on(
    database: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pilotage.loader")
    publish_group("chat")
    follower = Follower(Snapshot(), data_dir=tmp_path)
    follower.look()
    with serving_from(NOWHERE):
        follower.look()
        follower.look()
    assert groups_of(follower.snapshot) == ["chat"]
    follower.look()
    follower.look()
    said = [(record.levelname, record.getMessage().split(":")[0]) for record in caplog.records]
    assert said == [("ERROR", "the database does not answer"), ("INFO", "back in order")]
    publish_group("code")
    follower.look()
    assert groups_of(follower.snapshot) == ["code"]


def test_a_process_starts_from_the_last_good_configuration_while_the_database_is_away(
    database: str, tmp_path: Path
) -> None:
    publish_group("old")
    number = publish_group("chat")
    _, secret = tokens.issue(Caller.objects.get(name="team"))
    Follower(Snapshot(), data_dir=tmp_path).look()
    created = publish.load(number).created
    with serving_from(NOWHERE), running(Follower(Snapshot(), data_dir=tmp_path)) as snapshot:
        assert snapshot.ready
        assert snapshot.catalog is not None
        assert (groups_of(snapshot), snapshot.catalog.revision, snapshot.catalog.created) == (["chat"], number, created)
        assert (refusal(snapshot, secret), refusal(snapshot, secret[:-1])) == (None, "malformed")


def test_it_takes_the_database_over_the_disk_when_both_are_there(database: str, tmp_path: Path) -> None:
    publish_group("chat")
    token, secret = tokens.issue(Caller.objects.get(name="team"))
    Follower(Snapshot(), data_dir=tmp_path).look()
    tokens.revoke(token)
    publish_group("code")
    with running(Follower(Snapshot(), data_dir=tmp_path)) as snapshot:
        assert (groups_of(snapshot), refusal(snapshot, secret)) == (["code"], "revoked")


def test_a_database_with_nothing_published_is_believed_over_the_disk(database: str, tmp_path: Path) -> None:
    publish_group("chat")
    Follower(Snapshot(), data_dir=tmp_path).look()
    Revision.objects.all().delete()
    follower = Follower(Snapshot(), data_dir=tmp_path)
    follower.look()
    assert groups_of(follower.snapshot) == []


def test_without_database_and_disk_it_is_not_ready(database_away: None, tmp_path: Path) -> None:
    with running(Follower(Snapshot(), data_dir=tmp_path)) as snapshot:
        assert not snapshot.ready


def test_a_file_that_cannot_be_read_is_reported_and_the_process_not_ready(
    database_away: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "last_good").mkdir()
    (tmp_path / "last_good" / "revision.json").write_bytes(b'{"revision":1,"created":1,"document":{"models":7}}')
    (tmp_path / "last_good" / "directory.json").write_bytes(b"{")
    follower = Follower(Snapshot(), data_dir=tmp_path)
    follower.look()
    follower.look()
    assert not follower.snapshot.ready
    away, *files = errors(caplog)
    assert away.startswith("the database does not answer: OperationalError: ")
    assert [line.split("/")[-1].split(" ")[0] for line in files] == ["revision.json", "directory.json"]


def test_a_revision_that_this_release_cannot_serve_at_start_leaves_the_last_good_one(
    database: str, tmp_path: Path
) -> None:
    publish_group("chat")
    Follower(Snapshot(), data_dir=tmp_path).look()
    Revision.objects.filter(number=publish_group("code")).update(document="{")
    follower = Follower(Snapshot(), data_dir=tmp_path)
    follower.look()
    assert groups_of(follower.snapshot) == ["chat"]


def test_the_files_are_for_this_user_only_and_hold_no_secret(database: str, tmp_path: Path) -> None:
    publish_group("chat")
    _, secret = tokens.issue(Caller.objects.get(name="team"))
    follower = Follower(Snapshot(), data_dir=tmp_path)
    follower.look()
    assert follower.snapshot.catalog is not None
    assert follower.snapshot.catalog.providers["house"].api_key == "canary-literal-key"
    folder = tmp_path / "last_good"
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {
        "revision.json": 0o600,
        "directory.json": 0o600,
    }
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    written = b"".join(path.read_bytes() for path in folder.iterdir())
    assert b"canary" not in written
    assert secret[12:].encode() not in written
    assert settings.TOKEN_PEPPER.hex().encode() not in written
    assert json.loads((folder / "revision.json").read_bytes())["revision"] == 1


def test_a_disk_that_cannot_be_written_is_reported_once_and_changes_nothing_else(
    database: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    publish_group("chat")
    follower = Follower(Snapshot(), data_dir=blocked)
    follower.look()
    publish_group("code")
    follower.look()
    assert groups_of(follower.snapshot) == ["code"]
    assert [line.split(" cannot")[0].split("/")[-1] for line in errors(caplog)] == ["revision.json", "directory.json"]


class Slow:
    """`gateway.publish`, whose database answers only once it is let."""

    load = staticmethod(publish.load)
    document_json = staticmethod(publish.document_json)
    catalog_from_json = staticmethod(publish.catalog_from_json)

    def __init__(self) -> None:
        self.answers = threading.Event()

    def latest(self) -> int | None:
        self.answers.wait(20)
        return publish.latest()


def test_a_database_that_is_slow_at_the_start_is_not_waited_for_and_then_believed(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_group("chat")
    Follower(Snapshot(), data_dir=tmp_path).look()
    publish_group("code")
    monkeypatch.setattr(loader, "FALL_BACK_AFTER_S", 0.05)
    slow = Slow()
    follower = Follower(Snapshot(), data_dir=tmp_path, revisions=slow)
    follower.start()
    try:
        seconds_until(lambda: follower.snapshot.ready)
        assert (groups_of(follower.snapshot), follower.first_look.is_set()) == (["chat"], False)
        slow.answers.set()
        seconds_until(lambda: groups_of(follower.snapshot) == ["code"])
    finally:
        slow.answers.set()
        follower.stop()


def test_starting_again_starts_no_second_thread(database_away: None, tmp_path: Path) -> None:
    follower = Follower(Snapshot(), data_dir=tmp_path)
    with running(follower):
        follower.start()
        names = [thread.name for thread in threading.enumerate()]
    assert names.count("pilotage-loader") == 1
