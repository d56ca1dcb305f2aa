"""Starting, changing and stopping real gateways; what the refusals of a start look like is in `tests/gateway/test_serve.py`."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from accounts import tokens
from accounts.models import Token
from reports.core.record import EndRecord, IntentRecord
from tests.e2e import wire
from tests.support.processes import NO_TLS, ROOT, GatewayProcess, SimulatorProcess, StartGateway

pytestmark = pytest.mark.e2e

on_both_servers = pytest.mark.parametrize("server", ["uvicorn", "daphne"])

FOLLOWS_WITHIN_S = 2.0

PROVIDER_KEY = "provider-key-from-the-environment"


def configuration(simulator: SimulatorProcess, *names: str) -> str:
    groups = {name: {"strategy": "static", "targets": [{"provider": "p", "model": name}]} for name in names}
    providers = {"p": {"base_url": simulator.base_url, "dialect": "openai-chat", "api_key_env": "PROVIDER_KEY"}}
    return json.dumps({"providers": providers, "models": groups, "callers": {"tester": {"allow": ["*"]}}})


def started(start: StartGateway, simulator: SimulatorProcess, *names: str, **how: Any) -> tuple[GatewayProcess, str]:
    how["environment"] = {"PROVIDER_KEY": PROVIDER_KEY} | how.get("environment", {})
    gateway = start(configuration(simulator, *names), **how)
    return gateway, gateway.until_accepted(gateway.token())


def command(gateway: GatewayProcess, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """A `manage.py` command in a process of its own, on this gateway's data directory."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("PILOTAGE_")}
    own = {"PILOTAGE_DATA_DIR": str(gateway.data), "PILOTAGE_TOKEN_PEPPER": pepper()}
    return subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT,
        env=inherited | own,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def pepper() -> str:
    return (Path(os.environ["PILOTAGE_DATA_DIR"]) / "token_pepper").read_text().strip()


def seconds_until(condition: Callable[[], bool], gateway: GatewayProcess, *, what: str) -> float:
    began = time.monotonic()
    gateway.until(condition, what=what, seconds=10)
    return time.monotonic() - began


def address(gateway: GatewayProcess) -> tuple[str, int]:
    host, port = gateway.url.removeprefix("http://").split(":")
    return host, int(port)


def get(gateway: GatewayProcess, path: str, token: str = "") -> wire.Reply:
    return wire.request(address(gateway), "GET", path, headers=[("Authorization", f"Bearer {token}")])


def names(gateway: GatewayProcess, token: str) -> list[str]:
    return [model["id"] for model in get(gateway, "/v1/models", token).json["data"]]


def chat(gateway: GatewayProcess, token: str, **more: Any) -> wire.Reply:
    body = {"model": "a", "messages": [{"role": "user", "content": "Hello"}]} | more
    headers = [("Authorization", f"Bearer {token}")]
    return wire.request(address(gateway), "POST", "/v1/chat/completions", headers=headers, body=body)


class Streaming:
    """A stream under way on a connection of its own."""

    def __init__(self, gateway: GatewayProcess, token: str) -> None:
        self.connection = socket.create_connection(address(gateway), 20)
        body = json.dumps({"model": "a", "stream": True, "messages": [{"role": "user", "content": "Hello"}]}).encode()
        fields = [("Host", "x"), ("Content-Length", str(len(body))), ("Authorization", f"Bearer {token}")]
        self.connection.sendall(wire.head("POST", "/v1/chat/completions", fields) + body)
        self.got = self.connection.recv(65_536)
        if not self.got.startswith(b"HTTP/1.1 200"):
            self.connection.close()
            raise AssertionError(self.got)

    def rest(self) -> bytes:
        """Everything up to the end of the connection."""
        try:
            while data := self.connection.recv(65_536):
                self.got += data
        except ConnectionResetError:
            pass
        self.connection.close()
        return self.got


# Changes.


@on_both_servers
def test_a_configuration_imported_elsewhere_serves_within_two_seconds(
    server: str, simulator: SimulatorProcess, start_gateway: StartGateway, tmp_path: Path
) -> None:
    gateway, token = started(start_gateway, simulator, "a", server=server)
    assert (names(gateway, token), chat(gateway, token, model="b").status) == (["a"], 404)
    file = tmp_path / "new.yaml"
    file.write_text(configuration(simulator, "a", "b"))
    done = command(gateway, "importconfig", str(file))
    assert (done.returncode, "published revision 2" in done.stdout) == (0, True), done
    took = seconds_until(lambda: names(gateway, token) == ["a", "b"], gateway, what="the new group")
    assert took < FOLLOWS_WITHIN_S
    assert chat(gateway, token, model="b").status == 200
    assert get(gateway, "/readyz").json == {"status": "ready", "revision": 2}
    assert simulator.last()["headers"][0][0] == "host"
    assert dict(simulator.last()["headers"])["authorization"] == f"Bearer {PROVIDER_KEY}"


def test_a_file_with_problems_changes_nothing(
    simulator: SimulatorProcess, start_gateway: StartGateway, tmp_path: Path
) -> None:
    gateway, token = started(start_gateway, simulator, "a")
    file = tmp_path / "bad.yaml"
    file.write_text(configuration(simulator, "a", "b").replace('"static"', '"statik"'))
    done = command(gateway, "importconfig", str(file))
    assert done.returncode == 1
    assert done.stderr.count("did you mean 'static'?") == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert get(gateway, "/readyz").json["revision"] == 1
    assert names(gateway, token) == ["a"]


@on_both_servers
def test_a_token_made_elsewhere_is_known_and_a_revoked_one_refused_within_two_seconds(
    server: str, simulator: SimulatorProcess, start_gateway: StartGateway
) -> None:
    gateway, token = started(start_gateway, simulator, "a", "b", server=server)
    done = command(gateway, "createtoken", "tester", "--groups", "b", "--expires", "30d")
    assert (done.returncode, done.stderr) == (0, "")
    narrow = done.stdout.removesuffix("\n")
    assert narrow.isascii()
    assert narrow.startswith("plt_")
    took = seconds_until(lambda: get(gateway, "/v1/models", narrow).status == 200, gateway, what="the new token")
    assert took < FOLLOWS_WITHIN_S
    assert (names(gateway, narrow), chat(gateway, narrow).status) == (["b"], 403)

    simulator.set(tokens_per_second=20, output_tokens=60)
    stream = Streaming(gateway, token)
    with gateway.open_database():
        assert tokens.revoke(Token.objects.get(shown=token[:12]))
    took = seconds_until(lambda: get(gateway, "/v1/models", token).status == 401, gateway, what="the refusal")
    assert took < FOLLOWS_WITHIN_S
    assert get(gateway, "/v1/models", narrow).status == 200
    stream.connection.settimeout(10)
    while b"data: [DONE]" not in stream.got:  # what runs goes on
        data = stream.connection.recv(65_536)
        assert data, stream.got[-200:]
        stream.got += data
    stream.connection.close()


# Starting.


@on_both_servers
def test_a_process_starts_and_serves_while_its_database_is_away(
    server: str, simulator: SimulatorProcess, start_gateway: StartGateway, tmp_path: Path
) -> None:
    first, token = started(start_gateway, simulator, "a", name="kept")
    first.until(lambda: len(list((first.data / "last_good").iterdir())) == 2, what="both files", seconds=5)
    assert first.stop() == 0
    away = {"DATABASE_URL": f"sqlite:///{tmp_path}/gone/pilotage.sqlite3", "PROVIDER_KEY": PROVIDER_KEY}
    second = start_gateway(None, name="kept", server=server, environment=away)
    second.until(second.ready, what="readiness", seconds=15)
    answer = chat(second, token)
    assert (answer.status, get(second, "/v1/models", "plt_wrong").status) == (200, 401)
    assert dict(simulator.last()["headers"])["authorization"] == f"Bearer {PROVIDER_KEY}"
    assert second.running
    assert "the database does not answer" in second.output()


# Stopping.


def test_a_stop_is_seen_at_once_and_running_streams_end_whole(
    simulator: SimulatorProcess, start_gateway: StartGateway
) -> None:
    gateway, token = started(start_gateway, simulator, "a")
    simulator.set(tokens_per_second=20, output_tokens=40)
    streams = [Streaming(gateway, token) for _ in range(5)]
    seen: list[object] = []
    with httpx.Client(verify=NO_TLS) as balancer:
        assert balancer.get(f"{gateway.url}/readyz").status_code == 200
        gateway.signal(signal.SIGTERM)
        by = time.monotonic() + 1.0
        while time.monotonic() < by:
            try:
                seen.append(balancer.get(f"{gateway.url}/readyz").status_code)
            except httpx.TransportError as error:
                seen.append(type(error))
            time.sleep(0.02)
    assert seen.count(200) <= 1  # one that was under way with the signal
    assert 200 not in seen[-20:]
    for stream in streams:
        assert stream.rest().endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert gateway.wait() == 0
    assert [(line["outcome"], line["output_tokens"]) for line in gateway.lines()] == [("success", 40)] * 5
    assert len(gateway.records()) == 10


def test_daphne_ends_streams_at_once_and_never_as_if_they_were_whole(
    simulator: SimulatorProcess, start_gateway: StartGateway
) -> None:
    gateway, token = started(start_gateway, simulator, "a", server="daphne")
    simulator.set(tokens_per_second=20, output_tokens=200)
    streams = [Streaming(gateway, token) for _ in range(3)]
    gateway.signal(signal.SIGTERM)
    for stream in streams:
        got = stream.rest()
        assert b"[DONE]" not in got
        assert b'"code":"gateway_shutting_down"' in got[got.rindex(b"data: ") :]
    assert gateway.wait() == 0
    ends = [record for record in gateway.records() if isinstance(record, EndRecord)]
    assert [record.error_code for record in ends] == ["gateway_shutting_down"] * 3


def test_what_was_begun_is_on_disk_when_the_process_is_killed(
    simulator: SimulatorProcess, start_gateway: StartGateway
) -> None:
    gateway, token = started(start_gateway, simulator, "a")
    ended = chat(gateway, token).id
    gateway.until(lambda: len(gateway.records()) == 2, what="both records", seconds=5)
    simulator.set(tokens_per_second=5, output_tokens=1000)
    stream = Streaming(gateway, token)
    gateway.kill()
    assert b"[DONE]" not in stream.rest()
    records = gateway.records()
    assert [type(record) for record in records] == [IntentRecord, EndRecord, IntentRecord]
    assert (records[0].id, records[1].id) == (ended, ended)
    again = start_gateway(None, name=gateway.folder.name, environment={"PROVIDER_KEY": PROVIDER_KEY})
    again.until(again.ready, what="readiness", seconds=15)
    simulator.set(tokens_per_second=0, output_tokens=24)
    assert chat(again, token).status == 200
    again.until(lambda: len(again.records()) == 5, what="two records more", seconds=5)
    assert again.records()[:3] == records  # the old file is left as it was


def test_every_exchange_leaves_its_intent_before_its_end(
    simulator: SimulatorProcess, start_gateway: StartGateway
) -> None:
    gateway, token = started(start_gateway, simulator, "a")
    outcomes = []
    for behaviour, stream in (
        ({}, False),
        ({}, True),
        ({"error_rate": 1, "status": 500}, False),
        ({"error_rate": 1, "status": 400}, True),
        ({"error_rate": 0, "cut_rate": 1}, False),
        ({"error_rate": 0, "cut_rate": 1}, True),
    ):
        simulator.set(**behaviour)
        outcomes.append(chat(gateway, token, stream=stream).status)
    assert outcomes == [200, 200, 500, 400, 502, 200]
    assert chat(gateway, token, model="unknown").status == 404
    gateway.until(lambda: len(gateway.records()) == 13, what="all records", seconds=5)
    records = gateway.records()
    told: dict[str, list[str]] = {}
    for record in records:
        told.setdefault(record.id, []).append("intent" if isinstance(record, IntentRecord) else record.outcome)
    assert list(told.values()) == [
        ["intent", "success"],
        ["intent", "success"],
        ["intent", "upstream_failed"],
        ["intent", "refused"],
        ["intent", "upstream_failed"],
        ["intent", "upstream_truncated"],
        ["refused"],  # before a target was chosen
    ]
    gateway.until(lambda: len(gateway.lines()) == len(told), what="all lines", seconds=5)
    assert [line["id"] for line in gateway.lines()] == list(told)
