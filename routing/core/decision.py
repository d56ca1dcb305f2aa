"""A Decision and its parts: what `decide` returns, and what a record or an explanation is made from."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, overload

import msgspec

from routing.core.catalog import ScorePolicy, ScoreTerm, Target, TargetId
from routing.core.document import Strategy
from routing.core.stats import TargetStats

Mode = Literal["configured", "cold_start", "score", "pinned", "probe", "panic"]
"""`configured`: static, failover and weighted. `panic`: every target was excluded by health, the least bad serves."""

AffinityOutcome = Literal[
    "affinity_hit",
    "affinity_miss",
    "affinity_expired",
    "affinity_ineligible",
    "affinity_disabled",
    "affinity_evicted",
]

Stage = Literal["eligibility", "hard_filter", "required_tags", "cool_down", "capacity", "health", "thresholds"]


class Exclusion(msgspec.Struct, frozen=True, kw_only=True):
    target: TargetId
    stage: Stage
    reason: str
    """A slug of the fixed list in the routing documentation."""
    detail: str = ""
    wait_s: float | None = None
    """For `cooling_down`: seconds left."""
    probe_overdue_s: float | None = None
    """For an exclusion by health: seconds since its trial request became due. `None`: none is due."""


class ScoreValue(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    raw: float | None
    """In the score's own unit (dollars, seconds, tokens per second, a rate); `None`: no data."""
    value: float
    """In [0, 1]."""
    flag: str | None = None
    """`no_data`, `unknown_price`, `disabled`, `stale`."""


class TermValue(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    value: float
    share: float
    preferred_tags: int = 0
    flag: str | None = None
    """`not_finite`: the expression gave no finite number and counts as 0."""


class Column(msgspec.Struct, frozen=True, array_like=True):
    """One score of all candidates of a Sheet, in its rows' order. Fields as in ScoreValue. A record has them as a list."""

    raws: Sequence[float | None]
    values: Sequence[float]
    flags: Sequence[str | None]


class TermColumn(msgspec.Struct, frozen=True, array_like=True):
    """One term's values for all candidates of a Sheet, in its rows' order. Fields as in TermValue. A record has them as a list."""

    name: str
    share: float
    values: Sequence[float]
    preferred_tags: Sequence[int]
    flags: Sequence[str | None]


class Sheet(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of some candidates, a column each: a decision makes columns, and only who looks at one makes rows."""

    stats: Sequence[TargetStats]
    weights: Sequence[float]
    """W: configured weight over the largest among the survivors."""
    min_observations: int = 0
    """The policy's, for the confidence."""
    dynamics: Sequence[float] | None = None
    contrasted: Sequence[float] | None = None
    finals: Sequence[float] | None = None
    band: frozenset[int] = frozenset()
    """Rows of the near ties."""
    scores: Mapping[str, Column] = {}
    terms: tuple[TermColumn, ...] = ()


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A target that may serve, and its row of numbers."""

    target: Target
    sheet: Sheet
    row: int

    @property
    def weight(self) -> float:
        """W: configured weight over the largest among the survivors."""
        return self.sheet.weights[self.row]

    @property
    def dynamic(self) -> float | None:
        """D, before contrast. `None`: nothing was scored."""
        return None if self.sheet.dynamics is None else self.sheet.dynamics[self.row]

    @property
    def contrasted(self) -> float | None:
        """D'."""
        return None if self.sheet.contrasted is None else self.sheet.contrasted[self.row]

    @property
    def final(self) -> float | None:
        return None if self.sheet.finals is None else self.sheet.finals[self.row]

    @property
    def confidence(self) -> float:
        """Observations over the policy's minimum, at most 1."""
        observed, enough = self.observations, self.sheet.min_observations
        return 1.0 if observed >= enough else observed / enough

    @property
    def observations(self) -> float:
        """Counted attempts in the window."""
        return self.sheet.stats[self.row].window.attempts

    @property
    def in_flight(self) -> int:
        return self.sheet.stats[self.row].in_flight

    @property
    def overdue(self) -> int:
        return self.sheet.stats[self.row].overdue

    @property
    def in_band(self) -> bool:
        return self.row in self.sheet.band

    @property
    def scores(self) -> tuple[ScoreValue, ...]:
        row = self.row
        return tuple(
            ScoreValue(name=name, raw=column.raws[row], value=column.values[row], flag=column.flags[row])
            for name, column in self.sheet.scores.items()
        )

    @property
    def terms(self) -> tuple[TermValue, ...]:
        row = self.row
        return tuple(
            TermValue(
                name=column.name,
                value=column.values[row],
                share=column.share,
                preferred_tags=column.preferred_tags[row],
                flag=column.flags[row],
            )
            for column in self.sheet.terms
        )


class Candidates(Sequence[Candidate]):
    """In their order of trying, each made only when somebody asks for it: most requests end with the first."""

    __slots__ = ("ahead", "order", "sheet", "targets")

    def __init__(
        self, targets: Sequence[Target], sheet: Sheet, order: Sequence[int], ahead: Candidate | None = None
    ) -> None:
        """`targets`: of the sheet's rows. `order`: the rows of those that may serve. `ahead`: is tried before them all,
        and may stand on a sheet of its own."""
        self.targets = targets
        self.sheet = sheet
        self.order = order
        self.ahead = ahead

    def __len__(self) -> int:
        return len(self.order) + (self.ahead is not None)

    def __iter__(self) -> Iterator[Candidate]:
        if self.ahead is not None:
            yield self.ahead
        targets, sheet = self.targets, self.sheet
        for row in self.order:
            yield Candidate(target=targets[row], sheet=sheet, row=row)

    @overload
    def __getitem__(self, index: int) -> Candidate: ...
    @overload
    def __getitem__(self, index: slice) -> list[Candidate]: ...
    def __getitem__(self, index: int | slice) -> Candidate | list[Candidate]:
        return list(self)[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # as of a list

    @property
    def primary(self) -> Target:
        """Of at least one."""
        return self.ahead.target if self.ahead is not None else self.targets[self.order[0]]

    def ids(self) -> list[TargetId]:
        targets = self.targets
        listed = [targets[row].id for row in self.order]
        return listed if self.ahead is None else [self.ahead.target.id, *listed]

    def first(self, count: int) -> "Candidates":
        ahead = 0 if self.ahead is None else 1
        return Candidates(self.targets, self.sheet, self.order[: count - ahead], self.ahead)

    def from_front(self, target: TargetId | None) -> "Candidates":
        """The same, but that this one is tried first, if it is among them."""
        targets = self.targets
        order = [row for row in self.order if targets[row].id == target]
        order += [row for row in self.order if targets[row].id != target]
        return Candidates(targets, self.sheet, order, self.ahead)


NOBODY = Candidates((), Sheet(stats=(), weights=()), ())


class NoTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Nobody is left."""

    status: int
    code: str
    """`request_too_large`, `context_length_exceeded`, `no_eligible_target`, `rate_limited`, `no_healthy_target`, `at_capacity`."""
    message: str
    param: str | None = None
    retry_after_s: float | None = None


class Decision(msgspec.Struct, frozen=True):
    strategy: Strategy
    mode: Mode
    revision: int
    candidates: Candidates
    """Primary first, then the fallbacks in order. Empty when `no_target` is set."""
    exclusions: tuple[Exclusion, ...] = ()
    affinity: AffinityOutcome | None = None
    """`None`: not a dynamic_score group."""
    conversation_key: bytes | None = None
    pin: TargetId | None = None
    """The target to pin the conversation to; `None`: leave the pins as they are."""
    propensity: float = 1.0
    """Probability with which the primary was chosen."""
    tie_break: str | None = None
    """What made the primary: `only`, `final`, `in_flight`, `weight`, `position`, `draw`. `None`: its pin or its probe."""
    matched_terms: tuple[str, ...] = ()
    terms: tuple[ScoreTerm, ...] = ()
    """Those of `matched_terms`."""
    mean_output_tokens: float = 300.0
    flags: tuple[str, ...] = ()
    """`panic`: health kept every target out; `not_finite`: an expression gave no finite number."""
    pinned: TargetId | None = None
    """The target that the conversation was pinned to before this decision, used or not."""
    drawn: float | None = None
    """The number in [0, 1) that `weighted` drew."""
    observations: int = 0
    """The group's counted attempts in the window: below the policy's minimum is a cold start."""
    policy: ScorePolicy | None = None
    """The settings that the arithmetic used. `None`: not a dynamic_score group."""
    no_target: NoTarget | None = None
