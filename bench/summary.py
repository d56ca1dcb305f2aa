"""The results of a run as Markdown: `python -m bench.summary [RESULTS] [--write FILE]`."""

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

BEGIN: Final = "<!-- figures: written by bench.run -->"
END: Final = "<!-- end of figures -->"

OURS: Final = "pilotage"


@dataclass(slots=True)
class Measured:
    """One run. `series`: by target, series and figure, one value for each round."""

    about: dict[str, Any] = field(default_factory=dict)
    series: dict[str, dict[str, dict[str, list[float]]]] = field(default_factory=dict)
    warm_mib: dict[str, float] = field(default_factory=dict)
    """Memory after the warm-up, in the first round."""
    failed: dict[str, str] = field(default_factory=dict)
    unfinished: set[str] = field(default_factory=set)
    """Targets and series that left requests without an answer: their figures would say nothing."""
    inside: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What `bench.decide` and `bench.relay` printed."""

    def median(self, target: str, series: str, figure: str) -> float | None:
        values = self.series.get(target, {}).get(series, {}).get(figure)
        return statistics.median(values) if values else None

    def most(self, target: str, figure: str) -> float | None:
        """Over all series and rounds."""
        return max(
            (value for each in self.series.get(target, {}).values() for value in each.get(figure, ())), default=None
        )


def read(results: Path) -> Measured:
    measured = Measured()
    for line in results.read_text().splitlines():
        entry = json.loads(line)
        match entry.pop("kind"):
            case "run":
                measured.about = entry
            case "start":
                measured.warm_mib.setdefault(entry["target"], entry["memory_mib"])
            case "failed":
                measured.failed[entry["target"]] = entry["problem"]
            case "series" if entry["unfinished"]:
                measured.unfinished.add(f"{entry['target']} {entry['series']}")
            case "series":
                figures = measured.series.setdefault(entry["target"], {}).setdefault(entry["series"], {})
                for name, value in entry.items():
                    if isinstance(value, int | float):
                        figures.setdefault(name, []).append(value)
            case inside:
                measured.inside[inside] = entry
    return measured


def all_answered(measured: Measured) -> bool:
    """Whether every request to Pilotage got its answer."""
    for name in measured.about["versions"]:
        if not name.startswith(OURS):
            continue
        series = measured.series.get(name)
        if not series or name in measured.failed or any(each.startswith(f"{name} ") for each in measured.unfinished):
            return False
        for figures in series.values():
            if not all(figures["ok"]) or any(figures["refused"]) or any(figures["failed"]):
                return False
    return True


def render(measured: Measured) -> str:
    """All tables, with a line that says what was measured where."""
    parts = [
        _where(measured),
        _speed(measured),
        _sizes(measured),
        _bars(measured),
        _decisions(measured),
        _steps(measured),
    ]
    return "\n\n".join(part for part in parts if part)


def write(measured: Measured, page: Path) -> None:
    """Puts the tables between the two markers of a page."""
    text = page.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} lacks the lines {BEGIN!r} and {END!r}")
    page.write_text(f"{before}{BEGIN}\n\n{render(measured)}\n\n{END}{after}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """What Pilotage is meant to keep, within one run on one machine."""

    what: str
    measured: float
    asked: str
    kept: bool


def bars(measured: Measured) -> list[Bar]:
    """Those for which everything was measured."""
    ratio = _Ratios(measured)
    at_least = [
        ("CPU per request at 64, LiteLLM / Pilotage", ratio.cpu("litellm"), 30),
        ("CPU per request at 64, Portkey / Pilotage", ratio.cpu("portkey"), 3),
        ("CPU per request at 64, ferrogw (Go) / Pilotage", ratio.cpu("ferrogw"), 1),
        ("CPU per request at 64, smg (Rust) / Pilotage", ratio.cpu("smg"), 1),
        ("CPU per paced event, LiteLLM / Pilotage", ratio.paced("litellm"), 14),
        ("added latency at 1, p50, LiteLLM / Pilotage", ratio.added("litellm"), 15),
        ("CPU per 1 MB request, LiteLLM / Pilotage", ratio.megabyte("litellm"), 6),
        (
            "CPU per request with 100 targets, LiteLLM under latency routing / Pilotage",
            ratio.cpu("litellm-100-latency", ours="pilotage-100"),
            25,
        ),
    ]
    found = [
        Bar(what=what, measured=value, asked=f"at least {least}", kept=value >= least)
        for what, value, least in at_least
        if value is not None
    ]
    grown = ratio.growth()
    if grown is not None:
        what = "memory, MiB more after 100,000 conversations than warm"
        found.append(Bar(what=what, measured=grown, asked="at most 30", kept=grown <= 30))
    return found


# The parts of the page.


def _where(measured: Measured) -> str:
    about, machine = measured.about, measured.about["machine"]
    rounds = "one round" if about["rounds"] == 1 else f"medians of {about['rounds']} rounds"
    if about["quick"]:
        rounds += " of short series"
    said = (
        f"{about['at']}, {machine['cpu']}, {machine['cores']} cores, {machine['system']}, Python {machine['python']}; "
        f"{rounds}."
    )
    others = [value for target in measured.series.values() for each in target.values() for value in each["others"]]
    if others and statistics.median(others) > 0.1:
        said += (
            f" **The machine was not quiet:** {statistics.median(others):.1f} of its cores were busy with something else. "
            "Latencies and rates are worse than they could be, and CPU time is a multiple of what it is on a machine "
            "of one's own: these figures only show that everything was measured."
        )
    left_out = [f"{name} ({reason})" for name, reason in (about["left_out"] | measured.failed).items()]
    if left_out:
        said += f" Left out: {', '.join(left_out)}."
    if measured.unfinished:
        said += (
            f" Not shown, because requests had no answer 20 s after the end: {', '.join(sorted(measured.unfinished))}."
        )
    return said


def _speed(measured: Measured) -> str:
    head = (
        "", "p50 at 1, ms", "requests/s at 16", "requests/s at 64", "CPU us / request at 64", "events/s at 64",
        "CPU us / event at 64", "CPU us / event, paced 10 ms", "memory after, MiB",
    )  # fmt: skip
    median = measured.median
    rows = [
        [
            _title(measured, name),
            _milliseconds(median(name, "unary-1", "p50")),
            _whole(median(name, "unary-16", "per_second")),
            _whole(median(name, "unary-64", "per_second")),
            _whole(median(name, "unary-64", "cpu_us_per_request")),
            _whole(median(name, "stream-64", "events_per_second")),
            _tenth(median(name, "stream-64", "cpu_us_per_event")),
            _tenth(median(name, "paced-64", "cpu_us_per_event")),
            _whole(measured.most(name, "memory_mib")),
        ]
        for name in measured.series
    ]
    return _table(head, rows)


def _sizes(measured: Measured) -> str:
    """CPU by the size of the body."""
    rows = [
        [
            _title(measured, name),
            *(_milliseconds(measured.median(name, size, "cpu_us_per_request")) for size in ("1k", "50k", "1m")),
        ]
        for name in measured.series
        if name != "direct"
    ]
    return _table(("CPU ms / request, 8 in flight", "1 KB", "50 KB, 24 tools", "1 MB, 24 tools"), rows)


def _bars(measured: Measured) -> str:
    rows = [[bar.what, f"{bar.measured:.1f}", bar.asked, "yes" if bar.kept else "**no**"] for bar in bars(measured)]
    return _table(("", "measured", "asked for", "kept"), rows) if rows else ""


@dataclass(frozen=True, slots=True)
class _Ratios:
    """What another needs for what Pilotage needs 1 for; `None` where one of them was not measured."""

    measured: Measured

    def cpu(self, other: str, *, ours: str = OURS) -> float | None:
        return self._of("unary-64", "cpu_us_per_request", other, ours)

    def paced(self, other: str) -> float | None:
        return self._of("paced-64", "cpu_us_per_event", other, OURS)

    def megabyte(self, other: str) -> float | None:
        return self._of("1m", "cpu_us_per_request", other, OURS)

    def added(self, other: str) -> float | None:
        direct, theirs, ours = (self.measured.median(name, "unary-1", "p50") for name in ("direct", other, OURS))
        if direct is None or theirs is None or ours is None or ours <= direct:
            return None
        return (theirs - direct) / (ours - direct)

    def growth(self) -> float | None:
        after, warm = self.measured.median(OURS, "endurance", "memory_mib"), self.measured.warm_mib.get(OURS)
        return None if after is None or warm is None else after - warm

    def _of(self, series: str, figure: str, other: str, ours: str) -> float | None:
        theirs, own = self.measured.median(other, series, figure), self.measured.median(ours, series, figure)
        return None if theirs is None or not own else theirs / own


def _decisions(measured: Measured) -> str:
    """The choice alone."""
    found = measured.inside.get("decide")
    if found is None:
        return ""
    choices = [
        [str(row["targets"]), _whole(row["decide_us"]), _whole(row["decide_us"] / row["targets"], 1)]
        for row in found["targets"]
    ]
    columns = ("decode_us", "shape_us", "begun_us", "scanned_us", "decide_us")
    prompts = [[f"{row['bytes']:,}", *(_whole(row[column]) for column in columns)] for row in found["prompts"]]
    head = (
        "prompt, bytes", "decode, CPU us", "shape", "shape, conversation told by its beginning",
        "shape with prompt features", "`decide()`",
    )  # fmt: skip
    return (
        _table(("targets, two terms", "`decide()`, CPU us", "for each target"), choices)
        + "\n\n"
        + _table(head, prompts)
    )


def _steps(measured: Measured) -> str:
    """What each step of a request costs."""
    found = measured.inside.get("relay")
    if found is None:
        return ""
    rows = [[row["step"], _tenth(row["us"])] for row in found["steps"]]
    return _table(("step of a request in the relay, 8 targets", "us"), rows)


# How a table is written.


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _title(measured: Measured, name: str) -> str:
    titles: Mapping[str, str] = measured.about["titles"]
    version = measured.about["versions"].get(name)
    return f"{titles[name]}, {version}" if version else titles[name]


def _milliseconds(us: float | None) -> str:
    return "" if us is None else f"{us / 1_000:.2f}"


def _tenth(value: float | None) -> str:
    return _whole(value, 1)


def _whole(value: float | None, digits: int = 0) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def _newest() -> Path:
    folder = Path(__file__).resolve().parent.parent / "out" / "results"
    found: Iterator[Path] = iter(sorted(folder.glob("*.jsonl"), reverse=True))
    newest = next(found, None)
    if newest is None:
        raise SystemExit("there are no results yet: make bench")
    return newest


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.summary", description=__doc__)
    parser.add_argument("results", nargs="?", type=Path, help="default: the newest in out/results")
    parser.add_argument("--write", type=Path, metavar="FILE", help="puts the tables between their markers in FILE")
    options = parser.parse_args()
    measured = read(options.results or _newest())
    if options.write:
        write(measured, options.write)
    else:
        sys.stdout.write(render(measured) + "\n")


if __name__ == "__main__":
    main()
