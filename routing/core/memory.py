"""What is remembered of one group and of each of its targets: counts, times, what runs now, whether it is kept out."""

from collections import deque
from collections.abc import Mapping
from math import inf

import msgspec

from routing.core.catalog import Group, ModelKey, Target, TargetId, ThresholdPolicy
from routing.core.estimates import renewed
from routing.core.histogram import bucket_of
from routing.core.shape import BYTES_PER_TOKEN
from routing.core.stats import Estimate, ExclusionReason, GroupStats, Outcome, Sums, TargetStats
from routing.core.thresholds import UNTIL_PROBED, Outage, Verdict, binding, has_limits, limit_of, too_slow
from routing.core.window import Decaying, Slice, Window

MEAN_OUTPUT_TOKENS = 300.0
"""Taken for a group until its first answer is complete."""

MEAN_OUTPUT_ANSWERS = 500
"""Completed answers that a group's mean output runs over."""

READ_S = 0.1
"""Seconds for which decayed sums, and the averages of a group, may be read again as they are."""

DRIFT = 0.01
"""Share of a group's observations that may come before its averages are taken again all the same."""


class Running(msgspec.Struct, eq=False, kw_only=True):
    """One attempt in flight: the handle that `begin` gives and `end` takes."""

    memory: "TargetMemory"
    target: Target
    group: Group
    started: float
    stream: bool
    trial: Outage | None
    """Set: this is the one trial request of a target that is kept out."""
    in_flight_at_start: int
    """At its target, itself left out."""
    epoch: int
    """How often its target had been reinstated. What began before a reinstatement says nothing about the time after."""
    content_at: float | None = None
    overdue: bool = False
    ended_at: float | None = None
    fell_back: bool = False
    counted_in: Slice | None = None
    """`None`: in flight, or nothing for health."""


class GroupMemory:
    """One group's targets, in the order of the configuration that was read last, and what they have in common."""

    __slots__ = (
        "_observed",
        "_outputs",
        "_outputs_sum",
        "changed",
        "cool_downs",
        "fresh_until",
        "group",
        "limits",
        "out",
        "row",
        "stats",
        "targets",
    )

    def __init__(self, group: Group) -> None:
        self.group = group
        self.targets: dict[TargetId, TargetMemory] = {}
        self.row: list[TargetMemory] = []
        self.limits: ThresholdPolicy | None = None
        """The rate and latency limits, if there are any."""
        self.out: set[TargetId] = set()
        self.changed: list[TargetMemory] = []
        """Those whose stats are to be read again."""
        self.stats = GroupStats(targets={})
        self.fresh_until = -inf
        self.cool_downs = -1
        self._observed = 0
        """Attempts counted since the group's averages were taken."""
        self._outputs: deque[int] = deque(maxlen=MEAN_OUTPUT_ANSWERS)
        self._outputs_sum = 0

    @property
    def mean_output_tokens(self) -> float:
        """At least 1, so that it may divide."""
        return max(1.0, self._outputs_sum / len(self._outputs)) if self._outputs else MEAN_OUTPUT_TOKENS

    def note_output(self, tokens: int) -> None:
        if len(self._outputs) == MEAN_OUTPUT_ANSWERS:
            self._outputs_sum -= self._outputs[0]
        self._outputs.append(tokens)
        self._outputs_sum += tokens

    def adopt(self, group: Group, *, now: float) -> None:
        """Follow a new configuration; what is known stays."""
        self.group = group
        scored = group.strategy == "dynamic_score"
        self.limits = group.score.thresholds if scored and has_limits(group.score.thresholds) else None
        self.row = []
        for target in group.targets:
            memory = self.targets.get(target.id)
            if memory is None:
                memory = self.targets[target.id] = TargetMemory(self, target, now=now)
            else:
                memory.adopt(target, now=now)
            self.row.append(memory)
        self.fresh_until = -inf

    def drop_unlisted(self) -> None:
        listed = {target.id for target in self.group.targets}
        for target_id, memory in list(self.targets.items()):
            if target_id not in listed and not memory.in_flight:
                del self.targets[target_id]
                self.out.discard(target_id)

    def read(self, cooling: Mapping[ModelKey, float], cool_downs: int, *, now: float) -> GroupStats:
        """Read again what has changed; all of it when the last reading of all is too old."""
        if now >= self.fresh_until or cool_downs != self.cool_downs:
            self._observed = 0
            self.stats = GroupStats(
                targets={memory.target.id: memory.read(cooling, now=now) for memory in self.row},
                mean_output_tokens=self.mean_output_tokens,
                observations=int(sum([memory.counted for memory in self.row])),
                cooling=bool(cooling),
            )
            self.fresh_until = now + READ_S
            self.cool_downs = cool_downs
        else:
            targets = self.stats.targets.copy()
            observations = self.stats.observations
            read: list[tuple[int, TargetStats, bool]] = []
            for memory in self.changed:
                target = memory.target
                if target.id in targets:
                    known, old = int(memory.counted), targets[target.id]
                    stats = targets[target.id] = memory.read(cooling, now=now)
                    more = int(memory.counted) - known
                    observations += more
                    self._observed += more
                    observed = stats.window is not old.window or stats.fast is not old.fast
                    read.append((target.position, stats, observed or stats.bytes_per_token != old.bytes_per_token))
            estimates: dict[str, Estimate | None] = {}
            if self._observed <= DRIFT * observations:
                estimates = renewed(self.stats.estimates, read)
            else:
                self._observed = 0
            self.stats = GroupStats(
                targets=targets,
                mean_output_tokens=self.mean_output_tokens,
                observations=observations,
                cooling=bool(cooling),
                estimates=estimates,
            )
        for memory in self.changed:
            memory.changed = False
        self.changed.clear()
        return self.stats


class TargetMemory:
    """One target of one group: what it did, what it is doing, whether it is kept out."""

    __slots__ = (
        "_failures",
        "_fast",
        "_fast_overdue",
        "_fast_until",
        "_p95_s",
        "_slice",
        "_stream_limit_s",
        "_total",
        "_unary_limit_s",
        "_usage_bytes",
        "_usage_reports",
        "_usage_tokens",
        "bytes_per_token",
        "changed",
        "counted",
        "decaying",
        "epoch",
        "heard_at",
        "in_flight",
        "known",
        "observed",
        "outage",
        "overdue",
        "silent_streams",
        "target",
        "unary",
        "window",
    )

    def __init__(self, known: GroupMemory, target: Target, *, now: float) -> None:
        policy = known.group.score
        self.known = known
        self.target = target
        self.window = Window(policy.window_s, now=now)
        self.decaying = Decaying(policy.fast_half_life_s, now=now)
        self.in_flight = 0
        self.silent_streams: dict[Running, None] = {}
        """Without content and not overdue yet, oldest first."""
        self.unary: dict[Running, None] = {}
        """The same for unary attempts."""
        self.overdue = 0
        self.heard_at = -inf
        """When content, or a whole answer, last came from it."""
        self.epoch = 0
        self.outage: Outage | None = None
        self.changed = False
        self.observed = True
        """Something was counted since the last reading."""
        self.counted = 0.0
        """Attempts in the window at the last reading, erased ones included."""
        self.bytes_per_token = BYTES_PER_TOKEN
        self._failures = 0
        """In a row."""
        self._usage_bytes = 0
        self._usage_tokens = 0
        self._usage_reports = 0
        self._slice: Slice | None = None
        self._total = Sums()
        self._fast = Sums()
        self._fast_overdue = 0
        self._fast_until = -inf
        self._p95_s: float | None = None
        self._stream_limit_s = _STREAM_LIMIT_UNKNOWN_S
        self._unary_limit_s = inf

    def adopt(self, target: Target, *, now: float) -> None:
        policy = self.known.group.score
        self.window.resize(policy.window_s, now=now)
        self.decaying.change_half_life(policy.fast_half_life_s, now=now)
        self.observed = True
        if self.outage is not None and self.outage.reason == "denied" and target.provider != self.target.provider:
            self._return()
        self.target = target

    def mark_changed(self) -> None:
        self.changed = True
        self.known.changed.append(self)

    def no_longer_waits(self, running: Running) -> None:
        if running.overdue:
            running.overdue = False
            self.overdue -= 1
        elif running.stream:
            self.silent_streams.pop(running, None)
        else:
            self.unary.pop(running, None)

    def note_usage(self, text_bytes: int, input_tokens: int) -> None:
        if text_bytes <= 0 or input_tokens <= 0:
            return
        self._usage_bytes += text_bytes
        self._usage_tokens += input_tokens
        self._usage_reports += 1
        if self._usage_reports >= _USAGE_REPORTS_NEEDED:
            ratio = self._usage_bytes / self._usage_tokens
            self.bytes_per_token = min(_MOST_BYTES_PER_TOKEN, max(_LEAST_BYTES_PER_TOKEN, ratio))
        if self._usage_reports >= _USAGE_REPORTS_KEPT:
            self._usage_bytes //= 2
            self._usage_tokens = max(1, self._usage_tokens // 2)
            self._usage_reports //= 2

    def end(
        self,
        running: Running,
        outcome: Outcome,
        *,
        now: float,
        output_tokens: int | None,
        last_content_at: float | None,
        terminal: bool | None,
    ) -> None:
        """Count an attempt for what it was, and judge it if it was a trial."""
        current = running.epoch == self.epoch
        was_overdue = running.overdue
        if current:
            if running.trial is not None and not was_overdue and running.content_at is None:
                limit = self._stream_limit_s if running.stream else self._unary_limit_s
                was_overdue = now - running.started > limit
            self.no_longer_waits(running)
        if outcome == "ok":
            tokens = output_tokens if output_tokens is not None and output_tokens >= 0 else None
            if tokens is not None:
                self.known.note_output(tokens)
            if not current:
                self._count_erased(now)
                return
            self._count_answer(running, now, tokens, last_content_at, terminal)
            return
        if outcome == "caller_fault" or outcome == "refused_here":
            bad = False
        elif outcome == "client_cancelled":
            bad = self._blames_target(running, now)
        else:
            bad = True
        if bad:
            if not current:
                self._count_erased(now)
                return
            self._count_failure(running, outcome, now, terminal)
        if current and running.trial is not None and running.trial is self.outage:
            verdict: Verdict = "none" if not bad or outcome == "client_cancelled" else "failed"
            self._judge(verdict, now=now, was_overdue=was_overdue)

    def count_fallback(self, running: Running, slice_: Slice) -> None:
        """Counted where the attempt was, so that there are never more fallbacks than attempts."""
        if running.epoch != self.epoch:
            return
        slice_.sums.fallbacks += 1.0
        if slice_ is not self.window.current:
            self.window.correct()
        weight = self.decaying.weight(running.ended_at if running.ended_at is not None else running.started)
        self.decaying.sums.fallbacks += weight
        self.observed = True
        if not self.changed:
            self.mark_changed()

    def read(self, cooling: Mapping[ModelKey, float], *, now: float) -> TargetStats:
        window = self.window
        slice_ = window.at(now)
        moved = self.observed or slice_ is not self._slice
        if moved:
            self.observed = False
            self._slice = slice_
            self._total, unary, erased = window.total()
            self.counted = self._total.attempts + erased
            self._p95_s = window.histogram.p95()
            self._set_limits(unary)
        if self.silent_streams or self.unary:
            self._find_overdue(now)
        if moved or self._fast_overdue != self.overdue or now >= self._fast_until:
            self._fast = self.decaying.read(now, overdue=self.overdue)
            self._fast_overdue = self.overdue
            self._fast_until = now + READ_S
        if self.outage is not None or (self.known.limits is not None and (moved or self.overdue)):
            self._check(now)  # decay alone lowers the bounds: nothing new can bind
        return TargetStats(
            window=self._total,
            fast=self._fast,
            p95_s=self._p95_s,
            p95_n=window.histogram.count,
            in_flight=self.in_flight,
            overdue=self.overdue,
            bytes_per_token=self.bytes_per_token,
            cooling_until=cooling.get(self.target.model_key) if cooling else None,
        )

    def _set_limits(self, unary: int) -> None:
        streams = self._total.first_content_n
        if streams >= _ANSWERS_KNOWN:
            self._stream_limit_s = max(1.0, min(10.0, 3.0 * self._total.first_content_s / streams))
        else:
            self._stream_limit_s = _STREAM_LIMIT_UNKNOWN_S
        if unary >= _ANSWERS_KNOWN and self._p95_s is not None:
            self._unary_limit_s = max(10.0, 3.0 * self._p95_s)
        else:
            self._unary_limit_s = inf

    def _find_overdue(self, now: float) -> None:
        for waiting, limit in ((self.silent_streams, self._stream_limit_s), (self.unary, self._unary_limit_s)):
            while waiting:
                oldest = next(iter(waiting))
                if now - oldest.started <= limit:
                    break
                del waiting[oldest]
                oldest.overdue = True
                self.overdue += 1

    def _blames_target(self, running: Running, now: float) -> bool:
        match running.group.score.client_cancellations:
            case "always":
                return True
            case "never":
                return False
            case "before_first_byte":
                p95_s = self.window.histogram.p95()
                return (
                    running.content_at is None
                    and self.heard_at <= running.started
                    and p95_s is not None
                    and now - running.started > p95_s
                )

    def _count_answer(
        self, running: Running, now: float, tokens: int | None, last_content_at: float | None, terminal: bool | None
    ) -> None:
        self._failures = 0
        self.heard_at = now
        slice_ = running.counted_in = self.window.at(now)
        sums = slice_.sums
        weight = self.decaying.weight(now)
        fast = self.decaying.sums
        self.observed = True
        sums.attempts += 1.0
        fast.attempts += weight
        sums.completed += 1.0
        fast.completed += weight
        sums.in_flight_at_start += running.in_flight_at_start
        fast.in_flight_at_start += running.in_flight_at_start * weight
        seconds = max(0.0, now - running.started)
        first_content_s: float | None = None
        speed: float | None = None
        content_at = running.content_at
        if content_at is not None:
            sums.streams += 1.0
            fast.streams += weight
            if terminal is not False:
                sums.streams_ended += 1.0
                fast.streams_ended += weight
            first_content_s = max(0.0, content_at - running.started)
            if tokens is not None and last_content_at is not None:
                generation_s = max(0.0, last_content_at - content_at)
                factor = self.known.mean_output_tokens / max(1, tokens)
                seconds = first_content_s + generation_s * max(_LEAST_FACTOR, min(_MOST_FACTOR, factor))
                if generation_s > 0.0 and tokens > 0:  # all of it in one piece shows no speed
                    speed = tokens / generation_s
                    sums.generation_s += generation_s
                    fast.generation_s += generation_s * weight
                    sums.generation_tokens += tokens
                    fast.generation_tokens += tokens * weight
        elif not running.stream:
            slice_.unary += 1
        self.window.record_time(slice_, bucket_of(seconds))
        if running.fell_back:
            self.count_fallback(running, slice_)
        if running.trial is not None and running.trial is self.outage:
            limits = self.known.limits
            slow = limits is not None and too_slow(
                limits,
                self.outage.reason,
                normalised_s=seconds,
                first_content_s=first_content_s,
                tokens_per_second=speed,
            )
            self._judge("failed" if slow else "good", now=now)

    def _count_failure(self, running: Running, outcome: Outcome, now: float, terminal: bool | None) -> None:
        slice_ = running.counted_in = self.window.at(now)
        sums = slice_.sums
        weight = self.decaying.weight(now)
        fast = self.decaying.sums
        self.observed = True
        sums.attempts += 1.0
        fast.attempts += weight
        if outcome == "timeout":
            sums.timeouts += 1.0
            fast.timeouts += weight
            self.window.record_time(slice_, bucket_of(max(0.0, now - running.started)))
        else:
            sums.errors += 1.0
            fast.errors += weight
        if outcome == "client_cancelled":  # a client's patience proves no failure: neither a stream's nor one in a row
            if running.fell_back:
                self.count_fallback(running, slice_)
            return
        if running.content_at is not None:
            sums.streams += 1.0
            fast.streams += weight
            if terminal:
                sums.streams_ended += 1.0
                fast.streams_ended += weight
        if running.fell_back:
            self.count_fallback(running, slice_)
        self._failures += 1
        if outcome == "denied":
            self._keep_out("denied", "the provider refused the credential, the account or the model", now=now)
        elif self._failures >= self.known.group.health.max_consecutive_failures and self.outage is None:
            self._keep_out(
                "excluded_consecutive", f"{self._failures} failures in a row, the last one {outcome}", now=now
            )

    def _count_erased(self, now: float) -> None:
        self.window.at(now).erased += 1.0
        self.observed = True

    def _keep_out(self, reason: ExclusionReason, detail: str, *, now: float) -> None:
        if self.outage is None:
            self.outage = Outage(reason, detail, self.known.group.health, now=now)
            self.known.out.add(self.target.id)
        else:
            self.outage.reason = reason
            self.outage.detail = detail

    def _judge(self, verdict: Verdict, *, now: float, was_overdue: bool = False) -> None:
        if self.outage is not None and self.outage.end_probe(
            verdict, self.known.group.health, now=now, was_overdue=was_overdue
        ):
            self._return()
            self.epoch += 1
            self.window.erase()
            self.decaying.clear()
            self.silent_streams.clear()
            self.unary.clear()
            self.overdue = 0
            self.observed = True

    def _return(self) -> None:
        self.outage = None
        self._failures = 0
        self.known.out.discard(self.target.id)

    def _check(self, now: float) -> None:
        """Whether a limit keeps the target out now, or nothing does any more."""
        limits = self.known.limits
        outage = self.outage
        if outage is not None and outage.reason in UNTIL_PROBED:
            if not self._total.attempts:
                self._return()
            return
        bound = None
        if limits is not None:
            bound = binding(limits, self._total, self._fast, p95_s=self._p95_s, overdue=self.overdue)
        if outage is None:
            if bound is not None:
                self._keep_out(*bound, now=now)
        elif bound is None and (
            limits is None
            or limit_of(limits, outage.reason) is None
            or (
                self._total.attempts < limits.min_observations
                and self._failures < self.known.group.health.max_consecutive_failures
            )
        ):
            self._return()


_ANSWERS_KNOWN = 5
"""Before that many, a target's own times set no bound for what is overdue."""

_STREAM_LIMIT_UNKNOWN_S = 5.0

_LEAST_FACTOR, _MOST_FACTOR = 1 / 8, 8.0
"""How far an answer's generation time is stretched to the group's mean length."""

_USAGE_REPORTS_NEEDED = 20

_USAGE_REPORTS_KEPT = 1000
"""Then the older half counts half."""

_LEAST_BYTES_PER_TOKEN, _MOST_BYTES_PER_TOKEN = 1.0, 16.0
"""A provider that counts something else than this text must not move every context check."""
