"""The two programs of the benchmark, compiled once for all its tests."""

import os
from pathlib import Path

import pytest

from bench import bodies, programs


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `bin` and `bodies`, as the programs expect it."""
    folder = tmp_path_factory.mktemp("bench")
    try:
        programs.build(folder / "bin")
    except programs.CannotBuild as problem:
        if str(problem) != programs.HOW_TO_INSTALL or os.environ.get("CI"):
            pytest.fail(str(problem))
        pytest.skip(str(problem))
    bodies.write(folder / "bodies")
    return folder
