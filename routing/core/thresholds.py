"""When a target is kept out, and how it comes back: limits with a confidence bound, and trial requests."""

from math import sqrt
from typing import Literal

from routing.core.catalog import HealthPolicy, ThresholdPolicy
from routing.core.stats import ExclusionReason, Health, Sums

Verdict = Literal["good", "failed", "none"]
"""What a trial request showed. `none`: the client left, or it was the caller's fault."""

FEWEST_BAD = 2
"""Attempts: one bad one never excludes by a rate."""

UNTIL_PROBED: frozenset[ExclusionReason] = frozenset({"denied", "excluded_consecutive"})
"""Reasons that no limit can withdraw: two good probes, or nothing left in the window."""


def lower_bound(bad: float, attempts: float, z: float) -> float:
    """Wilson's lower confidence bound of a rate, in [0, 1]; 0 without attempts.

    With p = bad / n: (p + z^2/2n - z sqrt(p(1 - p)/n + z^2/4n^2)) / (1 + z^2/n), here multiplied through by n.
    """
    if attempts <= 0.0:
        return 0.0
    bad = min(attempts, max(0.0, bad))
    z2 = z * z
    margin = z * sqrt(bad * (1.0 - bad / attempts) + z2 / 4.0)
    return max(0.0, (bad + z2 / 2.0 - margin) / (attempts + z2))


def has_limits(policy: ThresholdPolicy) -> bool:
    return not (
        policy.max_error_rate is None
        and policy.max_timeout_rate is None
        and policy.max_p95_s is None
        and policy.max_ttfb_s is None
        and policy.min_output_tokens_per_second is None
    )


def binding(
    policy: ThresholdPolicy, window: Sums, fast: Sums, *, p95_s: float | None, overdue: int
) -> tuple[ExclusionReason, str] | None:
    """The first limit that binds, and its arithmetic in words; `None`: none does.

    `window` comes without the overdue attempts, `fast` with them, as in TargetStats.
    """
    if policy.max_error_rate is not None:
        bound = _over(
            policy, policy.max_error_rate, window.errors, window.attempts + overdue, fast.errors, fast.attempts
        )
        if bound is not None:
            return "excluded_error_rate", f"failed: {bound} is over max_error_rate {policy.max_error_rate:g}"
    if policy.max_timeout_rate is not None:
        bound = _over(
            policy,
            policy.max_timeout_rate,
            window.timeouts + overdue,
            window.attempts + overdue,
            fast.timeouts,
            fast.attempts,
        )
        if bound is not None:
            return "excluded_timeout_rate", f"timed out: {bound} is over max_timeout_rate {policy.max_timeout_rate:g}"
    enough = policy.latency_min_observations
    if window.completed < enough:
        return None
    if policy.max_p95_s is not None and p95_s is not None and p95_s > policy.max_p95_s:
        return "excluded_p95", f"p95 {_ms(p95_s)} is over max_p95_latency_ms {_ms(policy.max_p95_s)}"
    if window.first_content_n < enough:
        return None
    if policy.max_ttfb_s is not None:
        ttfb_s = window.first_content_s / window.first_content_n if window.first_content_n else 0.0
        if ttfb_s > policy.max_ttfb_s:
            return (
                "excluded_ttfb",
                f"mean time to first content {_ms(ttfb_s)} is over max_ttfb_ms {_ms(policy.max_ttfb_s)}",
            )
    lowest = policy.min_output_tokens_per_second
    if lowest is not None and window.generation_tokens < lowest * window.generation_s:
        speed = window.generation_tokens / window.generation_s
        return "excluded_throughput", f"{speed:.1f} tokens/s is under min_output_tokens_per_second {lowest:g}"
    return None


def limit_of(policy: ThresholdPolicy, reason: ExclusionReason) -> float | None:
    """The limit behind a reason; `None`: not set, or a reason without one."""
    match reason:
        case "excluded_error_rate":
            return policy.max_error_rate
        case "excluded_timeout_rate":
            return policy.max_timeout_rate
        case "excluded_p95":
            return policy.max_p95_s
        case "excluded_ttfb":
            return policy.max_ttfb_s
        case "excluded_throughput":
            return policy.min_output_tokens_per_second
        case "denied" | "excluded_consecutive":
            return None


def too_slow(
    policy: ThresholdPolicy,
    reason: ExclusionReason,
    *,
    normalised_s: float,
    first_content_s: float | None,
    tokens_per_second: float | None,
) -> bool:
    """Whether a complete answer breaks by itself the limit that its target is kept out for. Unmeasured is not slow."""
    limit = limit_of(policy, reason)
    if limit is None:
        return False
    match reason:
        case "excluded_p95":
            return normalised_s > limit
        case "excluded_ttfb":
            return first_content_s is not None and first_content_s > limit
        case "excluded_throughput":
            return tokens_per_second is not None and tokens_per_second < limit
        case _:
            return False


class Outage:
    """One target kept out: why, when the next trial request may go to it, and how the last ones went."""

    __slots__ = ("_failed", "_good", "_wait_s", "detail", "probe_at", "probing", "reason")

    def __init__(self, reason: ExclusionReason, detail: str, policy: HealthPolicy, *, now: float) -> None:
        self.reason = reason
        self.detail = detail
        self.probe_at = now + policy.probe_first_s
        self.probing = False
        self._wait_s = policy.probe_first_s
        self._failed = 0
        self._good = 0

    def begin_probe(self) -> bool:
        """Whether this attempt is the trial: only one at a time is."""
        if self.probing:
            return False
        self.probing = True
        return True

    def end_probe(self, verdict: Verdict, policy: HealthPolicy, *, now: float, was_overdue: bool = False) -> bool:
        """Whether the target may come back.

        A good probe is followed at once by the next. After failed ones the wait doubles from the first wait to the
        longest, and a good one between does not start it again. A probe without verdict leaves all as it was; if it was
        overdue, the next one waits as the last did, so that a hanging target does not take one client after the other.
        """
        self.probing = False
        match verdict:
            case "good":
                self._good += 1
                self.probe_at = now
                return self._good >= policy.probe_successes
            case "failed":
                self._good = 0
                self._wait_s = min(policy.probe_first_s * 2.0 ** min(self._failed, 60), policy.probe_max_s)
                self._failed += 1
                self.probe_at = now + self._wait_s
            case "none":
                if was_overdue:
                    self.probe_at = now + self._wait_s
        return False

    def health(self, *, now: float) -> Health:
        due = not self.probing and now >= self.probe_at
        return Health(
            reason=self.reason,
            detail=self.detail,
            probe_due=due,
            overdue_s=now - self.probe_at if due else 0.0,
        )


def _over(
    policy: ThresholdPolicy, limit: float, bad: float, attempts: float, fast_bad: float, fast_attempts: float
) -> str | None:
    """The bound that is over the limit, in words. The number of bad attempts is the window's: decayed ones are no count."""
    if bad < FEWEST_BAD:
        return None
    z = policy.confidence_z
    if attempts >= policy.min_observations:
        bound = lower_bound(bad, attempts, z)
        if bound > limit:
            return f"{bad:g} of {attempts:g} attempts, lower bound {bound:.3f},"
    if fast_attempts >= policy.fast_min_observations:
        bound = lower_bound(fast_bad, fast_attempts, z)
        if bound > limit:
            return f"{fast_bad:.1f} of {fast_attempts:.1f} recent attempts, lower bound {bound:.3f},"
    return None


def _ms(seconds: float) -> str:
    return f"{seconds * 1000.0:.0f}"
