"""Measures gateways side by side: `python -m bench.run [NAME...]`, or `make bench`.

The upstream and the load generator share one core, the gateway has another. Every round starts each target afresh and
takes it through all series, so that what disturbs the machine for a while disturbs all of them alike; the tables show
medians over the rounds. Results are lines of JSON in `out/results`; `python -m bench.summary` reads them again.
"""

import argparse
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TextIO

from bench import bodies, programs, summary
from bench.machine import Cores, cpu_seconds, describe, memory_mib, on_core, running, two_cores
from bench.peers import Ferro, LiteLlm, Nginx, Portkey, Rolter, Smg
from bench.pilotage import Pilotage
from bench.series import ENDURANCE, SERIES, WARM_UP, Series, Served, measure
from bench.targets import Direct, Target, Unavailable

ROOT: Final = Path(__file__).resolve().parent.parent

TARGETS: Final[Sequence[Target]] = (
    Direct(),
    Nginx(),
    Pilotage(targets=8, name="pilotage", title="**Pilotage**, 8 targets"),
    Pilotage(targets=100, name="pilotage-100", title="**Pilotage**, 100 targets"),
    Rolter(),
    Smg(),
    Ferro(),
    Portkey(),
    LiteLlm(deployments=2, name="litellm", title="LiteLLM, 2 deployments"),
    LiteLlm(
        deployments=100,
        name="litellm-100-latency",
        title="LiteLLM, 100 deployments, latency routing",
        strategy="latency-based-routing",
    ),
)
BY_NAME: Final[Mapping[str, Target]] = {target.name: target for target in TARGETS}

INSIDE: Final = ("bench.decide", "bench.relay")
"""Measured without a server, in a process of their own."""

READY_S: Final = 120.0
QUICK: Final = 0.4
"""What is left of the seconds of a series in a quick run."""


class NotReady(Exception):
    """A target that does not answer; the message has the end of its log."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 1 when Pilotage left a request without its answer."""
    options = _options(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is ended
    out = options.out.resolve()
    work = out / "bench"
    work.mkdir(parents=True, exist_ok=True)
    try:
        programs.build(work / "bin")
    except programs.CannotBuild as problem:
        print(problem, file=sys.stderr)
        return 2
    bodies.write(work / "bodies")
    versions, left_out = _install([BY_NAME[name] for name in options.names], out)
    for name, reason in left_out.items():
        print(f"{name} is left out: {reason}", file=sys.stderr)
    cores = two_cores()
    results = out / "results" / f"{time.strftime('%Y-%m-%dT%H-%M-%S')}.jsonl"
    results.parent.mkdir(exist_ok=True)
    with results.open("w") as file:
        about = {"at": time.strftime("%Y-%m-%d"), "rounds": options.rounds, "quick": options.quick}
        titles = {name: BY_NAME[name].title for name in versions}
        _write(file, kind="run", **about, machine=describe(), titles=titles, versions=versions, left_out=left_out)
        if not options.series:
            for module in INSIDE:
                _write(file, kind=module.partition(".")[2], **_inside(module, cores, quick=options.quick))
        with programs.upstream(work, cores) as upstream:
            for number in range(options.rounds):
                for name in versions:
                    chosen = _series(options, name, number)
                    _round(BY_NAME[name], number, chosen, upstream, file, out=out, cores=cores)
    measured = summary.read(results)
    print(summary.render(measured))
    print(f"\nEvery figure: {os.path.relpath(results)}", file=sys.stderr)
    if options.write:
        summary.write(measured, options.write)
    return 0 if summary.all_answered(measured) else 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description="Measures gateways side by side.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BY_NAME)}; default: all")
    parser.add_argument("--rounds", type=int, default=None, help="default 3, or 1 when quick")
    parser.add_argument("--quick", action="store_true", help="one round of shorter series")
    parser.add_argument("--series", action="append", help="only this one; may be given again")
    parser.add_argument("--seconds", type=float, help="how long each series takes, instead of its own time")
    parser.add_argument("--out", type=Path, default=ROOT / "out", help="default: out")
    parser.add_argument("--write", type=Path, metavar="FILE", help="puts the tables between their markers in FILE")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in BY_NAME]
    if unknown:
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(BY_NAME)}")
    known = [series.name for series in (*SERIES, ENDURANCE)]
    if options.series and not set(options.series) <= set(known):
        parser.error(f"the series are {', '.join(known)}")
    if options.names and "direct" not in options.names:
        options.names.insert(0, "direct")  # latency is what a gateway adds to it
    options.names = options.names or list(BY_NAME)
    if options.rounds is None:
        options.rounds = 1 if options.quick else 3
    return options


def _install(chosen: Sequence[Target], out: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Versions of what can be measured, and why the others cannot."""
    versions: dict[str, str] = {}
    left_out: dict[str, str] = {}
    for target in chosen:
        try:
            versions[target.name] = target.install(out / "peers" / target.home)
        except Unavailable as problem:
            left_out[target.name] = str(problem)
    return versions, left_out


def _series(options: argparse.Namespace, name: str, number: int) -> list[Series]:
    """Of one target's round."""
    everything = [*SERIES] if number or options.quick else [*SERIES, ENDURANCE]
    if options.series:
        everything = [series for series in (*SERIES, ENDURANCE) if series.name in options.series]
    shorter = QUICK if options.quick else 1.0
    return [
        series
        if series.requests is not None
        else dataclasses.replace(series, seconds=options.seconds or series.seconds * shorter)
        for series in everything
        if series.target in (None, name)
    ]


def _inside(module: str, cores: Cores, *, quick: bool) -> dict[str, Any]:
    print(f"{module} ...", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", module, "--json", *(["--quick"] if quick else [])]
    with on_core(cores.gateway):
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


def _round(
    target: Target,
    number: int,
    chosen: Sequence[Series],
    upstream: programs.Upstream,
    file: TextIO,
    *,
    out: Path,
    cores: Cores,
) -> None:
    """Starts one target, measures it, ends it. One that does not answer is told and left."""
    work = out / "bench"
    about = {"target": target.name, "round": number}
    print(f"round {number + 1}: {target.name} ...", file=sys.stderr, flush=True)
    try:
        with _serving(target, upstream, out=out, cores=cores) as served:
            for series in WARM_UP:
                shorter = dataclasses.replace(series, seconds=min(series.seconds, chosen[0].seconds))
                measure(shorter, served, upstream, out=work, cores=cores)
            if served.pid is not None:
                start = {"memory_mib": round(memory_mib(served.pid), 1), "cpu_s": round(cpu_seconds(served.pid), 2)}
                _write(file, kind="start", **about, **start)
            for series in chosen:
                measured = measure(series, served, upstream, out=work, cores=cores)
                _write(file, kind="series", **about, series=series.name, **measured)
                if measured["unfinished"]:  # it is still at work on them, at the cost of what would come next
                    print(f"{target.name} leaves {measured['unfinished']} of {series.name} open", file=sys.stderr)
                    break
    except (NotReady, Unavailable) as problem:
        print(f"{target.name} {problem}", file=sys.stderr)
        _write(file, kind="failed", **about, problem=str(problem))


@contextmanager
def _serving(target: Target, upstream: programs.Upstream, *, out: Path, cores: Cores) -> Iterator[Served]:
    """The target, once it has answered a request. Raises `NotReady`."""
    folder = out / "bench" / target.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    start = target.prepare(folder, upstream.ports, installed=out / "peers" / target.home)
    if start is None:
        yield Served(port=upstream.ports[0], headers=(), pid=None)
        return
    log = folder / "log"
    with running(
        start.command, core=cores.gateway, log=log, cwd=start.cwd or folder, environment=start.environment
    ) as process:
        served = Served(port=start.port, headers=start.headers, pid=process.pid)
        by = time.monotonic() + READY_S
        while not _answers(served, out=out, cores=cores):
            if process.poll() is not None or time.monotonic() > by:
                end = log.read_text(errors="replace")[-1_000:]
                raise NotReady(f"does not answer, exit code {process.poll()}:\n{end}")
            time.sleep(0.2)
        yield served


def _answers(served: Served, *, out: Path, cores: Cores) -> bool:
    seen = programs.load(
        out / "bench",
        cores,
        port=served.port,
        headers=served.headers,
        body="small",
        in_flight=1,
        seconds=1.0,
        requests=1,
    )
    return bool(seen["ok"])


def _write(file: TextIO, **line: Any) -> None:
    file.write(json.dumps(line) + "\n")
    file.flush()


if __name__ == "__main__":
    sys.exit(main())
