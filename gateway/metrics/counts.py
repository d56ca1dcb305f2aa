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


class _Group:
    """The lists of one group, found by few look-ups. They are those of `Counts`."""

    __slots__ = ("exchanges", "first_content", "name", "targets")

    def __init__(self, name: str) -> None:
        self.name = name
        self.exchanges: dict[tuple[str, str, int], Histogram] = {}
        self.first_content: Histogram | None = None
        self.targets: dict[str, _Target] = {}


class _Target:
    __slots__ = ("attempts", "input_price", "names", "output_price", "usage")

    def __init__(self, names: tuple[str, str]) -> None:
        self.names = names
        self.attempts: dict[str, Histogram] = {}
        self.usage: list[int] | None = None
        """Of the prices that were met last."""
        self.input_price: int | None = None
        self.output_price: int | None = None


class Recorder:
    """Counts records into `counts`. Not for two threads at a time."""

    def __init__(self, *, max_names: int, counts: Counts | None = None) -> None:
        """`max_names`: of groups, and of targets. `counts`: goes on from there."""
        self.counts = Counts() if counts is None else counts
        self._max_names = max_names
        self._groups: dict[str, _Group] = {"": _Group(NONE)}
        self._other = _Group(OTHER)
        self._other_target = _Target((OTHER, OTHER))
        self._targets = 0

    def add(self, record: EndRecord) -> None:
        group = self._groups.get(record.group) or self._group(record.group)
        duration = record.duration_ms
        key = (record.endpoint, record.outcome, record.status // 100)
        cell = group.exchanges.get(key)
        if cell is None:
            cell = self.counts.exchanges.setdefault((group.name, *key), _EMPTY.copy())
            group.exchanges[key] = cell
        cell[bisect_left(_MS, duration)] += 1
        cell[-1] += duration
        first = record.first_content_ms
        if first is not None:
            cell = group.first_content
            if cell is None:
                cell = group.first_content = self.counts.first_content.setdefault(group.name, _EMPTY.copy())
            cell[bisect_left(_MS, first)] += 1
            cell[-1] += first
        if record.queued_ms:
            cell = self.counts.queued.setdefault(group.name, _EMPTY.copy())
            cell[bisect_left(_MS, record.queued_ms)] += 1
            cell[-1] += record.queued_ms
        if record.error_code is not None and record.outcome == "refused":
            refusals = self.counts.refusals
            refusals[record.error_code] = refusals.get(record.error_code, 0) + 1
        if record.exclusions:
            exclusions = self.counts.exclusions
            for exclusion in record.exclusions:
                stage = (group.name, exclusion.stage)
                exclusions[stage] = exclusions.get(stage, 0) + 1
        if record.attempts:
            self._add_attempts(record, group)

    def _add_attempts(self, record: EndRecord, group: _Group) -> None:
        attempts = record.attempts
        name, target = "", self._other_target
        for attempt in attempts:
            name, outcome, duration = attempt.target, attempt.outcome, attempt.duration_ms
            target = group.targets.get(name) or self._target(group, name)
            cell = target.attempts.get(outcome)
            if cell is None:
                cell = self.counts.attempts.setdefault((*target.names, outcome), _EMPTY.copy())
                target.attempts[outcome] = cell
            cell[bisect_left(_MS, duration)] += 1
            cell[-1] += duration
        if len(attempts) > 1:
            fallbacks = self.counts.fallbacks
            for attempt in attempts[:-1]:
                reason = (group.name, attempt.outcome)
                fallbacks[reason] = fallbacks.get(reason, 0) + 1
        if record.endpoint != "count_tokens":
            if record.target != name:
                name = record.target or ""
                target = group.targets.get(name) or self._target(group, name)
            self._add_usage(record, target)

    def _add_usage(self, record: EndRecord, target: _Target) -> None:
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
            return self._add_bill(record, target)
        read, short, long = record.cache_read_tokens, record.cache_write_tokens, record.cache_write_1h_tokens
        reasoning = record.reasoning_tokens
        if not (read or short or long or reasoning):
            cell = target.usage
            if cell is None or input_price != target.input_price or output_price != target.output_price:
                cell = self._usage_of(target, (input_price, -1, -1, -1, output_price))
                if cell is None:
                    return self._add_bill(record, target)
                target.usage, target.input_price, target.output_price = cell, input_price, output_price
            cell[0] += input
            cell[4] += output
            return None
        if not (
            0 <= (read or 0) <= LIMIT
            and 0 <= (short or 0) <= LIMIT
            and 0 <= (long or 0) <= LIMIT
            and 0 <= (reasoning or 0) <= output
        ):
            return self._add_bill(record, target)
        prices = (
            input_price,
            _known(record.cached_input_price) if read else -1,
            _known(record.cache_write_price) if short else -1,
            _known(record.cache_write_1h_price) if long else -1,
            output_price,
        )
        cell = None
        if not ((read and prices[1] < 0) or (short and prices[2] < 0) or (long and prices[3] < 0)):
            cell = self._usage_of(target, prices)
        if cell is None:
            return self._add_bill(record, target)
        for place, count in enumerate((input, read, short, long, output, reasoning)):
            if count:
                cell[place] += count
        return None

    def _usage_of(self, target: _Target, prices: Prices) -> list[int] | None:
        """`None`: prices change all the time, and there is no room for further ones."""
        usage = self.counts.usage
        cell = usage.get((*target.names, prices))
        if cell is None and len(usage) < 4 * self._max_names:
            cell = usage[(*target.names, prices)] = [0, 0, 0, 0, 0, 0]
        return cell

    def _add_bill(self, record: EndRecord, target: _Target) -> None:
        """The exact arithmetic of reports, for what is not plain."""
        found = bill(record)
        cell = self.counts.billed.setdefault(target.names, [0] * 8)
        for place, name in enumerate(CLASSES):
            cell[place] += getattr(found.tokens, name) or 0
        cell[5] += found.tokens.reasoning or 0
        if found.microdollars is None:
            cell[7] += 1
        else:
            cell[6] += found.microdollars

    def _group(self, name: str) -> _Group:
        if len(self._groups) > self._max_names:
            return self._other
        return self._groups.setdefault(name, _Group(name))

    def _target(self, group: _Group, name: str) -> _Target:
        """A target is counted under its group's name, or both are `other`."""
        if self._targets >= self._max_names:
            return self._other_target
        self._targets += 1
        return group.targets.setdefault(name, _Target((group.name, name or NONE)))


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
