"""Real databases, migrated and empty, under the one Django of the tests: for what must hold on SQLite and PostgreSQL."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from django.core.management import call_command
from django.db import connections
from pytest_django import DjangoDbBlocker

from gateway import env
from gateway.settings import database_settings
from tests.support.postgres import PostgresCluster


@contextlib.contextmanager
def serving_from(url: str) -> Iterator[None]:
    """Inside, every thread's `default` connection goes to the database of `url`."""
    before = connections.settings["default"]
    fresh = {"default": database_settings(env.DatabaseUrl().read(url), wait_seconds=5)}
    connections.settings["default"] = connections.configure_settings(fresh)["default"]
    kept = connections["default"]
    del connections["default"]
    try:
        yield
    finally:
        connections["default"].close()
        connections["default"] = kept
        connections.settings["default"] = before


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory, django_db_blocker: DjangoDbBlocker) -> Path:
    path = tmp_path_factory.mktemp("sqlite") / "template.sqlite3"
    with django_db_blocker.unblock(), serving_from(f"sqlite:///{path}"):
        call_command("migrate", verbosity=0)
    return path


@pytest.fixture(scope="session")
def postgres_template(postgres: PostgresCluster, django_db_blocker: DjangoDbBlocker) -> str:
    url = postgres.create_database("template_of_tests")
    with django_db_blocker.unblock(), serving_from(url):
        call_command("migrate", verbosity=0)
    return "template_of_tests"


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    path = tmp_path / "pilotage.sqlite3"
    shutil.copy(sqlite_template, path)
    return f"sqlite:///{path}"


@pytest.fixture
def postgres_url(postgres: PostgresCluster, postgres_template: str) -> str:
    with psycopg.connect(postgres.url("postgres"), autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS one_test WITH (FORCE)")
        connection.execute(f"CREATE DATABASE one_test TEMPLATE {postgres_template}".encode())
    return postgres.url("one_test")


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, django_db_blocker: DjangoDbBlocker) -> Iterator[str]:
    """The URL of a migrated, empty database that Django's `default` goes to during the test, once for each kind."""
    url: str = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url")
    with django_db_blocker.unblock(), serving_from(url):
        yield url
