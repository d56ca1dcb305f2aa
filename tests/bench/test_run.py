"""One small run from end to end: a gateway is set up, started, measured, and stands in the table."""

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from bench import summary
from bench.programs import HERE

SERIES = ("unary-64", "1m", "paced-64")


@pytest.mark.e2e
@pytest.mark.timeout(240)
def test_a_small_run_serves_without_errors_and_fills_the_table(built: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{summary.BEGIN}\nold\n{summary.END}\nafter\n")
    options = ["--rounds", "1", "--seconds", "0.3", "--out", str(tmp_path), "--write", str(page)]
    for name in SERIES:
        options += ["--series", name]
    done = subprocess.run(
        [sys.executable, "-m", "bench.run", "pilotage", *options],
        cwd=HERE.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (results,) = (tmp_path / "results").iterdir()
    lines = [msgspec.json.decode(line) for line in results.read_bytes().splitlines()]
    measured = [line for line in lines if line["kind"] == "series"]
    assert [(line["target"], line["series"]) for line in measured] == [
        (target, name) for target in ("direct", "pilotage") for name in SERIES
    ]
    for line in measured:
        assert line["ok"] > 0
        assert (line["refused"], line["failed"], line["unfinished"], list(line["statuses"])) == (0, 0, 0, ["200"])
        assert line["upstream_requests"] == line["ok"], "the gateway asked more often than it was asked"
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    row = next(line for line in text.splitlines() if line.startswith("| **Pilotage**, 8 targets, "))
    assert re.fullmatch(r"\| [^|]+\| +\| +\| [\d,]+ \| [\d,]+ \| +\| +\| [\d.]+ \| \d+ \|", row), row


def test_a_name_that_is_no_target_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.run", "pilotaje", "--out", str(tmp_path)],
        cwd=HERE.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "there is no pilotaje; there are direct, nginx, pilotage, " in done.stderr


@pytest.mark.full
@pytest.mark.e2e
@pytest.mark.timeout(3_600)
def test_the_bars_are_kept(built: Path, tmp_path: Path) -> None:
    """Beside the peers in `out/peers`, where those that are missing are installed. Needs a quiet machine."""
    peers = HERE.parent / "out" / "peers"
    peers.mkdir(parents=True, exist_ok=True)
    (tmp_path / "peers").symlink_to(peers)
    done = subprocess.run(
        [sys.executable, "-m", "bench.run", "--rounds", "1", "--out", str(tmp_path)],
        cwd=HERE.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (results,) = (tmp_path / "results").iterdir()
    bars = summary.bars(summary.read(results))
    assert len(bars) > 1, "no peer was measured"
    assert [bar for bar in bars if not bar.kept] == []
