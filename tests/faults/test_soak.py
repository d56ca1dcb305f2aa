"""The soak: a short run of it, and that it fails on what it is there to find."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.soak import SETTLED_S, Sample, problems_of, slope_per_hour
from tests.support.processes import ROOT

AT_REST = Sample(at=0.0, memory_mib=90.0, sockets=5, tasks=1)


def growing(mib_per_hour: float, *, seconds: float = 600.0) -> list[Sample]:
    return [replace(AT_REST, at=at, memory_mib=90.0 + at / 3600 * mib_per_hour) for at in range(int(seconds) + 1)]


@pytest.mark.e2e
def test_a_short_soak_finds_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.soak", "--seconds", "8", "--rate", "25", "--folder", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout.splitlines()
    assert [line.split()[0] for line in said] == [
        "answers", "records", "memory", "sockets", "tasks", "in_flight", "queued", "held_bytes", "attempts", "lent",
        "connections", "nothing",
    ]  # fmt: skip
    assert "'200': " in said[0]
    assert "'left': " in said[0]


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_ten_minutes_find_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.soak", "--folder", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1100, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_back_where_it_was_is_no_problem() -> None:
    assert problems_of(growing(20), AT_REST, replace(AT_REST, connections=3, memory_mib=200.0)) == []


@pytest.mark.parametrize(
    ("left", "said"),
    [
        ({"tasks": 2}, "tasks: 1 before, 2 at the end"),
        ({"sockets": 6}, "sockets: 5 before, 6 at the end"),
        ({"in_flight": 1}, "in_flight held at the end: 1"),
        ({"queued": 1}, "queued held at the end: 1"),
        ({"held_bytes": 70}, "held_bytes held at the end: 70"),
        ({"attempts": 1}, "attempts held at the end: 1"),
        ({"lent": 1}, "lent held at the end: 1"),
    ],
)
def test_whatever_is_left_is_a_problem(left: dict[str, int], said: str) -> None:
    assert problems_of(growing(0), AT_REST, replace(AT_REST, **left)) == [said]


def test_memory_that_grows_is_a_problem_once_the_run_is_long_enough_to_tell() -> None:
    assert problems_of(growing(90), AT_REST, AT_REST) == ["memory grows by 90 MiB an hour"]
    assert slope_per_hour(growing(90, seconds=SETTLED_S - 1)) is None
    # What grew in the first half and no more is a cache that is full.
    filled = [replace(each, memory_mib=120.0) for each in growing(0)[301:]]
    assert problems_of(growing(90)[:301] + filled, AT_REST, AT_REST) == []
