"""What is known afterwards when gateways are killed, and when the database is away, under load."""

import asyncio
import contextlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.db.models import Count, Sum
from pytest_django import DjangoDbBlocker

from accounts import tokens
from accounts.models import Caller
from gateway import config, publish
from reports.core.record import EndRecord
from reports.ingest import Ingest
from reports.models import Attempt, Exchange, IngestCount, OpenExchange
from tests.support.databases import serving_from
from tests.support.load import Outcome, clients
from tests.support.postgres import PostgresCluster
from tests.support.processes import GatewayProcess, Process, SimulatorProcess, StartGateway, StartSimulator

pytestmark = pytest.mark.e2e


def configuration(simulator: SimulatorProcess) -> str:
    provider = {"base_url": simulator.base_url, "dialect": "openai-chat"}
    prices = {"input_price_per_million_usd": 2, "output_price_per_million_usd": 8}
    group = {"strategy": "static", "targets": [{"provider": "p", "model": "m", **prices}]}
    return json.dumps({"providers": {"p": provider}, "models": {"g": group}, "callers": {"tester": {"allow": ["g"]}}})


def address(gateway: GatewayProcess) -> tuple[str, int]:
    host, port = gateway.url.removeprefix("http://").split(":")
    return host, int(port)


def asked_until_killed(gateway: GatewayProcess, token: str, *, answers: int) -> int:
    """Twelve clients ask in a row; with so many answers given, the gateway is killed. The number of good answers."""

    async def main() -> int:
        async with clients(address(gateway), {"tester": token}) as crowd:
            enough = asyncio.Event()

            async def client() -> None:
                with contextlib.suppress(OSError):
                    while not enough.is_set() or gateway.running:
                        await crowd.ask("tester")
                        if len(crowd.outcomes) >= answers:
                            enough.set()

            asking = [asyncio.ensure_future(client()) for _ in range(12)]
            await enough.wait()
            gateway.kill()
            await asyncio.gather(*asking)
            return sum(outcome.status == 200 for outcome in crowd.outcomes)

    return asyncio.run(main())


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=[pytest.mark.full, pytest.mark.timeout(900)])])
def test_killed_under_load_a_gateway_loses_no_record_of_a_request_whose_upstream_call_had_begun(
    start_simulator: StartSimulator, start_gateway: StartGateway, kills: int
) -> None:
    simulator = start_simulator(name="sim", latency_ms=20, jitter_ms=10, output_tokens=8, tokens_per_second=0)
    first = start_gateway(configuration(simulator), name="gateway")
    token = first.until_accepted(first.token())
    answered = 0
    gateway = first
    for kill in range(kills):
        if kill:
            gateway = start_gateway(None, name="gateway")
            gateway.until(gateway.ready, what="readiness")
            gateway.until_accepted(token)
        answered += asked_until_killed(gateway, token, answers=100)
    begun = {record.id for record in first.records()}
    ended = {record.id for record in first.records() if isinstance(record, EndRecord)}
    calls = simulator.counters()["requests"]
    assert answered >= 100 * kills
    assert len(begun) >= calls
    assert len(begun) >= answered  # an answer is with the client before its end is in the spool
    with first.open_database():
        Ingest(first.data / "spool").once()
        rows = dict(Exchange.objects.values_list("request_id", "outcome"))
        assert rows.keys() == begun
        assert {id for id, outcome in rows.items() if outcome != "aborted"} == ended
        assert len(begun - ended) > 0
        assert OpenExchange.objects.count() == 0
        assert dict(IngestCount.objects.values_list("name", "count")) == {
            "ended": len(ended),
            "aborted": len(begun - ended),
        }
    assert list((first.data / "spool").glob("*.jsonl")) == []


@pytest.mark.parametrize(
    ("before", "away", "after", "per_second"),
    [(1.0, 2.0, 1.0, 40.0), pytest.param(10.0, 300.0, 10.0, 40.0, marks=[pytest.mark.full, pytest.mark.timeout(900)])],
)
def test_with_its_database_stopped_under_load_the_gateway_notices_nothing_and_the_tables_are_exact_afterwards(
    start_simulator: StartSimulator,
    start_gateway: StartGateway,
    postgres: PostgresCluster,
    postgres_url: str,
    tmp_path: Path,
    django_db_blocker: DjangoDbBlocker,
    before: float,
    away: float,
    after: float,
    per_second: float,
) -> None:
    simulator = start_simulator(name="sim", latency_ms=5, jitter_ms=0, output_tokens=8, tokens_per_second=0)
    with django_db_blocker.unblock(), serving_from(postgres_url):
        publish.import_configuration(config.load(configuration(simulator).encode()), author="test")
        _, token = tokens.issue(Caller.objects.get(name="tester"))
        gateway = start_gateway(None, environment={"DATABASE_URL": postgres_url})
        gateway.until(gateway.ready, what="readiness")
        gateway.until_accepted(token)
        ingest = Process(
            tmp_path / "ingest",
            "ingest",
            "--follow",
            environment={"DATABASE_URL": postgres_url, "PILOTAGE_DATA_DIR": str(gateway.data)},
        )
        try:
            ingest.until(lambda: "Ingest reads" in ingest.output(), what="ingest")
            connection.close()

            async def main() -> list[Outcome]:
                async with clients(address(gateway), {"tester": token}) as crowd:
                    seconds = before + away + after
                    load = asyncio.ensure_future(crowd.steadily("tester", per_second=per_second, seconds=seconds))
                    await asyncio.sleep(before)
                    await asyncio.to_thread(postgres.stop)
                    try:
                        await asyncio.sleep(away)
                    finally:
                        await asyncio.to_thread(postgres.start)
                    return await load

            outcomes = asyncio.run(main())
            assert Counter(outcome.status for outcome in outcomes) == {200: len(outcomes)}
            ingest.until(lambda: Exchange.objects.count() >= len(outcomes), what="every row", seconds=120)
            assert gateway.stop() == 0
            ingest.until(lambda: not list((gateway.data / "spool").glob("*.jsonl")), what="the end of the spool")
            assert ingest.stop() == 0
            assert exact() == {
                "exchanges": len(outcomes),
                "ids": len(outcomes),
                "outcomes": {"success": len(outcomes)},
                "attempts": len(outcomes),
                "cost": (8 * 2 + 8 * 8) * len(outcomes),  # cached or not, as the cache has no price of its own
                "counted": {"ended": len(outcomes)},
                "open": 0,
            }
        finally:
            ingest.kill()


def exact() -> dict[str, Any]:
    by_outcome = Exchange.objects.values_list("outcome").annotate(number=Count("pk"))
    return {
        "exchanges": Exchange.objects.count(),
        "ids": Exchange.objects.values("request_id").distinct().count(),
        "outcomes": dict(by_outcome),
        "attempts": Attempt.objects.count(),
        "cost": Exchange.objects.aggregate(all=Sum("cost_microdollars"))["all"],
        "counted": dict(IngestCount.objects.values_list("name", "count")),
        "open": OpenExchange.objects.count(),
    }
