"""What this process remembers of its targets: attempts in flight, how they ended, who is cooling down, who is kept out.

One `Observations` per process, keyed by group name and target id, so that it outlives configuration changes. Nothing
here waits, locks or reads a clock: `now` is a monotonic second and always passed in; it may repeat or step back a
little. An attempt is begun, may bring content, and is ended once, whatever happened:

    running = observations.begin(group, target, stream=True, now=now)
    observations.content(running, now=now)
    observations.end(running, "ok", now=now, output_tokens=120, last_content_at=now)
"""

from collections.abc import Collection, Mapping
from math import inf

from routing.core.catalog import Group, ModelKey, Target, TargetId
from routing.core.memory import GroupMemory, Running, TargetMemory
from routing.core.stats import GroupStats, Health, Outcome

__all__ = ["Observations", "Running"]


class Observations:
    """Everything remembered in this process. Synchronous; the caller owns the clock."""

    def __init__(self) -> None:
        self._groups: dict[str, GroupMemory] = {}
        self._providers: dict[str, int] = {}
        self._cooling: dict[ModelKey, float] = {}
        self._cool_downs = 0
        """How many there have been: whoever saw fewer reads them again."""

    def begin(self, group: Group, target: Target, *, stream: bool, probe: bool = False, now: float) -> Running:
        """`probe`: this attempt is a trial request; taken as an ordinary one if one is running or the target is back."""
        known = self._groups.get(group.name)
        memory = known.targets.get(target.id) if known is not None else None
        if memory is None:
            memory = self._remember(group, target, now=now)
        running = Running(
            memory=memory,
            target=target,
            group=group,
            started=now,
            stream=stream,
            trial=memory.outage if probe and memory.outage is not None and memory.outage.begin_probe() else None,
            in_flight_at_start=memory.in_flight,
            epoch=memory.epoch,
        )
        memory.in_flight += 1
        if stream:
            memory.silent_streams[running] = None
        else:
            memory.unary[running] = None
        if not memory.changed:
            memory.mark_changed()
        provider = target.provider.name
        self._providers[provider] = self._providers.get(provider, 0) + 1
        return running

    def content(self, running: Running, *, now: float) -> None:
        """The first content of a stream came. Later calls, and those for a unary answer, change nothing."""
        if running.content_at is not None or running.ended_at is not None or not running.stream:
            return
        running.content_at = now
        memory = running.memory
        if running.epoch != memory.epoch:
            return
        memory.no_longer_waits(running)
        memory.heard_at = now
        waited = max(0.0, now - running.started)
        sums = memory.window.at(now).sums
        sums.first_content_s += waited
        sums.first_content_n += 1.0
        weight = memory.decaying.weight(now)
        fast = memory.decaying.sums
        fast.first_content_s += waited * weight
        fast.first_content_n += weight
        memory.observed = True
        if not memory.changed:
            memory.mark_changed()

    def end(
        self,
        running: Running,
        outcome: Outcome,
        *,
        now: float,
        output_tokens: int | None = None,
        last_content_at: float | None = None,
        terminal: bool | None = None,
        retry_after_s: float | None = None,
        text_bytes: int = 0,
        input_tokens: int | None = None,
    ) -> None:
        """The attempt is over; a second call changes nothing.

        `terminal`: whether a stream's terminal event came; `None`: as the outcome says. `text_bytes` and `input_tokens`
        belong together: what was sent, and what the provider counted for it (media left out of both).
        """
        if running.ended_at is not None:
            return
        running.ended_at = now
        memory = running.memory
        memory.in_flight -= 1
        if not memory.changed:
            memory.mark_changed()
        provider = running.target.provider.name
        left = self._providers[provider] - 1
        if left:
            self._providers[provider] = left
        else:
            del self._providers[provider]
        if input_tokens is not None:
            memory.note_usage(text_bytes, input_tokens)
        if outcome == "throttled":
            self.cool(running.group, running.target, retry_after_s=retry_after_s, now=now)
        memory.end(
            running, outcome, now=now, output_tokens=output_tokens, last_content_at=last_content_at, terminal=terminal
        )

    def fell_back(self, running: Running) -> None:
        """Another target had to be tried after this attempt; before or after its end, once."""
        if not running.fell_back:
            running.fell_back = True
            if running.counted_in is not None:
                running.memory.count_fallback(running, running.counted_in)

    def cool(self, group: Group, target: Target, *, retry_after_s: float | None, now: float) -> None:
        """Rest the target's model in all groups. A wait that is no positive number is the default; never shortened."""
        policy = group.attempts
        wait = policy.cool_down_default_s
        if retry_after_s is not None and retry_after_s > 0.0:
            wait = retry_after_s
        until = now + min(wait, policy.cool_down_max_s)
        if until <= self._cooling.get(target.model_key, -inf):
            return
        for key in [key for key, end in self._cooling.items() if end <= now]:
            del self._cooling[key]
        self._cooling[target.model_key] = until
        self._cool_downs += 1

    def cooling_until(self, model_key: ModelKey, *, now: float) -> float | None:
        """The monotonic second at which the model may be asked again; `None`: now."""
        until = self._cooling.get(model_key)
        return until if until is not None and until > now else None

    def in_flight(self, group_name: str, target_id: TargetId) -> int:
        """Attempts running, as the choice sees them."""
        return self.target_in_flight(group_name, target_id)

    def target_in_flight(self, group_name: str, target_id: TargetId) -> int:
        """Attempts running in this process: what a target's own bound is compared with."""
        known = self._groups.get(group_name)
        memory = known.targets.get(target_id) if known is not None else None
        return memory.in_flight if memory is not None else 0

    def provider_in_flight(self, provider_name: str) -> int:
        """Attempts running in this process, over all groups."""
        return self._providers.get(provider_name, 0)

    def stats(self, group: Group, *, now: float) -> GroupStats:
        """One TargetStats for every target of the group; not to be changed. Decayed and overdue counts may be 100 ms old.

        A group object that is not the last one read is taken for its new configuration: no drafts.
        """
        known = self._groups.get(group.name)
        if known is None or known.group is not group:
            known = self._adopt(group, now=now)
        elif now < known.fresh_until and not known.changed and known.cool_downs == self._cool_downs:
            return known.stats
        return known.read(self._cooling, self._cool_downs, now=now)

    def health(self, group: Group, *, now: float) -> Mapping[TargetId, Health]:
        """The targets that health keeps out, each with the reason and whether a trial request is due."""
        self.stats(group, now=now)
        known = self._groups[group.name]
        if not known.out:
            return _NOBODY
        return {
            memory.target.id: memory.outage.health(now=now)
            for memory in known.row
            if memory.outage is not None  # `out` may also hold targets that left the group
        }

    def forget(self, group_names_kept: Collection[str]) -> None:
        """Drop groups that are gone, and targets that left the others; whoever has an attempt in flight stays for now."""
        for name, known in list(self._groups.items()):
            if name not in group_names_kept:
                if not any(memory.in_flight for memory in known.targets.values()):
                    del self._groups[name]
            else:
                known.drop_unlisted()

    def _adopt(self, group: Group, *, now: float) -> GroupMemory:
        known = self._groups.get(group.name)
        if known is None:
            known = self._groups[group.name] = GroupMemory(group)
        known.adopt(group, now=now)
        return known

    def _remember(self, group: Group, target: Target, *, now: float) -> TargetMemory:
        """A target that nothing is known of: of a new group, or of an older configuration that is still in use."""
        known = self._groups.get(group.name) or self._adopt(group, now=now)
        memory = known.targets.get(target.id)
        if memory is None:
            memory = known.targets[target.id] = TargetMemory(known, target, now=now)
        return memory


_NOBODY: Mapping[TargetId, Health] = {}
