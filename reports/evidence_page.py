"""Evidence for people, on a page: what is known of one exchange, in the order of their questions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from reports.evidence import Completeness, Cost, Evidence
from reports.figures import milliseconds, shown, size
from reports.tables import Column, Row, Table

MEANINGS: Final[Mapping[Completeness, str]] = {
    "complete": "Complete: everything that was recorded is here.",
    "in_progress": "Under way: it has begun, and its end has not been read yet. Load this page again in a moment.",
    "aborted": "Its process died before it was over: what came in is known, how it ended is not.",
    "expired": "Some of its detail was deleted for its age.",
    "not_ingested_yet": "Read from the spool of this host: it is not in the database yet.",
    "unknown": "No trace of it. The id may be mistyped; the exchange may be deleted for its age, or wait in another host's "
    "spool, or have been refused before it reached a model group's endpoint.",
}

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stroke of the timeline, in percent of the whole."""

    title: str
    start: float
    width: float
    first: float | None
    """Where its first content came."""
    good: bool
    told: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    outcome: Sequence[Pair]
    who: Sequence[Pair]
    shape: Sequence[Pair]
    decision: Sequence[Pair]
    candidates: Table
    scores: Table
    terms: Table
    exclusions: Table
    timeline: Sequence[Span]
    attempts: Table
    transitions: Table
    timings: Sequence[Pair]
    usage: Sequence[Pair]
    arithmetic: Table
    total: str
    cost_notes: str


def told(found: Evidence) -> Told:
    served, outcome, timings = found.served_by, found.outcome, found.timings
    return Told(
        outcome=_pairs(
            ("Outcome", outcome.get("outcome")),
            ("Status", outcome.get("status")),
            ("Error code", outcome.get("error_code")),
            ("Detail", outcome.get("error_detail")),
            ("End of the stream", outcome.get("terminal_marker")),
            ("Served by", served.get("target")),
            ("Provider", served.get("provider")),
            ("Model", served.get("model")),
        ),
        who=_pairs(
            *((title.capitalize(), found.who.get(title)) for title in ("caller", "project", "environment", "token")),
            ("Endpoint", found.request.get("endpoint")),
            ("Model group", found.request.get("group")),
            ("Dialect", found.request.get("dialect")),
            ("Streamed", found.request.get("stream")),
            ("Request body", _bytes(found.request.get("request_bytes"))),
            ("Response body", _bytes(found.request.get("response_bytes"))),
            ("Legal hold", found.request.get("legal_hold") or None),
        ),
        shape=_pairs(
            ("Input tokens, estimated", found.shape.get("input_tokens_estimated")),
            ("Limit on output tokens", found.shape.get("output_cap")),
            ("Tools", found.shape.get("tool_count")),
            ("Images", found.shape.get("image_count")),
            ("Complexity", _with(found.shape.get("complexity"), found.shape.get("complexity_bucket"))),
            ("Prompt features", found.shape.get("prompt_features")),
        ),
        decision=_pairs(
            ("Strategy", found.decision.get("strategy")),
            ("Mode", found.decision.get("mode")),
            ("Conversation", _words(found.decision.get("affinity"))),
            ("What made the first the first", found.decision.get("tie_break")),
            ("Chance of this choice", found.decision.get("propensity")),
            ("Signals", found.decision.get("signals")),
            ("Score terms that applied", found.decision.get("matched_terms")),
            ("Flags", found.decision.get("flags")),
        ),
        candidates=_candidates(found),
        scores=_matrix(found, "scores", "score-values", "Single scores", "Score", _score),
        terms=_matrix(found, "terms", "terms", "Score terms", "Term", _term),
        exclusions=_exclusions(found),
        timeline=_timeline(found),
        attempts=_attempts(found),
        transitions=_transitions(found),
        timings=_pairs(
            ("Whole duration", _ms(timings.get("duration_ms"))),
            ("First content after", _ms(timings.get("first_content_ms"))),
            ("Waited for a place", _ms(timings.get("queued_ms"))),
        ),
        usage=_pairs(
            ("Usage", found.usage.get("usage_quality")),
            ("Prompt cache", found.usage.get("prompt_cache")),
            ("Reasoning tokens", found.tokens.reasoning if found.tokens else None),
        ),
        arithmetic=_arithmetic(found.cost),
        total="unknown"
        if found.cost is None or found.cost.microdollars is None
        else _exact(found.cost.microdollars, 6),
        cost_notes=", ".join(flag.replace("_", " ") for flag in found.cost.flags) if found.cost else "",
    )


def _pairs(*said: tuple[str, object]) -> list[Pair]:
    return [(title, _text(value)) for title, value in said if value not in (None, "", [], ())]


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(str(each) for each in value)
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _words(slug: object) -> str | None:
    return slug.removeprefix("affinity_").replace("_", " ") if isinstance(slug, str) else None


def _with(value: object, word: object) -> str | None:
    return None if value is None else f"{_text(value)} ({word})" if word else _text(value)


def _ms(value: float | None) -> str | None:
    return None if value is None else milliseconds(value)


def _bytes(value: int | None) -> str | None:
    return None if value is None else size(value)


def _candidates(found: Evidence) -> Table:
    return Table(
        slug="candidates",
        title="Candidates, in the order of trying",
        columns=[
            Column(name="target", title="Target"),
            Column(name="final", title="Final score", kind="number"),
            Column(name="contrasted", title="Contrasted D'", kind="number"),
            Column(name="dynamic", title="Dynamic D", kind="number"),
            Column(name="weight", title="Weight", kind="number"),
            Column(name="observations", title="Observations", kind="number"),
            Column(name="in_flight", title="In flight", kind="count"),
            Column(name="overdue", title="Overdue", kind="count"),
            Column(name="near_tie", title="Near tie"),
        ],
        rows=[
            Row(
                values=[
                    each["target"],
                    each["final_score"],
                    each["contrasted_score"],
                    each["dynamic_score"],
                    each["weight"],
                    each["observations"],
                    each["in_flight"],
                    each["overdue"],
                    "yes" if each["near_tie"] else "",
                ]
            )
            for each in found.candidates
        ],
        empty="Deleted for their age."
        if "candidates" in found.missing
        else "None: no target could serve, or none was looked for.",
    )


def _matrix(
    found: Evidence, part: str, slug: str, title: str, first: str, write: Callable[[Mapping[str, Any]], str]
) -> Table:
    """A row for each name, a column for each candidate."""
    names = list(dict.fromkeys(entry["name"] for each in found.candidates for entry in each[part]))
    columns = [{entry["name"]: write(entry) for entry in each[part]} for each in found.candidates]
    return Table(
        slug=slug,
        title=title,
        columns=[
            Column(name="name", title=first),
            *(Column(name=each["target"], title=each["target"]) for each in found.candidates),
        ],
        rows=[Row(values=[name, *(column.get(name, "") for column in columns)]) for name in names],
        empty="None were computed.",
    )


def _score(entry: Mapping[str, Any]) -> str:
    value = shown(entry["value"], "number")
    flag = f", {entry['flag'].replace('_', ' ')}" if entry["flag"] else ""
    return f"{value} from {_text(entry['raw'])}{flag}" if entry["raw"] is not None else f"{value}{flag}"


def _term(entry: Mapping[str, Any]) -> str:
    tags = f", {entry['preferred_tags']} preferred tags" if entry["preferred_tags"] else ""
    flag = f", {entry['flag'].replace('_', ' ')}" if entry["flag"] else ""
    return f"{shown(entry['value'], 'number')} × share {shown(entry['share'], 'number')}{tags}{flag}"


def _exclusions(found: Evidence) -> Table:
    return Table(
        slug="exclusions",
        title="Targets that were out",
        columns=[
            Column(name="target", title="Target"),
            Column(name="stage", title="Stage"),
            Column(name="reason", title="Reason"),
            Column(name="detail", title="Detail"),
        ],
        rows=[
            Row(values=[each["target"], each["stage"].replace("_", " "), each["reason"], each["detail"]])
            for each in found.exclusions
        ],
        empty="Deleted for their age." if "exclusions" in found.missing else "None: every target could serve.",
    )


def _timeline(found: Evidence) -> list[Span]:
    ends = [each["started_ms"] + each["duration_ms"] for each in found.attempts]
    whole = max([found.timings.get("duration_ms") or 0.0, *ends], default=0.0)
    if not found.attempts or whole <= 0:
        return []
    return [
        Span(
            title=f"{number}. {each['target']}",
            start=round(100 * each["started_ms"] / whole, 2),
            width=max(0.5, round(100 * each["duration_ms"] / whole, 2)),
            first=None
            if each["first_content_ms"] is None
            else round(100 * (each["started_ms"] + each["first_content_ms"]) / whole, 2),
            good=each["outcome"] == "ok",
            told=f"from {milliseconds(each['started_ms'])} for {milliseconds(each['duration_ms'])}: {_words(each['outcome'])}",
        )
        for number, each in enumerate(found.attempts, 1)
    ]


def _attempts(found: Evidence) -> Table:
    return Table(
        slug="attempts",
        title="Attempts",
        columns=[
            Column(name="target", title="Target"),
            Column(name="outcome", title="Outcome"),
            Column(name="status", title="Status", kind="count"),
            Column(name="error_code", title="Error code"),
            Column(name="started_ms", title="Began after", kind="ms"),
            Column(name="duration_ms", title="Took", kind="ms"),
            Column(name="first_content_ms", title="First content", kind="ms"),
            Column(name="retry_after_s", title="Asked to wait, s", kind="number"),
            Column(name="cost_usd", title="Cost", kind="usd"),
        ],
        rows=[
            Row(
                values=[
                    each["target"],
                    (_words(each["outcome"]) or "") + (", served" if each["served"] else ""),
                    each["status"],
                    each["error_code"],
                    each["started_ms"],
                    each["duration_ms"],
                    each["first_content_ms"],
                    each["retry_after_s"],
                    each["cost_microdollars"] if each["served"] else "",
                ]
            )
            for each in found.attempts
        ],
        empty="Deleted for their age." if "attempts" in found.missing else "None: no provider was asked.",
    )


def _transitions(found: Evidence) -> Table:
    return Table(
        slug="transitions",
        title="Fallbacks",
        columns=[
            Column(name="from", title="From"),
            Column(name="to", title="To"),
            Column(name="reason", title="Because of"),
        ],
        rows=[
            Row(values=[each["from_target"], each["to_target"], _words(each["reason"])]) for each in found.transitions
        ],
        empty="None.",
    )


def _arithmetic(cost: Cost | None) -> Table:
    return Table(
        slug="arithmetic",
        title="Tokens times price",
        columns=[
            Column(name="class", title="Tokens"),
            Column(name="tokens", title="Count", kind="count"),
            Column(name="price", title="Price for a million", kind="usd"),
            Column(name="cost", title="Cost"),
        ],
        rows=[
            Row(
                values=[
                    line.token_class.replace("_", " "),
                    line.tokens,
                    line.price,
                    "unknown" if line.picodollars is None else _exact(line.picodollars, 12),
                ]
            )
            for line in (cost.lines if cost else ())
        ],
        empty="Nothing was counted: no provider accepted the request, or it is not over.",
    )


def _exact(units: int, digits: int) -> str:
    """`units`: of 10 ** -digits dollars; to the cent at least."""
    whole, rest = divmod(units, 10**digits)
    fraction = f"{rest:0{digits}}".rstrip("0")
    return f"${whole:,}.{fraction.ljust(2, '0')}"
