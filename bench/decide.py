"""What choosing a target costs, without a server: `python -m bench.decide`.

By the number of targets, and by the length of the prompt: a request is decoded, its shape is taken, a target is chosen.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from bench.bodies import MODEL, Body, content
from bench.pilotage import CALLER, configuration
from bench.timing import cpu_us
from gateway.dialects.neutral import Call
from gateway.dialects.registry import BY_NAME
from gateway.dialects.shape import shape_of
from routing.core.affinity import Pins
from routing.core.catalog import Group, Target
from routing.core.compile import compile_document
from routing.core.decide import decide
from routing.core.decision import Decision
from routing.core.document import Document
from routing.core.observations import Observations
from routing.core.reading import read
from routing.core.shape import RequestShape

CHAT: Final = BY_NAME["openai-chat"]
TARGETS: Final = (2, 8, 32, 100)
PROMPT_BYTES: Final = (1_000, 16_000, 64_000, 256_000, 1_000_000)
ATTEMPTS: Final = 100
"""Seen of each target before: enough for every score and threshold to have its say."""

PACE_S: Final = 0.002
"""Between two requests: 500 a second."""

NAMED: Final = {b"x-session-id": b"5f1f9a1c-9b57-4f6a-8a52-0f5b3a0a3d10"}
"""What a client sends that names its conversation."""


def some_group(targets: int, *, prompt_features: bool = False) -> Group:
    """The group of the measured configuration."""
    file = json.loads(configuration(targets=targets, prompt_features=prompt_features))
    document, problems = read(Document, {"providers": file["providers"], "models": file["models"]})
    assert document is not None, problems
    return compile_document(document).groups[MODEL]


def some_call(prompt_bytes: int) -> Call:
    """A conversation of one message."""
    request = content(Body(name="prompt", size=600))
    request["messages"][-1]["content"] = ("see what it does and say it shortly " * (prompt_bytes // 36 + 1))[
        :prompt_bytes
    ]
    return CHAT.decode(json.dumps(request).encode())


def shape(call: Call, group: Group, headers: dict[bytes, bytes] | None = None) -> RequestShape:
    return shape_of(call, headers=headers or {}, caller=CALLER, group=group)


class Traffic:
    """A group in use: the clock goes on, and what was chosen is tried and ends well."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.observations = Observations()
        self.pins = Pins()
        self.now = 1_000.0
        for number in range(ATTEMPTS):
            for target in group.targets:
                self.attempt(target, took=0.4 + 0.01 * (target.position % 20) + 0.001 * number)

    def attempt(self, target: Target, *, took: float = 0.5) -> None:
        self.now += PACE_S
        running = self.observations.begin(self.group, target, stream=True, now=self.now)
        self.observations.content(running, now=self.now + took / 4)
        self.observations.end(running, "ok", now=self.now + took, output_tokens=200, last_content_at=self.now + took)

    def choose(self, shape: RequestShape) -> Decision:
        """For a conversation without a pin: nothing is remembered."""
        return decide(
            self.group,
            shape,
            self.observations,
            self.pins,
            caller_tags=frozenset(),
            now=self.now,
            today=20_000.0,
            draw=lambda: 0.5,
            revision=1,
        )


def decide_us(choices: Sequence[tuple[Group, RequestShape]], *, times: int, rounds: int = 5) -> list[float]:
    """CPU of one decision for each, while after every decision an attempt changes what is known of its target."""
    calls: list[Callable[[], object]] = []
    for group, shape in choices:
        traffic = Traffic(group)
        calls += [partial(_choose_and_attempt, traffic, shape), partial(traffic.attempt, group.targets[0])]
    spent = cpu_us(calls, times=times, rounds=rounds)
    return [both - attempt for both, attempt in zip(spent[::2], spent[1::2], strict=True)]


def _choose_and_attempt(traffic: Traffic, shape: RequestShape) -> None:
    traffic.attempt(traffic.choose(shape).candidates.primary)


def by_targets(*, times: int) -> list[dict[str, float]]:
    groups = [some_group(targets) for targets in TARGETS]
    spent = decide_us([(group, shape(some_call(500), group)) for group in groups], times=times)
    return [{"targets": targets, "decide_us": round(us, 1)} for targets, us in zip(TARGETS, spent, strict=True)]


def by_prompt(*, times: int) -> list[dict[str, float]]:
    """`shape_us` of a request that names its conversation; `begun_us`: that is told by its beginning; `scanned_us`: that
    is looked through for features."""
    group, scanning = some_group(8), some_group(8, prompt_features=True)
    rows: list[dict[str, float]] = []
    for size in PROMPT_BYTES:
        call = some_call(size)
        steps: list[Callable[[], object]] = [
            partial(CHAT.decode, call.body),
            partial(shape, call, group, NAMED),
            partial(shape, call, group),
            partial(shape, call, scanning, NAMED),
        ]
        decode, named, begun, scanned = cpu_us(steps, times=max(5, times * 1_000 // (size + 1_000)))
        (choice,) = decide_us([(group, shape(call, group))], times=times)
        spent = {
            "decode_us": decode,
            "shape_us": named,
            "begun_us": begun,
            "scanned_us": scanned,
            "decide_us": choice,
        }
        rows.append({"bytes": size} | {name: round(us, 1) for name, us in spent.items()})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.decide", description=__doc__)
    parser.add_argument("--json", action="store_true", help="for bench.run")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    times = 200 if options.quick else 1_000
    found: dict[str, Any] = {"targets": by_targets(times=times), "prompts": by_prompt(times=times)}
    if options.json:
        json.dump(found, sys.stdout)
        return
    for rows in found.values():
        for row in rows:
            print("  ".join(f"{name} {value:,}" for name, value in row.items()))
        print()


if __name__ == "__main__":
    main()
