"""One simulator and one gateway per server for all end-to-end tests of a worker."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_django import DjangoDbBlocker

from tests.e2e.fleet import AT_ONCE, Fleet, Served
from tests.support.processes import SimulatorProcess


@pytest.fixture(scope="package")
def fleet(
    tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path, django_db_blocker: DjangoDbBlocker
) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("e2e")
    fleet = Fleet(
        folder=folder,
        database=sqlite_template,
        simulator=SimulatorProcess(folder / "simulator", **AT_ONCE),
        unblock=django_db_blocker,
    )
    yield fleet
    fleet.stop()


@pytest.fixture(scope="package", params=["uvicorn", "daphne"])
def served(request: pytest.FixtureRequest, fleet: Fleet) -> Served:
    return fleet.served(request.param)


@pytest.fixture
def simulator(fleet: Fleet) -> SimulatorProcess:
    """At once, without faults, its counters at zero."""
    fleet.simulator.reset()
    fleet.simulator.set(**AT_ONCE)
    return fleet.simulator
