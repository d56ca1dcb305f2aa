"""What gateway processes say of themselves while somebody watches, and what a watcher is shown of it. Pure."""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

WINDOW_SECONDS: Final = 10.0
"""Over which rates and shares are taken."""

Process = tuple[int, float]
"""Process id, and when it began to count."""


class Said(msgspec.Struct, kw_only=True, frozen=True):
    """One process, once a second."""

    pid: int
    at: float
    """Unix seconds."""
    since: float
    """When it began to count, for the watchers there are."""
    revision: int
    in_flight: int
    queued: int
    ended: list[tuple[str, str, int]]
    """Group, outcome and how many exchanges ended so, since then."""
    served: list[tuple[str, str, int]]
    """Group, target that served or was tried last, how many."""
    out: list[tuple[str, str, str, str]]
    """Group, target, reason and detail of those that get no request, or only one to try them."""
    scores: list[tuple[str, float, list[tuple[str, float, float | None]]]]
    """Group, when its last choice was made, and each candidate's final and dynamic score."""


class Outcome(msgspec.Struct, kw_only=True):
    outcome: str
    per_second: float
    count: int


class TargetView(msgspec.Struct, kw_only=True):
    target: str
    share: float | None
    """Of what the group's targets served within the window. `None`: nothing was."""
    per_second: float
    count: int
    final: float | None
    dynamic: float | None
    scored_at: float | None
    """Of the last choice between candidates that included it."""
    out: list[str]
    """Why it gets no request, in words, one for each reason."""


class GroupView(msgspec.Struct, kw_only=True):
    group: str
    per_second: float
    count: int
    outcomes: list[Outcome]
    targets: list[TargetView]


class View(msgspec.Struct, kw_only=True):
    """Counts are since `since`; rates and shares of the last WINDOW_SECONDS at most."""

    at: float
    since: float
    processes: int
    in_flight: int
    queued: int
    revisions: list[int]
    per_second: float
    count: int
    groups: list[GroupView]


class Watch:
    """Readings of the last seconds, and what was counted since the first. Knows no clock."""

    def __init__(self, *, since: float) -> None:
        self.since = since
        self._readings: deque[dict[Process, Said]] = deque()
        self._first: dict[Process, Said] = {}
        """Of processes that had begun to count before: for other watchers."""
        self._gone: dict[Process, Said] = {}
        """The last word of processes that say nothing any more."""

    def add(self, said: Iterable[Said], *, now: float) -> View:
        latest = {(each.pid, each.since): each for each in said}
        for process, each in latest.items():
            if each.since < self.since:
                self._first.setdefault(process, each)
        if self._readings:
            before = self._readings[-1]
            self._gone |= {process: each for process, each in before.items() if process not in latest}
        for process in latest:
            self._gone.pop(process, None)
        self._readings.append(latest)
        while len(self._readings) > 2 and self._age(self._readings[1], now) >= WINDOW_SECONDS:
            self._readings.popleft()
        return self._view(latest, now)

    @staticmethod
    def _age(reading: Mapping[Process, Said], now: float) -> float:
        return now - max((each.at for each in reading.values()), default=0.0)

    def _view(self, latest: Mapping[Process, Said], now: float) -> View:
        ended, served = self._counts("ended", latest), self._counts("served", latest)
        ended_rates, served_rates = self._rates("ended", latest), self._rates("served", latest)
        out = _out(latest)
        scores = _scores(latest)
        names = sorted({group for group, _ in [*ended, *served, *out, *scores]})
        groups = []
        for name in names:
            outcomes = [
                Outcome(outcome=outcome, per_second=ended_rates.get((group, outcome), 0.0), count=count)
                for (group, outcome), count in sorted(ended.items())
                if group == name
            ]
            targets = sorted({target for group, target in [*served, *out, *scores] if group == name})
            whole = sum(rate for (group, _), rate in served_rates.items() if group == name)
            groups.append(
                GroupView(
                    group=name,
                    per_second=sum(each.per_second for each in outcomes),
                    count=sum(each.count for each in outcomes),
                    outcomes=outcomes,
                    targets=[
                        TargetView(
                            target=target,
                            share=served_rates.get((name, target), 0.0) / whole if whole else None,
                            per_second=served_rates.get((name, target), 0.0),
                            count=served.get((name, target), 0),
                            final=scores[name, target][1] if (name, target) in scores else None,
                            dynamic=scores[name, target][2] if (name, target) in scores else None,
                            scored_at=scores[name, target][0] if (name, target) in scores else None,
                            out=out.get((name, target), []),
                        )
                        for target in targets
                    ],
                )
            )
        return View(
            at=now,
            since=self.since,
            processes=len(latest),
            in_flight=sum(each.in_flight for each in latest.values()),
            queued=sum(each.queued for each in latest.values()),
            revisions=sorted({each.revision for each in latest.values()}),
            per_second=sum(each.per_second for each in groups),
            count=sum(each.count for each in groups),
            groups=groups,
        )

    def _counts(self, what: str, latest: Mapping[Process, Said]) -> dict[tuple[str, str], int]:
        counts: dict[tuple[str, str], int] = {}
        for process, said in [*self._gone.items(), *latest.items()]:
            for group, name, count in getattr(said, what):
                counts[group, name] = counts.get((group, name), 0) + count
            if process in self._first:
                for group, name, count in getattr(self._first[process], what):
                    counts[group, name] = counts.get((group, name), 0) - count
        return {key: count for key, count in counts.items() if count}

    def _rates(self, what: str, latest: Mapping[Process, Said]) -> dict[tuple[str, str], float]:
        rates: dict[tuple[str, str], float] = {}
        for process, said in latest.items():
            older = next((reading[process] for reading in self._readings if process in reading), said)
            # One that began to count within the window had counted nothing then.
            new = older is said or said.at - said.since < WINDOW_SECONDS
            seconds = said.at - (said.since if new else older.at)
            if seconds <= 0:
                continue
            before = {} if new else {(group, name): count for group, name, count in getattr(older, what)}
            for group, name, count in getattr(said, what):
                if grown := count - before.get((group, name), 0):
                    rates[group, name] = rates.get((group, name), 0.0) + grown / seconds
        return rates


def _out(latest: Mapping[Process, Said]) -> dict[tuple[str, str], list[str]]:
    """With how many of the processes say so, where not all do."""
    by: dict[tuple[str, str], dict[str, int]] = {}
    for said in latest.values():
        for group, target, reason, detail in said.out:
            reasons = by.setdefault((group, target), {})
            words = reason.replace("_", " ") + (f": {detail}" if detail else "")
            reasons[words] = reasons.get(words, 0) + 1
    whole = len(latest)
    return {
        key: [
            words if count == whole else f"{words} (in {count} of {whole} processes)"
            for words, count in reasons.items()
        ]
        for key, reasons in by.items()
    }


def _scores(latest: Mapping[Process, Said]) -> dict[tuple[str, str], tuple[float, float, float | None]]:
    """The newest of all processes: when, final, dynamic."""
    newest: dict[tuple[str, str], tuple[float, float, float | None]] = {}
    for said in latest.values():
        for group, at, candidates in said.scores:
            for target, final, dynamic in candidates:
                known = newest.get((group, target))
                if known is None or known[0] < at:
                    newest[group, target] = (at, final, dynamic)
    return newest
