"""`manage.py serve` as a real process on both servers, and the commands around it."""

import json
import os
import shutil
import signal
import socket
from pathlib import Path

import httpx
import pytest

from gateway.serving import PortTaken, listen
from tests.support.processes import (
    NO_TLS,
    GatewayProcess,
    Process,
    SimulatorProcess,
    StartGateway,
    StartSimulator,
    descendants,
    is_alive,
)

pytestmark = pytest.mark.e2e

CHAT = {"model": "g", "messages": [{"role": "user", "content": "Hello"}]}

on_both_servers = pytest.mark.parametrize("server", ["uvicorn", "daphne"])


def configuration(simulator: SimulatorProcess) -> str:
    return f"""
providers:
  p: {{base_url: "{simulator.base_url}", dialect: openai-chat}}
models:
  g:
    strategy: static
    targets: [{{provider: p, model: m}}]
callers:
  tester: {{allow: [g]}}
"""


def served(gateway: GatewayProcess) -> dict[str, str]:
    return {"authorization": f"Bearer {gateway.known}"}


@on_both_servers
def test_a_request_is_answered_logged_and_recorded(
    server: str, start_simulator: StartSimulator, start_gateway: StartGateway
) -> None:
    simulator = start_simulator(name="s", latency_ms=0, jitter_ms=0, tokens_per_second=0)
    gateway = start_gateway(configuration(simulator), server=server, caller="tester")
    answer = httpx.post(f"{gateway.url}/v1/chat/completions", json=CHAT, headers=served(gateway), verify=NO_TLS)
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["content"].startswith("Simulated answer from s:")
    id = answer.headers["x-request-id"]
    gateway.until(lambda: bool(gateway.lines()), what="a log line")
    assert [(line["id"], line["status"]) for line in gateway.lines()] == [(id, 200)]
    assert [(type(record).__name__, record.id) for record in gateway.records()] == [
        ("IntentRecord", id),
        ("EndRecord", id),
    ]
    assert gateway.stop() == 0
    files = [path for path in gateway.data.rglob("*") if path.is_file() and path.parent.name == "spool"]
    assert [oct(path.stat().st_mode & 0o777) for path in files] == ["0o600"]


@on_both_servers
def test_a_root_path_from_the_client_is_refused(
    server: str, start_simulator: StartSimulator, start_gateway: StartGateway
) -> None:
    gateway = start_gateway(configuration(start_simulator()), server=server)
    answer = httpx.get(f"{gateway.url}/admin/login/", headers={"daphne-root-path": "/evil"}, verify=NO_TLS)
    if server == "daphne":
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "root_path_refused")
    else:  # uvicorn gives the header no meaning
        assert answer.status_code == 200
        assert "/evil" not in answer.text


def test_a_stop_lets_running_streams_finish_and_takes_no_new_connection(
    start_simulator: StartSimulator, start_gateway: StartGateway
) -> None:
    simulator = start_simulator(latency_ms=0, jitter_ms=0, tokens_per_second=20, output_tokens=40)
    gateway = start_gateway(configuration(simulator), caller="tester")
    headers = served(gateway)
    with httpx.stream(
        "POST", f"{gateway.url}/v1/chat/completions", json=CHAT | {"stream": True}, headers=headers, verify=NO_TLS
    ) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        gateway.signal(signal.SIGTERM)
        gateway.until(lambda: "draining" in gateway.output(), what="the drain")
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{gateway.url}/readyz", verify=NO_TLS)
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert gateway.wait() == 0
    assert gateway.lines()[-1]["outcome"] == "success"


def test_a_stream_that_outlives_the_drain_ends_with_an_error_event(
    start_simulator: StartSimulator, start_gateway: StartGateway
) -> None:
    simulator = start_simulator(latency_ms=0, jitter_ms=0, tokens_per_second=5, output_tokens=1000)
    gateway = start_gateway(configuration(simulator), caller="tester", environment={"PILOTAGE_DRAIN_SECONDS": "0.5"})
    headers = served(gateway)
    with httpx.stream(
        "POST", f"{gateway.url}/v1/chat/completions", json=CHAT | {"stream": True}, headers=headers, verify=NO_TLS
    ) as answer:
        lines = answer.iter_lines()
        seen = [next(lines)]
        gateway.signal(signal.SIGTERM)
        with pytest.raises(httpx.RemoteProtocolError, match="incomplete"):
            seen.extend(line for line in lines if line)
    assert json.loads(seen[-1].removeprefix("data: "))["error"]["code"] == "gateway_shutting_down"
    assert gateway.wait() == 0
    assert [type(record).__name__ for record in gateway.records()] == ["IntentRecord", "EndRecord"]


def test_an_answer_that_has_not_begun_is_given_whole_after_the_signal(
    start_simulator: StartSimulator, start_gateway: StartGateway
) -> None:
    simulator = start_simulator(latency_ms=600, jitter_ms=0, tokens_per_second=0)
    gateway = start_gateway(configuration(simulator), caller="tester")
    headers = served(gateway)
    body = json.dumps(CHAT).encode()
    host, port = gateway.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nAuthorization: %s\r\n\r\n%s"
            % (len(body), headers["authorization"].encode(), body)
        )
        gateway.until(lambda: simulator.counters()["in_flight"] == 1, what="the upstream call")
        gateway.signal(signal.SIGTERM)
        gateway.until(lambda: "draining" in gateway.output(), what="the drain")
        answer = b""
        while data := connection.recv(65536):
            answer += data
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert gateway.wait() == 0


def test_workers_share_a_port_and_a_dead_one_is_replaced(
    start_simulator: StartSimulator, start_gateway: StartGateway
) -> None:
    simulator = start_simulator(latency_ms=0, jitter_ms=0, tokens_per_second=0)
    gateway = start_gateway(configuration(simulator), workers=2, caller="tester")
    headers = served(gateway)

    def workers() -> set[str]:
        return set(Path(f"/proc/{gateway.pid}/task/{gateway.pid}/children").read_text().split())

    def ask(count: int) -> set[int]:
        answers = [
            httpx.post(f"{gateway.url}/v1/chat/completions", json=CHAT, headers=headers, verify=NO_TLS)
            for _ in range(count)
        ]
        return {answer.status_code for answer in answers}

    def spools() -> set[str]:
        return {path.name.split("-")[1] for path in (gateway.data / "spool").glob("*.jsonl")}

    before = workers()
    assert len(before) == 2
    gateway.until(lambda: ask(4) <= {200, 503} and spools() == before, what="a record of each worker")
    victim = int(before.pop())
    os.kill(victim, signal.SIGKILL)
    gateway.until(lambda: len(workers() - {str(victim)}) == 2 and ask(1) == {200}, what="a new worker")
    assert gateway.stop() == 0
    assert "worker" in gateway.output()


def test_serve_refuses_a_database_that_is_behind_and_names_the_command(tmp_path: Path) -> None:
    process = Process(tmp_path, "serve", "--port", "0")
    assert process.wait(60) == 1
    assert "run `manage.py migrate`" in process.output()
    assert "Traceback" not in process.output()


def test_a_command_that_finds_no_tables_names_the_database_and_the_command_in_one_line(tmp_path: Path) -> None:
    process = Process(tmp_path, "createtoken", "team")
    assert process.wait(60) == 1
    assert f"The database {tmp_path / 'data' / 'pilotage.sqlite3'} cannot be used: no such table" in process.output()
    assert "`manage.py migrate`" in process.output()
    assert "Traceback" not in process.output()


@pytest.mark.parametrize("port", [-1, 65_536])
def test_a_number_that_is_no_port_is_refused(port: int) -> None:
    with pytest.raises(PortTaken, match=f"{port} is no port: it must be from 0 to 65535"):
        listen("127.0.0.1", port)


@on_both_servers
def test_a_port_that_is_taken_is_named_in_one_line(server: str, start_gateway: StartGateway, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AssertionError, match=f"CommandError: port {port} on 127.0.0.1 is already in use"):
            start_gateway(None, name="late", server=server, port=port)
    output = (tmp_path / "late" / "stderr").read_text()
    assert "Traceback" not in output


def test_one_command_runs_the_demonstration_and_one_signal_stops_it(sqlite_template: Path, tmp_path: Path) -> None:
    def free_ports(count: int) -> int:
        """The first of some free ports in a row."""
        for first in range(21000, 29000, 17):
            try:
                with_all = [socket.create_server(("127.0.0.1", first + i)) for i in range(count)]
            except OSError:
                continue
            for each in with_all:
                each.close()
            return first
        raise AssertionError("no free ports")

    first = free_ports(4)
    (tmp_path / "data").mkdir()
    shutil.copy(sqlite_template, tmp_path / "data" / "pilotage.sqlite3")
    up = Process(tmp_path, "up", "--port", str(first), "--simulator-port", str(first + 1))
    try:
        up.until(lambda: "Ctrl-C stops everything." in up.out.read_text(), what="the instructions")
        kept = json.loads((tmp_path / "data" / "demo.json").read_text())
        assert oct((tmp_path / "data" / "demo.json").stat().st_mode & 0o777) == "0o600"
        said = up.out.read_text()
        assert f"http://127.0.0.1:{first}/admin/  (user admin, password {kept['password']})" in said
        assert f"Authorization: Bearer {kept['token']}" in said
        origin = f"http://127.0.0.1:{first}"
        chat = httpx.post(
            f"{origin}/v1/chat/completions",
            json=CHAT | {"model": "demo"},
            headers={"authorization": f"Bearer {kept['token']}"},
            verify=NO_TLS,
        )
        assert (chat.status_code, chat.headers["x-pilotage-target"]) == (200, "swift-chat/swift-1")
        messages = httpx.post(
            f"{origin}/v1/messages",
            json=CHAT | {"model": "demo", "max_tokens": 16},
            headers={"x-api-key": kept["token"]},
            verify=NO_TLS,
        )
        assert (messages.status_code, messages.headers["x-pilotage-target"]) == (200, "swift-messages/swift-1")
        second = Process(tmp_path / "second", "up", "--port", str(first), "--simulator-port", str(first + 1))
        assert second.wait(60) == 1
        assert f"port {first} on 127.0.0.1 is already in use" in second.output()
        assert "SIMULATOR_PORT" not in said
        moved = Process(tmp_path, "demo", "--port", str(first), "--simulator-port", "9")
        assert moved.wait(60) == 0
        assert f"start with SIMULATOR_PORT={first + 1}" in moved.output()
        family = descendants(up.pid)
        for name, count in {"serve": 1, "ingest": 1, "worker": 3, "simulate": 3}.items():
            assert sum(f"manage.py {name} " in command for command in family.values()) == count, name
        assert up.stop() == 0
        assert [command for pid, command in family.items() if is_alive(pid)] == []
    finally:
        up.stop()
    with socket.create_server(("127.0.0.1", first)), socket.create_server(("127.0.0.1", first + 3)):
        pass  # nobody was left behind


def test_the_demonstration_leaves_a_database_with_configuration_alone(
    start_simulator: StartSimulator, start_gateway: StartGateway
) -> None:
    gateway = start_gateway(configuration(start_simulator()), caller="tester")
    demo = Process(gateway.folder, "demo", "--port", "1")
    assert demo.wait(60) == 0
    assert "make one with `manage.py createtoken CALLER`" in demo.output()
    models = httpx.get(f"{gateway.url}/v1/models", headers=served(gateway), verify=NO_TLS).json()
    assert [model["id"] for model in models["data"]] == ["g"]
