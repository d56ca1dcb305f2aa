"""The spool and the line log: what is written, what is dropped, and that neither stands in anybody's way."""

import errno
import fcntl
import json
import os
import signal
from pathlib import Path

import msgspec
import pytest

from reports.core.record import EndRecord, IntentRecord
from reports.spool import LineLog, Spool, decode_line, dropped_before
from tests.reports.records import add


def an_intent(id: str = "req_1") -> IntentRecord:
    return IntentRecord(
        id=id,
        at=1.5,
        caller="team",
        project="p",
        environment="prod",
        token="plt_12345678",
        group="g",
        dialect="openai-chat",
        stream=True,
        revision=3,
        target="a/m",
        input_tokens_estimated=7,
    )


def an_end(id: str = "req_1") -> EndRecord:
    return EndRecord(
        v=1,
        id=id,
        at=1.5,
        caller="team",
        project="p",
        environment="prod",
        token="plt_12345678",
        endpoint="chat",
        group="g",
        dialect="openai-chat",
        stream=True,
        revision=3,
        status=200,
        outcome="success",
        duration_ms=12.25,
        flags=["é日🙂", "line\nbreak"],
    )


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.jsonl"))


def written(folder: Path) -> list[IntentRecord | EndRecord]:
    return [decode_line(line) for path in files(folder) for line in path.read_bytes().splitlines() if line]


def told(spool: Spool) -> str | None:
    """The problem, which the type checker would take for unchanged."""
    return spool.problem


LINE = len(msgspec.json.encode(an_intent())) + 1


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_what_is_written_is_read_back_whole_and_only_the_owner_may_read_it(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "spool"
    spool = Spool(folder, name="records")
    add(spool, [an_intent()])
    add(spool, [an_end()])
    assert written(folder) == [an_intent(), an_end()]
    (path,) = files(folder)
    assert path.name.startswith(f"records-{os.getpid()}-")
    assert (oct(path.stat().st_mode & 0o777), oct(folder.stat().st_mode & 0o777)) == ("0o600", "0o700")
    assert (spool.written, spool.dropped, spool.problem) == (2, 0, None)


def test_a_full_file_is_followed_by_the_next_and_no_line_is_split(tmp_path: Path) -> None:
    spool = Spool(tmp_path, max_file_bytes=3 * LINE)
    for number in range(8):
        add(spool, [an_intent(f"req_{number}")])
    assert [path.stat().st_size for path in files(tmp_path)] == [3 * LINE, 3 * LINE, 2 * LINE]
    assert [record.id for record in written(tmp_path)] == [f"req_{number}" for number in range(8)]


def test_a_record_larger_than_a_file_gets_one_of_its_own(tmp_path: Path) -> None:
    spool = Spool(tmp_path, max_file_bytes=10)
    add(spool, [an_intent("req_1")])
    add(spool, [an_intent("req_2")])
    assert [path.stat().st_size for path in files(tmp_path)] == [LINE, LINE]


def test_at_the_bound_records_are_dropped_and_counted_until_there_is_room_again(tmp_path: Path) -> None:
    clock = Clock()
    spool = Spool(tmp_path, max_file_bytes=2 * LINE, max_total_bytes=4 * LINE, clock=clock)
    for _ in range(6):
        add(spool, [an_intent()])
    assert (spool.written, spool.dropped) == (4, 2)
    assert told(spool) == f"the spool's bound of {4 * LINE} bytes is reached"
    files(tmp_path)[0].unlink()
    add(spool, [an_intent()])
    assert spool.dropped == 3  # it does not look again at once
    clock.now = 1.0
    add(spool, [an_intent()])
    assert (spool.written, spool.dropped, told(spool)) == (5, 3, None)


def test_the_bound_counts_what_other_processes_have_left(tmp_path: Path) -> None:
    (tmp_path / "records-1-1-0000.jsonl").write_bytes(b"x" * 3 * LINE)
    spool = Spool(tmp_path, max_total_bytes=4 * LINE)
    add(spool, [an_intent()])
    add(spool, [an_intent()])
    assert (spool.written, spool.dropped) == (1, 1)


def test_a_disk_that_fills_up_costs_records_and_leaves_the_others_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    spool = Spool(tmp_path, clock=clock)
    add(spool, [an_intent("req_1")])
    real = os.write
    room = [40, 0]

    def full_disk(fd: int, data: bytes) -> int:
        left = room.pop(0)
        if not left:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, bytes(data)[:left])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full_disk)
        add(spool, [an_intent("req_2")])
        clock.now = 1.0
        add(spool, [an_intent("req_3")])
    assert (spool.dropped, told(spool)) == (2, "[Errno 28] No space left on device")
    clock.now = 2.0
    add(spool, [an_intent("req_4")])
    assert (spool.written, spool.dropped, told(spool)) == (2, 2, None)
    lines = files(tmp_path)[0].read_bytes().splitlines()
    assert [len(lines), decode_line(lines[0]).id, decode_line(lines[3]).id] == [4, "req_1", "req_4"]
    assert dropped_before(lines[2]) == 2
    with pytest.raises(msgspec.DecodeError):
        decode_line(lines[1])


def queue(spool: Spool, *ids: str) -> None:
    for id in ids:
        spool.intent(an_intent(id))


def test_what_is_queued_goes_out_in_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool, real = Spool(tmp_path), os.write
    sizes: list[int] = []

    def counted(fd: int, data: bytes) -> int:
        sizes.append(len(data))
        return real(fd, data)

    monkeypatch.setattr(os, "write", counted)
    queue(spool, "req_1", "req_2")
    spool.end(an_end("req_1"))
    assert sizes == []
    spool.flush()
    spool.flush()
    queue(spool, "req_3")
    spool.close()
    assert sizes == [2 * LINE + len(msgspec.json.encode(an_end())) + 1, LINE]
    assert [record.id for record in written(tmp_path)] == ["req_1", "req_2", "req_1", "req_3"]
    assert (spool.written, spool.dropped) == (4, 0)


@pytest.mark.parametrize(("room", "whole"), [(LINE - 1, 0), (LINE, 1), (2 * LINE + 5, 2)])
def test_of_a_write_cut_short_the_whole_lines_count(
    room: int, whole: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    spool, real = Spool(tmp_path, clock=clock), os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: real(fd, bytes(data)[:room]))
        queue(spool, "req_1", "req_2", "req_3")
        spool.flush()
    assert (spool.written, spool.dropped, told(spool)) == (whole, 3 - whole, "the disk is full")
    clock.now = 1.0
    queue(spool, "req_4")
    spool.flush()
    lines = files(tmp_path)[0].read_bytes().splitlines()
    assert dropped_before(lines[-2]) == 3 - whole
    assert [decode_line(line).id for line in lines[:whole]] == ["req_1", "req_2", "req_3"][:whole]
    assert decode_line(lines[-1]).id == "req_4"
    assert b"" not in lines


def test_a_record_that_cannot_be_written_costs_none_of_its_neighbours(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    queue(spool, "req_1", "\ud800", "req_3")
    spool.flush()
    queue(spool, "req_4")
    spool.flush()
    assert (spool.written, spool.dropped, told(spool)) == (3, 1, None)
    lines = files(tmp_path)[0].read_bytes().splitlines()
    assert dropped_before(lines[0]) == 1
    assert [decode_line(line).id for line in lines[1:]] == ["req_1", "req_3", "req_4"]


def test_a_child_does_not_write_what_its_parent_queued(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    queue(spool, "parent")
    pid = os.fork()
    if pid == 0:
        queue(spool, "child")
        spool.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    spool.flush()
    assert sorted(record.id for record in written(tmp_path)) == ["child", "parent"]


def test_a_directory_that_cannot_be_made_never_raises(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    spool = Spool(tmp_path / "file" / "spool")
    add(spool, [an_end()])
    assert (spool.written, spool.dropped) == (0, 1)
    assert spool.problem is not None


def test_text_that_is_not_unicode_costs_one_record(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    add(spool, [msgspec.structs.replace(an_intent(), group="\ud800")])
    assert (spool.written, spool.dropped) == (0, 1)


def test_the_newest_file_is_locked_as_long_as_its_process_writes(tmp_path: Path) -> None:
    spool = Spool(tmp_path, max_file_bytes=LINE)
    add(spool, [an_intent()])
    add(spool, [an_intent()])

    def is_free(path: Path) -> bool:
        with path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    assert [is_free(path) for path in files(tmp_path)] == [True, False]
    spool.close()
    assert [is_free(path) for path in files(tmp_path)] == [True, True]
    add(spool, [an_intent()])
    assert len(files(tmp_path)) == 3


def test_records_survive_the_sudden_death_of_their_process_and_a_fork_writes_a_file_of_its_own(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    add(spool, [an_intent("parent")])
    pid = os.fork()
    if pid == 0:
        add(spool, [an_intent("child")])
        os.kill(os.getpid(), signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    add(spool, [an_end("parent")])
    by_process = {path.name.split("-")[1]: len(path.read_bytes().splitlines()) for path in files(tmp_path)}
    assert by_process == {str(os.getpid()): 2, str(pid): 1}
    assert sorted(record.id for record in written(tmp_path)) == ["child", "parent", "parent"]


def lines_of(fd: int) -> list[dict[str, object]]:
    """Everything up to the end of the stream."""
    with os.fdopen(fd, "rb") as stream:
        return [json.loads(line) for line in stream]


def test_lines_come_out_in_order_and_closing_writes_the_rest() -> None:
    reader, writer = os.pipe()
    log = LineLog(writer)
    for number in range(1000):
        log.write({"n": number})
    log.close()
    os.close(writer)
    assert lines_of(reader) == [{"n": number} for number in range(1000)]


def test_a_reader_that_stalls_costs_lines_which_are_counted_and_told() -> None:
    reader, writer = os.pipe()
    log = LineLog(writer, max_lines=100, pause_s=0)
    text = "x" * 1000
    for _ in range(1000):  # a pipe holds 64 KiB, the queue and the thread a hundred lines each
        log.write({"text": text})
    dropped = log.dropped
    assert dropped >= 600
    told: list[dict[str, object]] = []
    with os.fdopen(reader, "rb") as stream:
        while not told:
            line = json.loads(stream.readline())
            if "event" in line:
                told.append(line)
        log.close()
        os.close(writer)
        rest = [json.loads(line) for line in stream]
    told += [line for line in rest if "event" in line]
    assert {line["event"] for line in told} == {"log_lines_dropped"}
    assert sum(int(str(line["count"])) for line in told) == dropped


def test_closing_does_not_wait_for_a_reader_for_ever() -> None:
    reader, writer = os.pipe()
    log = LineLog(writer, pause_s=0)
    for _ in range(200):
        log.write({"text": "x" * 1000})
    log.close(timeout_s=0.05)
    log.write({"text": "late"})
    assert log.dropped == 1
    os.close(reader)


def test_a_line_that_cannot_be_written_as_json_is_dropped_alone() -> None:
    reader, writer = os.pipe()
    log = LineLog(writer)
    log.write({"n": 1})
    log.write({"n": object()})
    log.write({"n": 2})
    log.close()
    os.close(writer)
    lines = lines_of(reader)
    assert [line for line in lines if "n" in line] == [{"n": 1}, {"n": 2}]
    assert log.dropped == 1


def test_a_stream_that_is_gone_is_counted_and_stops_nobody() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    log = LineLog(writer)
    log.write({"n": 1})
    log.close()
    os.close(writer)
    assert log.dropped == 1
