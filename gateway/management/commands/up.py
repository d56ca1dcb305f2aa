"""Runs the demonstration: the processes of the Procfile together, until one ends or they are told to stop."""

import os
import shlex
import signal
import string
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from argparse import ArgumentParser
from pathlib import Path
from typing import IO, Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError

from gateway import demo
from gateway.serving import PortTaken, listen

STOP_SECONDS = 10.0
READY_SECONDS = 60.0


class Command(BaseCommand):
    help = "Runs three simulated providers, the gateway, the ingest and a worker together; one Ctrl-C stops them all."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--port", type=int, default=8000, help="of the gateway; default 8000")
        parser.add_argument(
            "--simulator-port",
            type=int,
            default=demo.FIRST_SIMULATOR_PORT,
            help="the first of three ports in a row for the simulators; default 9001",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        port, first = options["port"], options["simulator_port"]
        variables = {"PORT": str(port)} | {f"SIMULATOR_{number + 1}": str(first + number) for number in range(3)}
        for needed in variables.values():
            try:
                listen("127.0.0.1", int(needed)).close()
            except PortTaken as problem:
                raise CommandError(f"{problem}; choose others with `make run PORT=... SIMULATOR_PORT=...`") from problem
        demo.prepare(settings.PILOTAGE.data_dir, first_simulator_port=first)
        stop = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: stop.set())
        children = _start(Path(settings.BASE_DIR), variables, self.stdout)
        try:
            code = self._watch(children, port, stop, first)
        finally:
            _stop(children)
        sys.exit(code)

    def _watch(self, children: "dict[str, subprocess.Popen[str]]", port: int, stop: threading.Event, first: int) -> int:
        """0 when told to stop, 1 when a process ended by itself."""
        ready = False
        ready_by = time.monotonic() + READY_SECONDS
        while not stop.wait(0.2):
            for name, child in children.items():
                if child.poll() is not None:
                    self.stderr.write(f"{name} ended with exit code {child.returncode}: stopping the others")
                    return 1
            if not ready and _is_ready(port):
                ready = True
                call_command("demo", port=port, simulator_port=first, stdout=self.stdout)
                self.stdout.write("  Ctrl-C stops everything.\n\n")
                self.stdout.flush()
            elif not ready and time.monotonic() > ready_by:
                self.stderr.write(f"the gateway was not ready within {READY_SECONDS:g} s: stopping")
                return 1
        return 0


def _start(folder: Path, variables: dict[str, str], out: Any) -> "dict[str, subprocess.Popen[str]]":
    """Each process in a session of its own, so that a Ctrl-C reaches only us and the stop is orderly."""
    children = {}
    for line in (folder / "Procfile").read_text().splitlines():
        name, _, command = line.partition(":")
        words = shlex.split(string.Template(command).substitute(variables))
        words[0] = sys.executable if words[0] == "python" else words[0]
        child = subprocess.Popen(  # noqa: S603 - our own Procfile
            words,
            cwd=folder,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        assert child.stdout is not None
        threading.Thread(target=_pass_on, args=(name, child.stdout, out), daemon=True).start()
        children[name] = child
    return children


def _pass_on(name: str, lines: IO[str], out: Any) -> None:
    for line in lines:
        out.write(f"{name:<8} | {line.rstrip()}\n")
        out.flush()


def _stop(children: "dict[str, subprocess.Popen[str]]") -> None:
    for child in children.values():
        if child.poll() is None:
            child.terminate()
    by = time.monotonic() + STOP_SECONDS
    for child in children.values():
        try:
            child.wait(max(0.0, by - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=1):
            return True
    except (urllib.error.URLError, OSError):
        return False
