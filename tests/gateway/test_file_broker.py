"""The broker's folder: where a message is, whoever is killed. Under real workers: `tests/faults/test_workers.py`."""

import os
import signal
import stat
from pathlib import Path

import pytest
from kombu.exceptions import OperationalError

from gateway.file_broker import LOCK, MAX_DELIVERIES, Folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def taken(folder: Folder, queue: str = "q") -> str:
    name = folder.take(queue)
    assert name is not None
    return name


def test_messages_come_oldest_first_from_their_own_queue_and_are_gone_when_finished(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    for queue, content in [("q", b"1"), ("other", b"2"), ("q", b"3")]:
        folder.put(queue, content)
    first, second = taken(folder), taken(folder)
    assert (folder.read(first), folder.read(second), folder.take("q"), folder.size("other")) == (b"1", b"3", None, 1)
    folder.finish(first)
    folder.finish(second)
    folder.leave()
    assert (names(tmp_path / "taken"), len(names(tmp_path / "waiting"))) == ([], 1)


def test_nobody_else_can_read_it(tmp_path: Path) -> None:
    Folder(tmp_path / "broker").put("q", b"1")
    modes = {stat.S_IMODE(path.stat().st_mode) for path in [tmp_path / "broker", *(tmp_path / "broker").rglob("*")]}
    assert modes == {0o700, 0o600}


def test_what_another_has_taken_is_left_to_it_while_it_lives_and_given_back_once_when_it_is_dead(
    tmp_path: Path,
) -> None:
    folder = Folder(tmp_path)
    folder.put("q", b"1")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        own = Folder(tmp_path)
        os.write(writer, (own.take("q") or "").encode())
        signal.pause()
    name = os.read(reader, 200).decode()
    try:
        assert (folder.rescue(), folder.take("q")) == (0, None)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert folder.rescue() == 1
    assert folder.rescue() == 0
    assert taken(folder) == name.replace("-0-", "-1-")
    assert len(names(tmp_path / "taken")) == 1  # our own


def test_a_message_that_is_given_back_again_and_again_is_set_aside(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.put("q", b"1")
    for _ in range(MAX_DELIVERIES):
        folder.put_back(taken(folder))
    assert folder.take("q") is None
    assert [name.partition("-")[2][:2] for name in names(tmp_path / "damaged")] == ["4-"]


def test_a_forked_child_neither_finishes_nor_gives_back_what_its_parent_has_taken(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.put("q", b"1")
    name = taken(folder)
    child = os.fork()
    if child == 0:
        folder.finish(name)
        folder.put_back(name)
        folder.leave()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert folder.read(name) == b"1"
    assert Folder(tmp_path).rescue() == 0  # and the lock is still ours


def test_two_readers_never_take_the_same_message(tmp_path: Path) -> None:
    first, second = Folder(tmp_path), Folder(tmp_path)
    for number in range(20):
        first.put("q", b"%d" % number)
    both = [folder.take("q") for _ in range(10) for folder in (first, second)]
    assert len(set(both)) == 20
    assert None not in both


def test_a_folder_that_is_full_says_so_to_the_sender(tmp_path: Path) -> None:
    folder = Folder(tmp_path, max_waiting=2)
    folder.put("q", b"1")
    folder.put("q", b"2")
    with pytest.raises(OperationalError, match=r"2 messages wait in .*: is no worker running"):
        folder.put("q", b"3")


def test_a_message_that_is_too_long_and_a_folder_that_is_gone_are_errors_of_the_broker(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "broker")
    with pytest.raises(OperationalError, match="longer than"):
        folder.put("q", b" " * (1 << 20) + b" ")
    (tmp_path / "broker/waiting").rmdir()
    with pytest.raises(OperationalError, match="cannot be written"):
        folder.put("q", b"1")


def test_a_name_is_no_way_out_of_the_folder(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "broker")
    (tmp_path / "secret").write_bytes(b"1")
    link = f"{1:020d}-0-{1:032x}.q.json"
    (tmp_path / "broker/waiting" / link).symlink_to(tmp_path / "secret")
    assert folder.take("q") is None
    for queue in ("../q", "a/b", ""):
        with pytest.raises(OperationalError, match="is no name of a queue"):
            folder.put(queue, b"1")


def test_a_sweep_removes_old_files_alone(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.put("q", b"1")
    folder.put("gone", b"2")
    (tmp_path / "damaged" / "x").write_text("?")
    (tmp_path / "waiting" / ".unfinished").write_text("?")
    (tmp_path / "waiting" / "folder").mkdir()
    folder.put("q", b"3")
    now = 1_000_000.0
    for path in [*(tmp_path / "waiting").iterdir(), *(tmp_path / "damaged").iterdir()]:
        os.utime(path, (now - 100, now - 100))
    held = taken(folder)
    young = min((tmp_path / "waiting").glob("*.q.json"))
    os.utime(young, (now - 99, now - 99))
    assert folder.sweep(older_than_s=99.5, now=now) == 3
    assert names(tmp_path / "waiting") == sorted([young.name, "folder"])
    assert (names(tmp_path / "damaged"), folder.read(held)) == ([], b"1")


def test_an_owner_without_a_lock_or_with_a_foreign_file_is_cleared(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    owner = tmp_path / "taken/1-x"
    owner.mkdir()
    (owner / LOCK).touch()
    (owner / "notes").touch()
    (tmp_path / "taken/2-y").mkdir()
    folder.rescue()
    assert (names(tmp_path / "taken"), names(tmp_path / "damaged")) == ([], ["notes"])
