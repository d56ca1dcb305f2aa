"""A Django of its own for the tests: a fresh data directory, and nothing of the developer's environment."""

import os
import tempfile

if "PYTEST_XDIST_WORKER" not in os.environ:  # a worker inherits what its parent set here
    for name in [name for name in os.environ if name.startswith("PILOTAGE_")]:
        del os.environ[name]
    os.environ.pop("DATABASE_URL", None)
    os.environ.pop("REDIS_URL", None)
    os.environ["PILOTAGE_DATA_DIR"] = tempfile.mkdtemp(prefix="pilotage-tests-")
    os.environ["DJANGO_SETTINGS_MODULE"] = "gateway.settings"

import django
import pytest

django.setup()

from django.conf import settings  # noqa: E402 - Django is set up only now

settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # a slow one costs a second a login

from tests.support.databases import (  # noqa: E402 - models can be imported only now
    database,
    postgres_template,
    postgres_url,
    sqlite_template,
    sqlite_url,
)
from tests.support.postgres import postgres  # noqa: E402
from tests.support.processes import start_gateway, start_simulator  # noqa: E402

__all__ = [
    "database",
    "postgres",
    "postgres_template",
    "postgres_url",
    "sqlite_template",
    "sqlite_url",
    "start_gateway",
    "start_simulator",
]

SHARED = {"fleet", "grounds"}
"""Fixtures whose processes the tests of a package share."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a package, the files that share processes come last: these start late and idle beside no other test."""
    sharing = {item.path for item in items if SHARED.intersection(getattr(item, "fixturenames", ()))}
    packages = {item.path.parent: None for item in items}
    turns = {package: turn for turn, package in enumerate(packages)}
    items.sort(key=lambda item: (turns[item.path.parent], item.path in sharing))
