"""What every file here may use."""

import pytest

from gateway.upstream.http1 import Http1Transport
from gateway.upstream.httpx_transport import HttpxTransport
from tests.support import relays
from tests.support.grounds import either_ground, ground, grounds

__all__ = ["either_ground", "ground", "grounds", "transport"]

TRANSPORTS = {"http1": Http1Transport, "httpx": HttpxTransport}


@pytest.fixture(params=list(TRANSPORTS))
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which transport carries the requests of this test's relays."""
    monkeypatch.setattr(relays, "kind", TRANSPORTS[request.param])
    return str(request.param)
