"""Which files are finished: what ingest may remove."""

from pathlib import Path

from reports.ingest_files import SpoolReader
from reports.spool import Spool
from tests.reports.records import add, an_end


def living(folder: Path) -> list[str]:
    reader = SpoolReader(folder)
    found = []
    for source in reader.sources():
        with reader.open(source) as file:
            if not file.is_finished:
                found.append(source.number)
    return found


def test_a_process_that_lives_has_a_file_that_is_not_finished_at_every_moment(tmp_path: Path) -> None:
    seen: list[list[str]] = []

    class Watched(Spool):
        def _end_file(self) -> None:
            seen.append(living(tmp_path))
            super()._end_file()

    spool = Watched(tmp_path, max_file_bytes=1 << 12)
    add(spool, [an_end(f"req_{number}") for number in range(12)])
    assert living(tmp_path) == seen[-1][-1:]
    assert seen[0] == ["0000"]
    assert seen[1:] == [[f"{number:04}", f"{number + 1:04}"] for number in range(len(seen) - 1)]
    assert len(seen) > 2
    spool.close()
    assert living(tmp_path) == []


def test_a_file_has_its_name_only_once_it_is_locked(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    add(spool, [an_end()])
    assert [path.suffix for path in tmp_path.iterdir()] == [".jsonl"]
    spool.close()


def test_files_come_in_the_order_in_which_each_process_wrote_them(tmp_path: Path) -> None:
    for name in ("records-9-1-0001", "records-10-1-0000", "records-9-1-0000", "restored"):
        (tmp_path / f"{name}.jsonl").touch()
    (tmp_path / "records-9-1-0002.begun").touch()
    (tmp_path / "damaged").touch()
    assert [(source.process, source.number) for source in SpoolReader(tmp_path).sources()] == [
        ("", "restored"),
        ("records-10-1", "0000"),
        ("records-9-1", "0000"),
        ("records-9-1", "0001"),
    ]


def test_a_spool_keeps_its_identity(tmp_path: Path) -> None:
    first = SpoolReader(tmp_path).identity()
    assert (len(first), SpoolReader(tmp_path).identity()) == (32, first)
