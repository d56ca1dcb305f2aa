"""The API over both databases, with its requests not counted yet."""

from collections.abc import Iterator

import pytest
from django.core.cache import cache

from tests.reports.api.ground import Ground, happened, prepare


@pytest.fixture
def ground(database: str) -> Iterator[Ground]:
    cache.clear()
    yield prepare()
    cache.clear()


@pytest.fixture
def busy(ground: Ground) -> Ground:
    happened()
    return ground
