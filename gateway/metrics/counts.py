"""What one process counts of its exchanges, from their end records. No I/O; a record costs a few microseconds.

Counts are plain lists in dictionaries: they are added up by name only when somebody reads them (`families.py`), may be
read by another thread meanwhile, and travel between processes as MessagePack.
"""

from bisect import bisect_left
from typing import Final

import msgspec

from reports.core.cost import CLASSES, LIMIT, bill
from reports.core.record import EndRecord

SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Upper bounds of the histograms' buckets, included; the last bucket has none."""
_MS: Final = tuple(bound * 1000 for bound in SECONDS)
_EMPTY: Final = [0.0] * (len(_MS) + 2)
"""One count per bucket, then the sum in milliseconds."""

OTHER: Final = "other"
"""Stands for every name beyond the bound."""
NONE: Final = "none"
"""Stands where an exchange had no group or target yet."""

Histogram = list[float]
Prices = tuple[int, int, int, int, int]


class Counts(msgspec.Struct, kw_only=True):
    """Since the start of the process."""

    exchanges: dict[tuple[str, str, str, int], Histogram] = {}
    """Durations by group, endpoint, outcome and the first digit of the status."""
    first_content: dict[str, Histogram] = {}
    """By group."""
    queued: dict[str, Histogram] = {}
    """By group, of those that waited."""
    attempts: dict[tuple[str, str, str], Histogram] = {}
    """Durations by group, target and outcome."""
    fallbacks: dict[tuple[str, str], int] = {}
    """By group and the outcome of the attempt after which another target was tried."""
    exclusions: dict[tuple[str, str], int] = {}
    """By group and stage."""
    refusals: dict[str, int] = {}
    """By code."""
    usage: dict[tuple[str, str, Prices], list[int]] = {}
    """Tokens in the order of `CLASSES`, and reasoning, by group, target and prices (-1: unknown): what needs no second
    look."""
    billed: dict[tuple[str, str], list[int]] = {}
    """As in `usage`, of those that had to be estimated; then micro-dollars, then how many have no known cost."""


class Recorder:
    """Counts records into `counts`. Not for two threads at a time."""

    def __init__(self, *, max_names: int, counts: Counts | None = None) -> None:
        """`max_names`: of groups, and of targets. `counts`: goes on from there."""
        self.counts = Counts() if counts is None else counts
        self._max_names = max_names
        self._groups: dict[str, str] = {"": NONE}
        self._targets: dict[tuple[str, str], tuple[str, str]] = {}

    def add(self, record: EndRecord) -> None:
        counts = self.counts
        group = self._groups.get(record.group) or self._name_of(record.group)
        duration = record.duration_ms
        key = (group, record.endpoint, record.outcome, record.status // 100)
        cell = counts.exchanges.get(key) or counts.exchanges.setdefault(key, _EMPTY.copy())
        cell[bisect_left(_MS, duration)] += 1
        cell[-1] += duration
        first = record.first_content_ms
        if first is not None:
            cell = counts.first_content.get(group) or counts.first_content.setdefault(group, _EMPTY.copy())
            cell[bisect_left(_MS, first)] += 1
            cell[-1] += first
        if record.queued_ms:
            cell = counts.queued.get(group) or counts.queued.setdefault(group, _EMPTY.copy())
            cell[bisect_left(_MS, record.queued_ms)] += 1
            cell[-1] += record.queued_ms
        code = record.error_code
        if code is not None and record.outcome == "refused":
            counts.refusals[code] = counts.refusals.get(code, 0) + 1
        for exclusion in record.exclusions:
            stage = (group, exclusion.stage)
            counts.exclusions[stage] = counts.exclusions.get(stage, 0) + 1
        attempts = record.attempts
        if attempts:
            self._add_attempts(record, group)
            if record.endpoint != "count_tokens":
                self._add_usage(record, group)

    def _add_attempts(self, record: EndRecord, group: str) -> None:
        counts, attempts = self.counts, record.attempts
        for attempt in attempts:
            names = self._targets.get((group, attempt.target)) or self._names_of(group, attempt.target)
            key = (*names, attempt.outcome)
            cell = counts.attempts.get(key) or counts.attempts.setdefault(key, _EMPTY.copy())
            cell[bisect_left(_MS, attempt.duration_ms)] += 1
            cell[-1] += attempt.duration_ms
        if len(attempts) > 1:
            for attempt in attempts[:-1]:
                reason = (group, attempt.outcome)
                counts.fallbacks[reason] = counts.fallbacks.get(reason, 0) + 1

    def _add_usage(self, record: EndRecord, group: str) -> None:
        target = record.target or ""
        names = self._targets.get((group, target)) or self._names_of(group, target)
        input, output = record.input_tokens, record.output_tokens
        input_price, output_price = record.input_price, record.output_price
        if (
            record.usage_quality != "reported"
            or input is None
            or output is None
            or input_price is None
            or output_price is None
            or not (0 <= input <= LIMIT and 0 <= output <= LIMIT)
        ):
            return self._add_bill(record, names)
        read, short, long = record.cache_read_tokens, record.cache_write_tokens, record.cache_write_1h_tokens
        reasoning = record.reasoning_tokens
        if not (read or short or long or reasoning):
            prices = (input_price, -1, -1, -1, output_price)
        elif not (
            0 <= (read or 0) <= LIMIT
            and 0 <= (short or 0) <= LIMIT
            and 0 <= (long or 0) <= LIMIT
            and 0 <= (reasoning or 0) <= output
        ):
            return self._add_bill(record, names)
        else:
            prices = (
                input_price,
                _known(record.cached_input_price) if read else -1,
                _known(record.cache_write_price) if short else -1,
                _known(record.cache_write_1h_price) if long else -1,
                output_price,
            )
            if (read and prices[1] < 0) or (short and prices[2] < 0) or (long and prices[3] < 0):
                return self._add_bill(record, names)
        key = (*names, prices)
        cell = self.counts.usage.get(key)
        if cell is None:
            if len(self.counts.usage) >= 4 * self._max_names:  # prices that change all the time
                return self._add_bill(record, names)
            cell = self.counts.usage[key] = [0, 0, 0, 0, 0, 0]
        cell[0] += input
        cell[4] += output
        if read:
            cell[1] += read
        if short:
            cell[2] += short
        if long:
            cell[3] += long
        if reasoning:
            cell[5] += reasoning
        return None

    def _add_bill(self, record: EndRecord, names: tuple[str, str]) -> None:
        """The exact arithmetic of reports, for what is not plain."""
        found = bill(record)
        cell = self.counts.billed.setdefault(names, [0] * 8)
        for place, name in enumerate(CLASSES):
            cell[place] += getattr(found.tokens, name) or 0
        cell[5] += found.tokens.reasoning or 0
        if found.microdollars is None:
            cell[7] += 1
        else:
            cell[6] += found.microdollars

    def _name_of(self, group: str) -> str:
        if len(self._groups) > self._max_names:
            return OTHER
        return self._groups.setdefault(group, group)

    def _names_of(self, group: str, target: str) -> tuple[str, str]:
        """Of an own bound: a target is counted under its group's name, or both are `other`."""
        if len(self._targets) >= self._max_names:
            return (OTHER, OTHER)
        return self._targets.setdefault((group, target), (group, target or NONE))


def merged(all_counts: list[Counts]) -> Counts:
    """The sum of what several processes counted."""
    total = Counts()
    for counts in all_counts:
        for name in Counts.__struct_fields__:
            into, table = getattr(total, name), getattr(counts, name)
            for key, value in list(table.items()):
                have = into.get(key)
                if isinstance(value, list):
                    into[key] = value.copy() if have is None else [a + b for a, b in zip(have, value, strict=True)]
                else:
                    into[key] = value + (have or 0)
    return total


def _known(price: int | None) -> int:
    return -1 if price is None or not 0 <= price <= LIMIT else price
