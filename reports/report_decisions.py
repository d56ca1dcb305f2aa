"""Why requests go where they go."""

from collections.abc import Mapping, Sequence

from reports.core.buckets import TENTHS, VALUE_PREFIX
from reports.core.rollup import AFFINITIES
from reports.filters import Filters
from reports.queries import Scope, decision_counts
from reports.report_usage import MOST_ROWS, NO_NAME, NOTHING_HERE, TARGET, over_time_table, ratio, shares
from reports.rollups import report_zone
from reports.tables import Card, Column, Report, Row, Section, Table

Counts = Mapping[tuple[str, str, str, str], int]
"""By dimension, group, bucket and target."""

KEPT_OUT = ("health", "thresholds", "cool_down")
"""Stages of exclusions that say how a target does, not what a request needs."""
MEASURES = ("requests", "success", *AFFINITIES)
MODES = ("score", "configured", "pinned", "cold_start", "probe", "panic")
_AFFINITY_TITLES = {
    "affinity_hit": "Hit",
    "affinity_miss": "Miss",
    "affinity_expired": "Expired",
    "affinity_evicted": "Evicted",
    "affinity_ineligible": "Target could not serve",
    "affinity_disabled": "Off",
}


def decisions(filters: Filters, scope: Scope) -> Report:
    counts = decision_counts(filters)
    total, before = scope.now.total(MEASURES), scope.before.total(MEASURES)
    served = {
        key: sums for key, sums in scope.now.sums(("requests",), by=TARGET, over_time=True).items() if any(key[1:])
    }
    modes = _by_bucket(counts, "mode")
    decided = sum(modes.values())
    note = (
        f"By days of {report_zone().key} and for all callers and projects; of the filters only the model group counts. "
        f"A running day follows within a quarter of an hour."
    )
    return Report(
        slug="decisions",
        title="Routing decisions",
        lead="Where requests go over time, and what decided it.",
        period=filters.words,
        nothing="" if total["requests"] else NOTHING_HERE,
        notes=scope.missing,
        cards=[
            Card(title="Requests", value=total["requests"], kind="count", before=before["requests"]),
            Card(
                title="Chosen by score", value=ratio(modes.get("score", 0), decided), kind="share", note="of decisions"
            ),
            Card(
                title="Cold start",
                value=ratio(modes.get("cold_start", 0), decided),
                kind="share",
                note="too little was observed to score",
            ),
            Card(
                title="Conversations that stayed",
                value=_stayed(total),
                kind="share",
                before=_stayed(before),
                good="more",
                note="hits, of requests with a pin to look for",
            ),
            Card(
                title="Kept out by health",
                value=sum(
                    count
                    for (dimension, _, bucket, _), count in counts.items()
                    if dimension == "exclusion" and bucket.split("/")[0] in KEPT_OUT
                ),
                kind="count",
                note="times a target was out by health, limits or cool-down",
            ),
        ],
        sections=[
            Section(
                title="Share of each target over time",
                note="Of requests that were sent to a provider, by the target that served or was tried last.",
                chart=shares("Share of each target", filters, served, "requests", "count"),
                tables=[over_time_table("share-over-time", "Requests by target", filters, served, "requests", "count")],
            ),
            Section(title="How decisions were made", note=note, tables=[_modes(counts), *_named(counts)]),
            Section(
                title="Targets that were kept out",
                note="By their health, by limits on error, timeout and latency rates, or resting after a rate limit. "
                + note,
                tables=[_exclusions(counts, "kept-out", "Kept out by how they do", health=True)],
            ),
            Section(
                title="Targets that could not serve a request",
                note="By what the request needs: context, tools, modalities, caps on output. " + note,
                tables=[_exclusions(counts, "exclusions", "Could not serve", health=False)],
            ),
            Section(
                title="Scores",
                note="How often a candidate's score fell into each tenth, named by where it begins. " + note,
                tables=[
                    _tenths(counts, "final_score", "Final score of every candidate"),
                    _tenths(counts, "chosen_final_score", "Final score of the first choice"),
                    _tenths(counts, "dynamic_score", "Dynamic score of every candidate"),
                    _values(counts),
                ],
            ),
            Section(
                title="Conversations",
                note="What became of a conversation's pin to its target.",
                tables=[_affinity(filters, scope)],
            ),
            Section(
                title="Shape of requests",
                note=note,
                tables=[
                    _counted(counts, "input_tokens", "Estimated input tokens"),
                    _counted(counts, "output_cap", "Limit on output tokens"),
                    _counted(counts, "complexity", "Complexity"),
                ],
            ),
        ],
    )


def _named(counts: Counts) -> list[Table]:
    return [
        _counted(counts, dimension, title)
        for dimension, title in (
            ("tie_break", "What made the first the first"),
            ("matched_term", "Score terms that applied"),
            ("signal", "Signals that were on"),
            ("flag", "Flags of decisions"),
        )
    ]


def _stayed(sums: Mapping[str, int]) -> float | None:
    looked_for = sum(sums[name] for name in AFFINITIES if name not in ("affinity_disabled", "affinity_miss"))
    return ratio(sums["affinity_hit"], looked_for)


def _by_bucket(counts: Counts, dimension: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for (each, _, bucket, _), count in counts.items():
        if each == dimension:
            found[bucket] = found.get(bucket, 0) + count
    return found


def _modes(counts: Counts) -> Table:
    groups: dict[str, dict[str, int]] = {}
    for (dimension, group, bucket, _), count in counts.items():
        if dimension == "mode":
            of_group = groups.setdefault(group, {})
            of_group[bucket] = of_group.get(bucket, 0) + count
    words = [*MODES, *sorted({word for each in groups.values() for word in each} - set(MODES))]
    return Table(
        slug="modes",
        title="Modes",
        columns=[
            Column(name="group", title="Model group"),
            Column(name="decisions", title="Decisions", kind="count"),
            *(Column(name=word, title=word.replace("_", " "), kind="count") for word in words),
            Column(name="cold_start_share", title="Cold start", kind="share"),
        ],
        rows=[
            Row(
                values=[
                    group or NO_NAME,
                    sum(of_group.values()),
                    *(of_group.get(word, 0) for word in words),
                    ratio(of_group.get("cold_start", 0), sum(of_group.values())),
                ]
            )
            for group, of_group in sorted(groups.items(), key=lambda each: (-sum(each[1].values()), each[0]))[
                :MOST_ROWS
            ]
        ],
        empty="No decision was summed up yet for these days.",
    )


def _counted(counts: Counts, dimension: str, title: str) -> Table:
    """A row for each bucket of each group."""
    found: dict[tuple[str, str], int] = {}
    for (each, group, bucket, _), count in counts.items():
        if each == dimension:
            found[bucket, group] = found.get((bucket, group), 0) + count
    return _listed(dimension.replace("_", "-"), title, found)


def _listed(slug: str, title: str, found: Mapping[tuple[str, str], int]) -> Table:
    rows = sorted(found.items(), key=lambda each: (-each[1], each[0]))
    return Table(
        slug=slug,
        title=title,
        columns=[
            Column(name="what", title="Value"),
            Column(name="group", title="Model group"),
            Column(name="count", title="Times", kind="count"),
        ],
        rows=[Row(values=[bucket, group or NO_NAME, count]) for (bucket, group), count in rows[:MOST_ROWS]],
        empty="None in these days.",
    )


def _exclusions(counts: Counts, slug: str, title: str, *, health: bool) -> Table:
    found = {
        (target, *bucket.partition("/")[::2], group): count
        for (dimension, group, bucket, target), count in counts.items()
        if dimension == "exclusion" and (bucket.split("/")[0] in KEPT_OUT) is health
    }
    rows: Sequence[tuple[tuple[str, ...], int]] = sorted(found.items(), key=lambda each: (-each[1], each[0]))
    return Table(
        slug=slug,
        title=title,
        columns=[
            Column(name="target", title="Target"),
            Column(name="stage", title="Stage"),
            Column(name="reason", title="Reason"),
            Column(name="group", title="Model group"),
            Column(name="count", title="Times", kind="count"),
        ],
        rows=[Row(values=[*names[:3], names[3] or NO_NAME, count]) for names, count in rows[:MOST_ROWS]],
        empty="None in these days.",
    )


def _tenths(counts: Counts, dimension: str, title: str) -> Table:
    targets: dict[str, dict[str, int]] = {}
    for (each, _, bucket, target), count in counts.items():
        if each == dimension:
            of_target = targets.setdefault(target, {})
            of_target[bucket] = of_target.get(bucket, 0) + count
    return Table(
        slug=dimension.replace("_", "-"),
        title=title,
        columns=[
            Column(name="target", title="Target"),
            *(Column(name=tenth, title=tenth.partition("-")[0], kind="count") for tenth in TENTHS),
        ],
        rows=[
            Row(values=[target or NO_NAME, *(of_target.get(tenth, 0) for tenth in TENTHS)])
            for target, of_target in sorted(targets.items(), key=lambda each: (-sum(each[1].values()), each[0]))[
                :MOST_ROWS
            ]
        ],
        empty="Nothing was scored in these days.",
    )


def _values(counts: Counts) -> Table:
    """The mean of each single score, from the middles of its tenths."""
    found: dict[tuple[str, str], list[float]] = {}
    for (dimension, _, bucket, target), count in counts.items():
        if dimension.startswith(VALUE_PREFIX):
            of_score = found.setdefault((target, dimension.removeprefix(VALUE_PREFIX)), [0.0, 0.0])
            of_score[0] += count * (float(bucket.split("-")[0]) + 0.05)
            of_score[1] += count
    names = sorted({name for _, name in found})
    targets = sorted({target for target, _ in found})
    return Table(
        slug="score-values",
        title="Mean of each score",
        note="0 is the worst, 1 the best; exact to 0.05, as they are made from tenths.",
        columns=[
            Column(name="target", title="Target"),
            *(Column(name=name, title=name.removesuffix("_score").replace("_", " "), kind="number") for name in names),
        ],
        rows=[
            Row(
                values=[
                    target,
                    *(
                        round(found[target, name][0] / found[target, name][1], 2) if (target, name) in found else None
                        for name in names
                    ),
                ]
            )
            for target in targets[:MOST_ROWS]
        ],
        empty="Nothing was scored in these days.",
    )


def _affinity(filters: Filters, scope: Scope) -> Table:
    groups = scope.now.sums(MEASURES, by=("group",))
    rows = sorted(groups.items(), key=lambda each: (-each[1]["requests"], each[0]))
    return Table(
        slug="affinity",
        title="Pins by model group",
        columns=[
            Column(name="group", title="Model group"),
            *(Column(name=name, title=title, kind="count") for name, title in _AFFINITY_TITLES.items()),
            Column(name="hit_share", title="Stayed", kind="share"),
        ],
        rows=[
            Row(
                values=[group or NO_NAME, *(sums[name] for name in _AFFINITY_TITLES), _stayed(sums)],
                narrow=filters.query(group=group) if group else "",
            )
            for (group,), sums in rows[:MOST_ROWS]
        ],
    )
