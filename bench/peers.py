"""The gateways beside ours: each in an environment of its own under `out/peers`, installed by its own package manager.

Each does what it can be told to do with the same requests: LiteLLM and Portkey check a key and choose between two
deployments, nginx passes bytes on. Versions are fixed, so that figures of two days can be compared.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.bodies import MODEL
from bench.machine import free_port
from bench.targets import Start, Unavailable

KEY: Final = "sk-3f1d9a7be84c02d56fa1be7790cc41d2a86e0f35b91c4d78"
"""What callers show to those that ask for it. It opens nothing."""


class Nginx:
    """What passing bytes on costs and nothing else: the floor."""

    name = home = "nginx"
    title = "nginx, which passes bytes on"

    def install(self, folder: Path) -> str:
        binary = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
        if binary is None:
            raise Unavailable("nginx is not installed: apt-get install nginx-light")
        said = subprocess.run([binary, "-v"], capture_output=True, text=True, check=True)
        return said.stderr.strip().rpartition("/")[2]

    def prepare(self, folder: Path, upstreams: Sequence[int], *, installed: Path) -> Start:
        port = free_port()
        servers = " ".join(f"server 127.0.0.1:{each};" for each in upstreams)
        (folder / "nginx.conf").write_text(f"""\
worker_processes 1;
worker_rlimit_nofile 8192;
daemon off;
pid nginx.pid;
error_log stderr crit;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_buffer_size 2m;
    client_max_body_size 16m;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    keepalive_requests 1000000;
    upstream providers {{ {servers} keepalive 256; keepalive_requests 1000000; }}
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location / {{
            proxy_pass http://providers;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
        }}
    }}
}}
""")
        binary = shutil.which("nginx") or "/usr/sbin/nginx"
        return Start(command=[binary, "-p", folder, "-c", folder / "nginx.conf"], port=port)


class LiteLlm:
    """The LiteLLM proxy with one worker, its logging turned down and no database, as in its production advice."""

    home = "litellm"

    def __init__(self, *, deployments: int, name: str, title: str, strategy: str | None = None) -> None:
        self.name = name
        self.title = title
        self._deployments = deployments
        self._strategy = strategy

    def install(self, folder: Path) -> str:
        return _from_python_index(folder, "litellm[proxy]==1.108.7")

    def prepare(self, folder: Path, upstreams: Sequence[int], *, installed: Path) -> Start:
        deployments = [
            {
                "model_name": MODEL,
                "litellm_params": {
                    "model": f"openai/{MODEL}",
                    "api_base": f"http://127.0.0.1:{upstreams[number % len(upstreams)]}/v1",
                    "api_key": f"sk-mock-{number}",
                },
            }
            for number in range(self._deployments)
        ]
        configuration: dict[str, object] = {
            "model_list": deployments,
            "general_settings": {"master_key": KEY},
            "litellm_settings": {"telemetry": False},
        }
        if self._strategy is not None:
            configuration["router_settings"] = {"routing_strategy": self._strategy}
        file = folder / "litellm.yaml"
        file.write_text(json.dumps(configuration, indent=1))
        port = free_port()
        command: list[str | Path] = [installed / "bin" / "litellm", "--config", file, "--host", "127.0.0.1"]
        return Start(
            command=[*command, "--port", str(port), "--num_workers", "1", "--telemetry", "False"],
            port=port,
            headers=[f"Authorization: Bearer {KEY}"],
            environment={
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",
                "LITELLM_LOG": "ERROR",
                "LITELLM_TELEMETRY": "False",
                "LITELLM_MODE": "PRODUCTION",
                "NO_PROXY": "*",
            },
            cwd=folder,
        )


class Portkey:
    name = home = "portkey"
    title = "Portkey"

    def install(self, folder: Path) -> str:
        if not _installed(folder):
            if shutil.which("npm") is None:
                raise Unavailable("npm is not installed: apt-get install nodejs npm")
            folder.mkdir(parents=True, exist_ok=True)
            package = {
                "private": True,
                "dependencies": {"@portkey-ai/gateway": "1.15.2"},
                "overrides": {"@hono/node-server": "1.14.1"},  # with newer ones its streams break
            }
            (folder / "package.json").write_text(json.dumps(package, indent=1))
            _run(["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"], folder)
            _mark(folder)
        found = json.loads((folder / "node_modules" / "@portkey-ai" / "gateway" / "package.json").read_text())
        return str(found["version"])

    def prepare(self, folder: Path, upstreams: Sequence[int], *, installed: Path) -> Start:
        targets = [
            {"provider": "openai", "api_key": "sk-mock", "custom_host": f"http://127.0.0.1:{port}/v1", "weight": 1}
            for port in upstreams
        ]
        configuration = json.dumps({"strategy": {"mode": "loadbalance"}, "targets": targets})
        script = installed / "node_modules" / "@portkey-ai" / "gateway" / "build" / "start-server.js"
        port = free_port()
        return Start(
            command=["node", script, f"--port={port}", "--headless"],
            port=port,
            headers=["Authorization: Bearer sk-mock", f"x-portkey-config: {configuration}"],
            environment={"NODE_ENV": "production", "TRUSTED_CUSTOM_HOSTS": "127.0.0.1,localhost"},
            cwd=folder,
        )


class Ferro:
    name = home = "ferrogw"
    title = "ferrogw (Go)"

    def install(self, folder: Path) -> str:
        return _from_python_index(folder, "ferrogw==1.5.10")

    def prepare(self, folder: Path, upstreams: Sequence[int], *, installed: Path) -> Start:
        """It takes one address for OpenAI: there is no choice to make."""
        port = free_port()
        key = "fgw_3efeddde938d647df13bf3b19eb1502b"
        file = folder / "ferrogw.yaml"
        file.write_text("strategy:\n  mode: fallback\ntargets:\n  - virtual_key: openai\n")
        return Start(
            command=[installed / "bin" / "ferrogw", "serve"],
            port=port,
            headers=[f"Authorization: Bearer {key}"],
            environment={
                "GATEWAY_CONFIG": str(file),
                "MASTER_KEY": key,
                "OPENAI_API_KEY": "sk-mock",
                "OPENAI_BASE_URL": f"http://127.0.0.1:{upstreams[0]}/v1",
                "PORT": str(port),
                "GOMAXPROCS": "1",
                "LOG_LEVEL": "error",
                "RATE_LIMIT_RPS": "0",
                "FERRO_MODEL_CATALOG_TIMEOUT": "0",
            },
            cwd=folder,
        )


class Rolter:
    name = home = "rolter"
    title = "rolter (Rust)"

    def install(self, folder: Path) -> str:
        return _from_python_index(folder, "rolter==0.1.0")

    def prepare(self, folder: Path, upstreams: Sequence[int], *, installed: Path) -> Start:
        port = free_port()
        lines = ["[server]", 'host = "127.0.0.1"', f"port = {port}", "require_auth = true"]
        for number, each in enumerate(upstreams):
            address = f'api_base = "http://127.0.0.1:{each}"'
            lines += ["[[providers]]", f'name = "upstream-{number}"', 'kind = "openai_compatible"', address]
        lines += ["[[routes]]", f'model = "{MODEL}"', 'strategy = "round_robin"']
        for number in range(len(upstreams)):
            lines += ["[[routes.targets]]", f'provider = "upstream-{number}"', f'model = "{MODEL}"']
        lines += ["[[virtual_keys]]", f'key = "{KEY}"', 'name = "bench"', "models = []"]
        file = folder / "rolter.toml"
        file.write_text("\n".join(lines) + "\n")
        binary = installed / "bin" / "rolter"
        return Start(
            command=[binary, "gateway", "-c", file, "--host", "127.0.0.1", "--port", str(port)],
            port=port,
            headers=[f"Authorization: Bearer {KEY}"],
            environment={"RUST_LOG": "error", "TOKIO_WORKER_THREADS": "1"},
            cwd=folder,
        )


class Smg:
    name = home = "smg"
    title = "smg (Rust)"

    def install(self, folder: Path) -> str:
        return _from_python_index(folder, "smg==1.13.0")

    def prepare(self, folder: Path, upstreams: Sequence[int], *, installed: Path) -> Start:
        port, metrics = free_port(), free_port()
        workers = [f"http://127.0.0.1:{each}" for each in upstreams]
        command: list[str | Path] = [installed / "bin" / "smg", "launch", "--host", "127.0.0.1", "--port", str(port)]
        command += ["--backend", "openai", "--worker-urls", *workers, "--policy", "random", "--log-level", "error"]
        return Start(
            command=[*command, "--prometheus-port", str(metrics), "--api-key", KEY],
            port=port,
            headers=[f"Authorization: Bearer {KEY}"],
            environment={"RUST_LOG": "error"},
            cwd=folder,
        )


def _from_python_index(folder: Path, requirement: str) -> str:
    """A virtual environment with this package; its version."""
    name, version = requirement.partition("[")[0].partition("=")[0], requirement.rpartition("=")[2]
    if _installed(folder):
        return version
    try:
        _run([sys.executable, "-m", "venv", str(folder)], folder.parent)
        _run([str(folder / "bin" / "pip"), "install", "--quiet", requirement], folder)
    except Unavailable as error:
        raise Unavailable(f"{name} cannot be installed: {error}") from error
    _mark(folder)
    return version


DONE: Final = ".installed"
"""Written last: without it an installation was not finished and is made anew."""


def _installed(folder: Path) -> bool:
    return (folder / DONE).exists()


def _mark(folder: Path) -> None:
    (folder / DONE).touch()


def _run(command: list[str], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        complaint = (done.stderr or done.stdout).strip().splitlines()
        raise Unavailable(f"{' '.join(command)}: {complaint[-1] if complaint else done.returncode}")
