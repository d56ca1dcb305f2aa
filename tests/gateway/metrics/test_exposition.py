"""What Prometheus reads from a real gateway, held against the records of the same requests."""

import json
import os
import re
import signal
import socket
import time
from collections import Counter, defaultdict
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from reports.core.cost import CLASSES, bill
from reports.core.record import EndRecord
from tests.support.processes import NO_TLS, GatewayProcess, StartGateway, StartSimulator, descendants

pytestmark = pytest.mark.e2e

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]

TOKEN = "metrics-token-of-thirty-two-characters"


def configuration(good: str, bad: str) -> str:
    price = {"input_price_per_million_usd": 0.15, "output_price_per_million_usd": 0.6}
    return json.dumps(
        {
            "providers": {
                "good": {"base_url": good, "dialect": "openai-chat", "models": {"m": {"model": "m"} | price}},
                "bad": {"base_url": bad, "dialect": "openai-chat", "models": {"m": {"model": "m"}}},
            },
            "models": {
                "chat": {"strategy": "static", "targets": [{"provider": "good", "model_ref": "m"}]},
                "shaky": {
                    "strategy": "failover",
                    "targets": [{"provider": "bad", "model_ref": "m"}, {"provider": "good", "model_ref": "m"}],
                },
            },
            "callers": {"tester": {"allow": ["*"]}},
        }
    )


def metrics_of(gateway: GatewayProcess) -> str:
    return gateway.address("metrics at") + "/metrics"


def read(url: str, **headers: str) -> Samples:
    answer = httpx.get(url, headers=headers, timeout=30, verify=NO_TLS)
    assert answer.status_code == 200
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def of(samples: Samples, name: str) -> dict[tuple[str, ...], float]:
    """The samples of one metric, by the values of their labels in the order of the labels' names."""
    return {tuple(value for _, value in labels): found for (n, labels), found in samples.items() if n == name}


def ends(gateway: GatewayProcess) -> list[EndRecord]:
    return [record for record in gateway.records() if isinstance(record, EndRecord)]


def ask(gateway: GatewayProcess, token: str, model: str, **body: Any) -> int:
    return httpx.post(
        f"{gateway.url}/v1/chat/completions",
        json={"model": model, "messages": [{"role": "user", "content": "hello"}]} | body,
        headers={"authorization": f"Bearer {token}"},
        timeout=30,
        verify=NO_TLS,
    ).status_code


@pytest.fixture
def origins(start_simulator: StartSimulator) -> tuple[str, str]:
    at_once: dict[str, Any] = {"latency_ms": 0, "jitter_ms": 0, "tokens_per_second": 0}
    good, bad = start_simulator(name="good", **at_once), start_simulator(name="bad", error_rate=1.0, **at_once)
    return good.base_url, bad.base_url


def agree(samples: Samples, records: list[EndRecord]) -> None:
    """Every figure that is made of records, computed from the records."""
    exchanges = Counter((r.endpoint, r.group or "none", r.outcome, f"{r.status // 100}xx") for r in records)
    assert of(samples, "pilotage_exchanges_total") == exchanges
    attempts = Counter((r.group, a.outcome, a.target) for r in records for a in r.attempts)
    assert of(samples, "pilotage_attempts_total") == attempts
    fallbacks = Counter((r.group, a.outcome) for r in records for a in r.attempts[:-1])
    assert of(samples, "pilotage_fallbacks_total") == fallbacks
    exclusions = Counter((r.group, e.stage) for r in records for e in r.exclusions)
    assert of(samples, "pilotage_exclusions_total") == exclusions
    refusals = Counter((r.error_code,) for r in records if r.outcome == "refused")
    assert of(samples, "pilotage_refusals_total") == refusals
    durations: dict[tuple[str, str], float] = defaultdict(float)
    for record in records:
        durations[record.group or "none", record.outcome] += record.duration_ms / 1000
    found = of(samples, "pilotage_exchange_duration_seconds_sum")
    assert {key: round(value, 6) for key, value in found.items()} == {k: round(v, 6) for k, v in durations.items()}
    counts = of(samples, "pilotage_exchange_duration_seconds_count")
    assert counts == Counter((r.group or "none", r.outcome) for r in records)
    firsts = Counter((r.group,) for r in records if r.first_content_ms is not None)
    assert of(samples, "pilotage_first_content_seconds_count") == firsts
    tokens: Counter[tuple[str, str, str]] = Counter()
    cost: Counter[tuple[str, str]] = Counter()
    for record in records:
        found_bill = bill(record)
        if record.attempts and record.target:
            cost[record.group, record.target] += found_bill.microdollars or 0
            for name in (*CLASSES, "reasoning"):
                if count := getattr(found_bill.tokens, name):
                    tokens[name, record.group, record.target] += count
    assert of(samples, "pilotage_tokens_total") == tokens
    dollars = of(samples, "pilotage_cost_usd_total")
    assert dollars.keys() == cost.keys()
    for key, micro in cost.items():
        assert dollars[key] == pytest.approx(micro / 1e6, abs=0.5e-6 * len(records))


def test_the_figures_agree_with_the_records_of_the_same_requests(
    start_gateway: StartGateway, origins: tuple[str, str]
) -> None:
    gateway = start_gateway(configuration(*origins), caller="tester", environment={"PILOTAGE_METRICS_PORT": "0"})
    token = gateway.known
    statuses = [ask(gateway, token, "chat", stream=stream) for stream in (False, True, False)]
    statuses += [ask(gateway, token, "shaky", stream=stream) for stream in (False, True) * 4]
    statuses += [
        ask(gateway, token, "nobody"),
        ask(gateway, "pil_wrong", "chat"),
        ask(gateway, token, "chat", messages=1),
    ]
    assert statuses == [200] * 11 + [404, 401, 400]
    gateway.until(lambda: len(ends(gateway)) == len(statuses), what="every record")
    records = ends(gateway)
    url = metrics_of(gateway)
    gateway.until(lambda: () in of(read(url), "pilotage_ingest_lag_seconds"), what="the database's answer")
    samples = read(url)
    agree(samples, records)
    gauges = {
        name: of(samples, f"pilotage_{name}")[()] for name in ("in_flight", "queued", "open_streams", "processes")
    }
    assert gauges == {"in_flight": 0, "queued": 0, "open_streams": 0, "processes": 1}
    assert of(samples, "pilotage_revision") == {(): 1}
    assert of(samples, "pilotage_spool_records_written_total") == {(): len(gateway.records())}
    spool = sum(path.stat().st_size for path in (gateway.data / "spool").glob("*.jsonl"))
    assert of(samples, "pilotage_spool_bytes") == of(samples, "pilotage_ingest_unread_bytes") == {(): spool}
    assert of(samples, "pilotage_ingest_lag_seconds")[()] > 0
    assert of(samples, "pilotage_configuration_age_seconds")[()] < 30
    # Five failures in a row: the failing target is out, and the figures say so.
    gateway.until(
        lambda: of(read(metrics_of(gateway)), "pilotage_target_out") == {("shaky", "excluded_consecutive", "bad/m"): 1},
        what="a target that is out",
    )


def test_a_stream_is_open_until_it_is_over(start_gateway: StartGateway, start_simulator: StartSimulator) -> None:
    slow = start_simulator(name="slow", latency_ms=0, tokens_per_second=20, output_tokens=4000)
    text, environment = configuration(slow.base_url, slow.base_url), {"PILOTAGE_METRICS_PORT": "0"}
    gateway = start_gateway(text, caller="tester", environment=environment)
    token = gateway.known

    def figures() -> tuple[float, float]:
        samples = read(metrics_of(gateway))
        return of(samples, "pilotage_open_streams")[()], of(samples, "pilotage_in_flight")[()]

    body = {"model": "chat", "stream": True, "messages": [{"role": "user", "content": "hello"}]}
    with httpx.stream(
        "POST",
        f"{gateway.url}/v1/chat/completions",
        json=body,
        headers={"authorization": f"Bearer {token}"},
        verify=NO_TLS,
    ) as answer:
        assert answer.status_code == 200
        received = answer.iter_lines()  # kept: an iterator that is dropped closes the stream
        next(received)
        assert figures() == (1, 1)
    gateway.until(lambda: figures() == (0, 0) and len(ends(gateway)) == 1, what="the end of the stream")
    agree(read(metrics_of(gateway)), ends(gateway))


def test_the_workers_of_one_server_answer_for_each_other_also_for_one_that_was_killed(
    start_gateway: StartGateway, origins: tuple[str, str]
) -> None:
    text, environment = configuration(*origins), {"PILOTAGE_METRICS_PORT": "0"}
    gateway = start_gateway(text, caller="tester", workers=2, environment=environment)
    token = gateway.known

    def asked() -> bool:
        """Four times, each on a connection of its own. Every answer has to be good."""
        assert [ask(gateway, token, model) for model in ("chat", "shaky") * 2] == [200] * 4
        return True

    def recording() -> set[str]:
        """The processes that have written a record."""
        return {path.name.split("-")[1] for path in (gateway.data / "spool").glob("*.jsonl")}

    def agreed() -> bool:
        try:
            agree(read(metrics_of(gateway)), ends(gateway))
        except AssertionError:
            return False
        return True

    gateway.until(lambda: asked() and len(recording()) == 2, what="answers of both workers")
    gateway.until(agreed, what="the figures of both workers", seconds=10)
    # A worker that was held up for seconds does not count until it has told of itself again.
    gateway.until(
        lambda: {of(read(metrics_of(gateway)), "pilotage_processes")[()] for _ in range(4)} == {2},
        what="both workers counted",
        seconds=10,
    )
    victim = next(pid for pid in descendants(gateway.pid) if str(pid) in recording())
    time.sleep(2)  # what a worker counted in the last second dies with it
    os.kill(victim, signal.SIGKILL)
    gateway.until(lambda: victim not in descendants(gateway.pid), what="its end")
    gateway.until(lambda: len(descendants(gateway.pid)) == 2, what="another in its place")
    gateway.until(lambda: asked() and len(recording()) == 3, what="answers of the new worker")
    gateway.until(agreed, what="the figures of all three", seconds=10)


def test_the_token_opens_the_metrics_on_both_ports(start_gateway: StartGateway) -> None:
    gateway = start_gateway(None, environment={"PILOTAGE_METRICS_PORT": "0", "PILOTAGE_METRICS_TOKEN": TOKEN})
    wrong = [b"", TOKEN.encode(), b"Bearer", f"Bearer {TOKEN}x".encode(), f"Basic {TOKEN}".encode(), b"Bearer \xc3\xa9"]
    for url in (metrics_of(gateway), f"{gateway.url}/metrics"):
        statuses = [httpx.get(url, headers=[(b"authorization", given)], verify=NO_TLS).status_code for given in wrong]
        assert statuses == [401] * len(wrong)
        assert of(read(url, authorization=f"bearer {TOKEN}"), "pilotage_processes") == {(): 1}


def test_without_settings_there_are_no_metrics(start_gateway: StartGateway) -> None:
    gateway = start_gateway(None)
    assert httpx.get(f"{gateway.url}/metrics", verify=NO_TLS).status_code == 404
    assert "metrics at" not in gateway.output()


def test_a_port_of_the_metrics_that_is_taken_is_named(start_gateway: StartGateway) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = re.escape(
            f"the metrics (PILOTAGE_METRICS_HOST, PILOTAGE_METRICS_PORT): port {port} on 127.0.0.1 is already in use"
        )
        with pytest.raises(AssertionError, match=said):
            start_gateway(None, environment={"PILOTAGE_METRICS_PORT": str(port)})


def test_the_listener_serves_nothing_else_and_outlives_clients_that_stall(start_gateway: StartGateway) -> None:
    gateway = start_gateway(None, environment={"PILOTAGE_METRICS_PORT": "0"})
    url = metrics_of(gateway)
    assert httpx.get(url.replace("/metrics", "/admin/"), verify=NO_TLS).status_code == 404
    assert httpx.post(url, content=b"x", verify=NO_TLS).status_code == 405
    host, port = url.removeprefix("http://").removesuffix("/metrics").split(":")
    stalled = [socket.create_connection((host, int(port))) for _ in range(20)]
    assert stalled[-1].recv(1) == b""  # hung up on, while the first ones still have their time
    stalled[0].setblocking(False)
    with pytest.raises(BlockingIOError):
        stalled[0].recv(1)

    def answers() -> bool:
        try:
            return httpx.get(url, timeout=2, verify=NO_TLS).status_code == 200
        except httpx.TransportError:
            return False

    gateway.until(answers, what="an answer", seconds=30)
    for client in stalled:
        client.close()
