"""What every transport keeps is tested on each; `http1_only` marks what only one of them promises."""

from pathlib import Path

import pytest

from gateway.upstream.http1 import Http1Transport
from gateway.upstream.httpx_transport import HttpxTransport
from tests.gateway.upstream import calling

HERE = Path(__file__).parent
KINDS = {"http1": Http1Transport, "httpx": HttpxTransport}


@pytest.fixture(autouse=True, params=list(KINDS))
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which transport `calling.transport()` makes in this test."""
    monkeypatch.setattr(calling, "kind", KINDS[request.param])
    return str(request.param)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The second transport on the servers' loop alone: the first has shown that both loops will do."""
    items[:] = [
        item
        for item in items
        if HERE not in item.path.parents
        or not hasattr(item, "callspec")
        or (item.callspec.params.get("kind"), item.callspec.params.get("loop")) != ("httpx", "asyncio")
    ]
