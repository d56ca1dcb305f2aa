import os
import select
import subprocess
import sys
from pathlib import Path

from bench.machine import busy_seconds, cpu_seconds, memory_mib, running

BURN = "import time; [None for _ in iter(lambda: time.process_time() < {seconds}, False)]"


def test_cpu_of_children_counts_while_they_run_and_when_they_are_gone_and_all_end_with_the_block(
    tmp_path: Path,
) -> None:
    burn = BURN.format(seconds=0.3)
    stay = f"{burn}; import os; print(os.getpid(), flush=True); time.sleep(60)"
    program = (
        "import subprocess, sys\n"
        f"subprocess.run([sys.executable, '-c', {burn!r}])\n"
        f"subprocess.run([sys.executable, '-c', {stay!r}])\n"
    )
    log = tmp_path / "log"
    with running([sys.executable, "-c", program], core=None, log=log) as process:
        while not log.read_text().endswith("\n"):
            assert process.poll() is None
        child = os.pidfd_open(int(log.read_text()))
        assert cpu_seconds(process.pid) >= 0.6
        assert memory_mib(process.pid) > 10
    try:
        ended, _, _ = select.select([child], [], [], 10)
    finally:
        os.close(child)
    assert ended == [child]


def test_other_work_is_seen() -> None:
    before = busy_seconds()
    subprocess.run([sys.executable, "-c", BURN.format(seconds=0.2)], check=True)
    assert busy_seconds() - before >= 0.15


def test_a_process_that_is_gone_has_used_nothing() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert cpu_seconds(gone.pid) == 0.0
