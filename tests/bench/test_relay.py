import asyncio
from pathlib import Path

import msgspec
import uvloop

from bench import relay
from bench.bodies import MODEL
from gateway.relay.app import Relay
from reports.core.record import EndRecord
from reports.spool import decode_line


def test_every_step_of_a_request_is_timed() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(relay.measure(calls=20))
    named = list(dict.fromkeys(step for step, _, _ in relay.STEPS))
    assert [row["step"] for row in found] == [*named, relay.BETWEEN, relay.WHOLE, relay.BESIDE]
    spent = {row["step"]: row["us"] for row in found}
    assert min(spent[step] for step in named) > 0
    assert spent[relay.WHOLE] > max(spent[step] for step in named)


def test_a_measured_request_is_scored_kept_and_told(tmp_path: Path) -> None:
    """What is measured is everything: no step is idle because something is switched off."""
    client = relay.Client()
    with relay.some_relay(tmp_path) as running:
        asyncio.run(_ask(running, client))
        pins = running.pins.size(MODEL)
    intent, end = (
        decode_line(line) for file in (tmp_path / "spool").iterdir() for line in file.read_bytes().splitlines()
    )
    (line,) = (msgspec.json.decode(line) for line in (tmp_path / "lines").read_bytes().splitlines())
    assert isinstance(end, EndRecord)
    assert end.candidates is not None
    assert (end.status, end.outcome, end.affinity, end.matched_terms, len(end.candidates.targets), pins) == (
        200,
        "success",
        "affinity_miss",
        ["cheapest_fast_enough", "good_and_quick"],
        relay.TARGETS,
        1,
    )
    assert (intent.id, line["id"]) == (end.id, end.id)


async def _ask(running: Relay, client: relay.Client) -> None:
    await running(client.scope(), client.receive, client.send)
