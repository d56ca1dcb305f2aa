"""What every target goes through, and one of these measured."""

import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.machine import Cores, busy_seconds, cpu_seconds, memory_mib
from bench.programs import Upstream, load


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    name: str
    body: str
    in_flight: int
    seconds: float = 5.0
    stream: bool = False
    requests: int | None = None
    """Stops there, however long it takes."""
    target: str | None = None
    """Measured for this one alone."""


SERIES: Final = (
    Series(name="unary-1", body="small", in_flight=1, seconds=4.0),
    Series(name="unary-16", body="small", in_flight=16),
    Series(name="unary-64", body="small", in_flight=64, seconds=6.0),
    Series(name="1k", body="1k", in_flight=8),
    Series(name="50k", body="50k", in_flight=8),
    Series(name="1m", body="1m", in_flight=8),
    Series(name="stream-64", body="stream", in_flight=64, stream=True),
    Series(name="paced-64", body="paced", in_flight=64, stream=True),
)

ENDURANCE: Final = Series(
    name="endurance", body="small", in_flight=64, seconds=900.0, requests=100_000, target="pilotage"
)
"""Does memory grow with conversations that never come back? At LiteLLM's pace this takes a quarter of an hour."""

WARM_UP: Final = (
    Series(name="warm-up", body="small", in_flight=8, seconds=3.0),
    Series(name="warm-up-stream", body="stream", in_flight=4, seconds=1.0, stream=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A target that answers."""

    port: int
    headers: Sequence[str]
    pid: int | None
    """`None`: it is the upstream itself."""


def measure(series: Series, served: Served, upstream: Upstream, *, out: Path, cores: Cores) -> dict[str, Any]:
    """What the load generator saw, and what it cost.

    `cpu_us_per_request`, `cpu_us_per_event`: of the gateway alone. `memory_mib`: of the gateway, afterwards. `others`:
    how many cores were busy with something else meanwhile; above 0.1 the figures of time are disturbed.
    `upstream_requests`: more than `ok` means that the gateway asked again.
    """
    before = _Usage.now(served, upstream)
    seen = load(
        out,
        cores,
        port=served.port,
        headers=served.headers,
        body=series.body,
        in_flight=series.in_flight,
        seconds=series.seconds,
        requests=series.requests,
        stream=series.stream,
    )
    after = _Usage.now(served, upstream)
    ours = (after.gateway - before.gateway) + (after.upstream - before.upstream) + (after.load - before.load)
    wall = after.at - before.at
    seen |= {
        "others": round(max(0.0, after.busy - before.busy - ours) / wall, 2),
        "upstream_requests": after.requests - before.requests,
    }
    if served.pid is None:
        return seen
    spent_us = (after.gateway - before.gateway) * 1e6
    seen |= {
        "busy": round((after.gateway - before.gateway) / wall, 3),
        "memory_mib": round(memory_mib(served.pid), 1),
        "cpu_us_per_request": round(spent_us / seen["ok"], 2) if seen["ok"] else None,
    }
    if series.stream:
        seen["cpu_us_per_event"] = round(spent_us / seen["events"], 3) if seen["events"] else None
    return seen


@dataclass(frozen=True, slots=True, kw_only=True)
class _Usage:
    """Seconds of CPU until now."""

    at: float
    gateway: float
    upstream: float
    load: float
    busy: float
    requests: int

    @classmethod
    def now(cls, served: Served, upstream: Upstream) -> "_Usage":
        waited_for = resource.getrusage(resource.RUSAGE_CHILDREN)
        return cls(
            at=time.monotonic(),
            gateway=0.0 if served.pid is None else cpu_seconds(served.pid),
            upstream=cpu_seconds(upstream.pid),
            load=waited_for.ru_utime + waited_for.ru_stime,
            busy=busy_seconds(),
            requests=upstream.requests(),
        )
