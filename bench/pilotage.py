"""Pilotage as it is measured: token, eligibility, scoring with two terms, affinity, usage, records and log lines."""

import json
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.bodies import MODEL
from bench.machine import free_port, plain_environment
from bench.targets import Start, Unavailable

ROOT = Path(__file__).resolve().parent.parent
CALLER = "bench"


def configuration(*, targets: int, upstreams: Sequence[int] = (9001, 9002), prompt_features: bool = False) -> bytes:
    """A configuration file with one group of so many targets, on one provider per upstream port.

    Every other target is validated; prices, weights and qualities differ. Both score terms hold for every request.
    """
    providers: dict[str, Any] = {
        f"upstream-{number}": {"base_url": f"http://127.0.0.1:{port}/v1", "dialect": "openai-chat", "models": {}}
        for number, port in enumerate(upstreams)
    }
    chosen = []
    for number in range(targets):
        provider = f"upstream-{number % len(providers)}"
        providers[provider]["models"][f"model-{number}"] = {
            "model": f"model-{number}",
            "input_price_per_million_usd": round(0.10 + number / 50, 2),
            "output_price_per_million_usd": round(0.40 + number / 25, 2),
            "context_tokens": 1_048_576,
            "max_output_tokens": 32_768,
            "input_modalities": ["text"],
            "tool_support": {"openai_chat": ["tools", "tool_choice", "structured_outputs"]},
            "honors_max_tokens": True,
            "validation": {"status": "passed", "workload": "coding", "quality_score": round(0.95 - number / 500, 3)},
        }
        chosen.append(
            {
                "provider": provider,
                "model_ref": f"model-{number}",
                "weight": 10 if number < 2 else 1,
                "tags": ["validated"] if number % 2 else [],
            }
        )
    policy = {
        "signals": {"prompt_features": {"enabled": prompt_features, "features": ["code", "diff", "stack_trace"]}},
        "score_terms": [
            {
                "name": "cheapest_fast_enough",
                "when": {"complexity_lte": "complex"},
                "expression": "0.45 * cost_score + 0.25 * latency_score + 0.20 * throughput_score"
                " + 0.10 * reliability_score",
            },
            {
                "name": "good_and_quick",
                "prefer_tags": ["validated"],
                "expression": "0.5 * eval_quality_score + 0.3 * reliability_score + 0.2 * latency_score",
            },
        ],
        "thresholds": {"max_error_rate": 0.03, "max_timeout_rate": 0.02, "max_p95_latency_ms": 10_000},
    }
    groups = {MODEL: {"strategy": "dynamic_score", "targets": chosen, "routing_policy": {"dynamic_score": policy}}}
    callers = {CALLER: {"allow": [MODEL]}}
    return json.dumps({"version": 1, "providers": providers, "models": groups, "callers": callers}, indent=1).encode()


class Pilotage:
    home = "pilotage"

    def __init__(self, *, targets: int, name: str, title: str) -> None:
        self.name = name
        self.title = title
        self._targets = targets

    def install(self, folder: Path) -> str:
        return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])

    def prepare(self, folder: Path, upstreams: Sequence[int], *, installed: Path) -> Start:
        data = folder / "data"
        shutil.rmtree(data, ignore_errors=True)
        environment = {"PILOTAGE_DATA_DIR": str(data)}
        file = folder / "configuration.yaml"
        file.write_bytes(configuration(targets=self._targets, upstreams=upstreams))
        _manage(environment, "migrate", "--verbosity", "0")
        _manage(environment, "importconfig", str(file))
        token = _manage(environment, "createtoken", CALLER).strip()
        port = free_port()
        return Start(
            command=[sys.executable, ROOT / "manage.py", "serve", "--port", str(port)],
            port=port,
            headers=[f"Authorization: Bearer {token}"],
            environment=environment,
            cwd=ROOT,
        )


def _manage(environment: dict[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), *arguments],
        cwd=ROOT,
        env=plain_environment() | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Unavailable(f"manage.py {arguments[0]} failed:\n{done.stdout}{done.stderr}")
    return done.stdout
