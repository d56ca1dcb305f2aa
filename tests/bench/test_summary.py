from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench import summary

MACHINE = {"cpu": "Some CPU", "cores": "2", "system": "Linux 6.1", "python": "3.11.9"}
TITLES = {"direct": "direct", "pilotage": "Pilotage", "litellm": "LiteLLM"}
QUIET = {"others": 0.0, "refused": 0, "failed": 0, "unfinished": 0, "ok": 1_000}


def some_results(folder: Path, *lines: dict[str, Any], left_out: dict[str, str] | None = None) -> summary.Measured:
    about = {
        "kind": "run", "at": "2026-11-29", "rounds": 3, "quick": False, "machine": MACHINE, "titles": TITLES,
        "versions": {"direct": "", "pilotage": "0.1.0", "litellm": "1.2"}, "left_out": left_out or {},
    }  # fmt: skip
    file = folder / "results.jsonl"
    file.write_bytes(b"\n".join(msgspec.json.encode(line) for line in (about, *lines)))
    return summary.read(file)


def series(target: str, name: str, **figures: Any) -> dict[str, Any]:
    return {"kind": "series", "target": target, "series": name, "round": 0, **QUIET, **figures}


def test_tables_show_medians_and_how_far_the_bars_are_kept(tmp_path: Path) -> None:
    measured = some_results(
        tmp_path,
        series("direct", "unary-1", p50=20.0),
        {"kind": "start", "target": "pilotage", "round": 0, "memory_mib": 90.0},
        *[
            series("pilotage", "unary-64", per_second=rate, cpu_us_per_request=cpu, memory_mib=95.0)
            for rate, cpu in ((7_000.0, 150.0), (6_000.0, 160.0), (1_000.0, 900.0))
        ],
        series("pilotage", "unary-1", p50=220.0, memory_mib=92.0),
        series("pilotage", "endurance", memory_mib=125.0),
        series("litellm", "unary-64", per_second=117.2, cpu_us_per_request=8_000.0, memory_mib=466.0),
        series("litellm", "unary-1", p50=10_020.0, memory_mib=460.0),
        left_out={"nginx": "not installed"},
    )
    assert summary.render(measured) == (
        "2026-11-29, Some CPU, 2 cores, Linux 6.1, Python 3.11.9; medians of 3 rounds."
        " Left out: nginx (not installed).\n\n"
        "|  | p50 at 1, ms | requests/s at 16 | requests/s at 64 | CPU us / request at 64 | events/s at 64"
        " | CPU us / event at 64 | CPU us / event, paced 10 ms | memory after, MiB |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
        "| direct | 0.02 |  |  |  |  |  |  |  |\n"
        "| Pilotage, 0.1.0 | 0.22 |  | 6,000 | 160 |  |  |  | 125 |\n"
        "| LiteLLM, 1.2 | 10.02 |  | 117 | 8,000 |  |  |  | 466 |\n\n"
        "| CPU ms / request, 8 in flight | 1 KB | 50 KB, 24 tools | 1 MB, 24 tools |\n"
        "| --- | --- | --- | --- |\n"
        "| Pilotage, 0.1.0 |  |  |  |\n"
        "| LiteLLM, 1.2 |  |  |  |\n\n"
        "|  | measured | asked for | kept |\n"
        "| --- | --- | --- | --- |\n"
        "| CPU per request at 64, LiteLLM / Pilotage | 50.0 | at least 30 | yes |\n"
        "| added latency at 1, p50, LiteLLM / Pilotage | 50.0 | at least 15 | yes |\n"
        "| memory, MiB more after 100,000 conversations than warm | 35.0 | at most 30 | **no** |"
    )


def test_a_disturbed_run_says_so(tmp_path: Path) -> None:
    measured = some_results(tmp_path, series("pilotage", "unary-1", others=1.2))
    assert "**The machine was not quiet:** 1.2 of its cores were busy with something else." in summary.render(measured)


@pytest.mark.parametrize(
    ("line", "answered"),
    [
        (series("pilotage", "1m"), True),
        (series("pilotage", "1m", refused=1), False),
        (series("pilotage", "1m", failed=1), False),
        (series("pilotage", "1m", unfinished=1), False),
        (series("pilotage", "1m", ok=0), False),
        ({"kind": "failed", "target": "pilotage", "round": 0, "problem": "does not answer"}, False),
        (series("litellm", "1m", failed=1), False),  # nothing of ours was measured
    ],
)
def test_a_run_has_failed_when_pilotage_left_a_request_without_its_answer(
    tmp_path: Path, line: dict[str, Any], answered: bool
) -> None:
    assert summary.all_answered(some_results(tmp_path, line)) is answered


def test_figures_of_requests_without_an_answer_are_not_shown(tmp_path: Path) -> None:
    measured = some_results(
        tmp_path,
        series("litellm", "unary-64", cpu_us_per_request=8_000.0),
        series("litellm", "paced-64", cpu_us_per_event=20_000.0, unfinished=64),
    )
    assert measured.median("litellm", "paced-64", "cpu_us_per_event") is None
    assert "no answer 20 s after the end: litellm paced-64." in summary.render(measured)


def test_a_page_without_the_markers_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"{summary.END}\n{summary.BEGIN}\n")
    with pytest.raises(ValueError, match="lacks the lines"):
        summary.write(some_results(tmp_path), page)
    assert page.read_text() == f"{summary.END}\n{summary.BEGIN}\n"
