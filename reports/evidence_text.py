"""Evidence for people, on a terminal."""

from collections.abc import Mapping
from typing import Any, Final

from reports.evidence import Cost, Evidence, as_document

_WIDTH: Final = 24


def as_text(found: Evidence) -> str:
    document = as_document(found)
    lines = [
        _pair("exchange", found.id, indent=""),
        _pair("completeness", found.completeness, indent=""),
        _pair("deleted for its age", ", ".join(found.missing), indent=""),
        _pair("started at", document["started_at"], indent=""),
    ]
    for name in ("who", "request", "outcome", "timings", "served_by", "shape", "decision"):
        lines += _section(name.replace("_", " "), _pairs(document[name]))
    lines += _section("candidates", _candidates(document["candidates"]))
    lines += _section(
        "exclusions", [f"  {x['target']}: {x['reason']} ({x['stage']}) {x['detail']}" for x in document["exclusions"]]
    )
    lines += _section("attempts", [f"  {number}. {_line(x)}" for number, x in enumerate(document["attempts"], 1)])
    lines += _section(
        "fallbacks", [f"  {x['from_target']} -> {x['to_target']}: {x['reason']}" for x in document["transitions"]]
    )
    lines += _section("usage", _pairs({**(document["tokens"] or {}), **document["usage"]}))
    lines += _section("cost", _cost(found.cost) if found.cost is not None else [])
    return "\n".join(line for line in lines if line is not None) + "\n"


def _section(title: str, lines: list[str]) -> list[str]:
    return ["", title.capitalize(), *lines] if lines else []


def _pairs(section: Mapping[str, Any]) -> list[str]:
    return [line for name, value in section.items() if (line := _pair(name, value)) is not None]


def _pair(name: str, value: object, *, indent: str = "  ") -> str | None:
    """`None` for what says nothing."""
    if value is None or value in ("", [], ()):
        return None
    return f"{indent}{name.replace('_', ' '):<{_WIDTH}} {_shown(value)}"


def _candidates(candidates: list[dict[str, Any]]) -> list[str]:
    lines = []
    for number, each in enumerate(candidates, 1):
        numbers = {name: value for name, value in each.items() if name not in ("target", "scores", "terms")}
        lines.append(f"  {number}. {each['target']}  {_line(numbers)}")
        for score in each["scores"]:
            flag = f", {score['flag']}" if score["flag"] else ""
            lines.append(f"       {score['name']:<24} {_shown(score['value']):<12} from {_shown(score['raw'])}{flag}")
        for term in each["terms"]:
            tags = f", {term['preferred_tags']} preferred tags" if term["preferred_tags"] else ""
            flag = f", {term['flag']}" if term["flag"] else ""
            lines.append(
                f"       {term['name']:<24} {_shown(term['value']):<12} share {_shown(term['share'])}{tags}{flag}"
            )
    return lines


def _cost(cost: Cost) -> list[str]:
    lines = [
        f"  {line.token_class:<{_WIDTH}} {line.tokens:,} x "
        + ("an unknown price" if line.price is None else f"${line.price / 1e6:,.6f} per million")
        + ("" if line.picodollars is None else f" = ${_dollars(line.picodollars, 12)}")
        for line in cost.lines
    ]
    total = "unknown" if cost.microdollars is None else "$" + _dollars(cost.microdollars, 6)
    flags = f" ({', '.join(cost.flags)})" if cost.flags else ""
    return [*lines, f"  {'total':<{_WIDTH}} {total}{flags}"]


def _dollars(units: int, digits: int) -> str:
    """`units`: of 10 ** -digits dollars."""
    whole, rest = divmod(units, 10**digits)
    return f"{whole:,}.{rest:0{digits}}"


def _line(entry: Mapping[str, Any]) -> str:
    said = {name: value for name, value in entry.items() if value is not None and value not in ("", False)}
    return ", ".join(f"{name.replace('_', ' ')} {_shown(value)}" for name, value in said.items())


def _shown(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(str(each) for each in value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)
