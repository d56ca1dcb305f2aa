"""Builders for what is remembered of targets: a provider, targets, a group, and a scene told in a line per attempt."""

from collections.abc import Collection
from typing import Any

from routing.core.catalog import Group, Provider, ScorePolicy, Target, ThresholdPolicy
from routing.core.observations import Observations, Running
from routing.core.stats import Health, Outcome, TargetStats

PROVIDER = Provider(name="acme", base_url="http://127.0.0.1:9", dialect="openai-chat")


def target(name: str = "paris", *, provider: Provider = PROVIDER) -> Target:
    return Target(
        id=name, position=0, provider=provider, model=name, model_ref=name, model_key=f"{provider.name}/{name}"
    )


def group(*targets: Target, name: str = "chat", **fields: Any) -> Group:
    return Group(name=name, strategy=fields.pop("strategy", "dynamic_score"), targets=targets or (target(),), **fields)


def limits(**fields: Any) -> ScorePolicy:
    return ScorePolicy(thresholds=ThresholdPolicy(**fields))


class Scene:
    """One group, whose attempts are told in a line each."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.observations = Observations()

    def begin(self, at: float, *, name: str = "paris", stream: bool = True, probe: bool = False) -> Running:
        chosen = next(each for each in self.group.targets if each.id == name)
        return self.observations.begin(self.group, chosen, stream=stream, probe=probe, now=at)

    def attempt(
        self,
        outcome: Outcome,
        at: float,
        *,
        took: float = 1.0,
        content: float | None = None,
        name: str = "paris",
        stream: bool = True,
        probe: bool = False,
        **end: Any,
    ) -> Running:
        """`took` and `content` are seconds from its start."""
        running = self.begin(at, name=name, stream=stream, probe=probe)
        if content is not None:
            self.observations.content(running, now=at + content)
        self.observations.end(running, outcome, now=at + took, **end)
        return running

    def attempts(self, outcome: Outcome, count: int, *, at: float = 0.0, **fields: Any) -> None:
        for _ in range(count):
            self.attempt(outcome, at, **fields)

    def stats(self, now: float, name: str = "paris") -> TargetStats:
        return self.observations.stats(self.group, now=now).targets[name]

    def health(self, now: float) -> dict[str, Health]:
        return dict(self.observations.health(self.group, now=now))

    def reasons(self, now: float) -> dict[str, str]:
        return {name: health.reason for name, health in self.health(now).items()}

    def due(self, now: float) -> Collection[str]:
        return {name for name, health in self.health(now).items() if health.probe_due}


def excluded_scene(**fields: Any) -> Scene:
    scene = Scene(group(**fields))
    scene.attempts("server_error", 5, took=0.0)
    return scene
