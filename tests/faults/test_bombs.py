"""What a compressed answer of a gigabyte costs in memory; decoding is one place for both transports."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.stories import CHAT, HEAD, told
from tests.faults.test_encodings import bomb
from tests.support.scripted import AwaitPeer, Expect, Send

MEASURE = """
import resource, sys
sys.path.insert(0, {root!r})
import tests.conftest
from tests.faults.test_bombs import explode
from tests.support.loops import run
run(explode(1), loop="uvloop")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
run(explode({megabytes}), loop="uvloop", within=60)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
"""MiB by which the peak of a fresh process grows."""


async def explode(megabytes: int) -> None:
    for stream in (False, True):
        raw = bomb(megabytes, start=b'data: {"x":' if stream else b"")
        wire = HEAD + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(raw) + raw
        story = await told([Expect(), Send(wire), AwaitPeer()], side=CHAT, stream=stream, alone=True)
        assert story.reply.status == 502


@pytest.mark.parametrize("megabytes", [160, pytest.param(1_024, marks=pytest.mark.full)])
def test_a_bomb_takes_less_than_64_mib(megabytes):
    root = str(Path(__file__).resolve().parents[2])
    script = MEASURE.format(root=root, megabytes=megabytes)
    measured = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=root, check=False)
    assert measured.returncode == 0, measured.stderr
    print(f"a bomb of {megabytes} MiB: + {measured.stdout.strip()} MiB")
    assert int(measured.stdout) < 64
