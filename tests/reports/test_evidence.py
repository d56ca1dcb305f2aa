"""Everything that is known of one exchange, wherever it is."""

import dataclasses
import io
from pathlib import Path

import msgspec
import pytest
from django.conf import settings
from django.core.management import CommandError, call_command

from reports.evidence import Evidence, as_document, evidence
from reports.evidence_text import as_text
from reports.ingest import Ingest
from reports.models import Attempt, Candidate, Exchange, Exclusion, SpoolFile
from tests.reports.records import a_spool, add, an_attempt, an_end, an_intent


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "spool"


def ingested(folder: Path, *records) -> None:
    a_spool(folder, records).close()
    Ingest(folder).once()


WHOLE = {
    "id": "req_1",
    "completeness": "complete",
    "missing": [],
    "started_at": "2026-11-30T12:00:00Z",
    "who": {"caller": "team", "project": "search", "environment": "prod", "token": "plt_12345678"},
    "request": {
        "endpoint": "chat",
        "group": "chat",
        "dialect": "openai-chat",
        "stream": True,
        "revision": 3,
        "request_bytes": 0,
        "response_bytes": 0,
        "legal_hold": False,
    },
    "shape": {
        "input_tokens_estimated": 1_000,
        "output_cap": 256,
        "tool_count": 0,
        "image_count": 0,
        "complexity": 0.4,
        "prompt_features": ["code"],
        "input_bucket": "<=1000",
        "output_cap_bucket": "<=256",
        "complexity_bucket": "standard",
    },
    "decision": {
        "strategy": "dynamic_score",
        "mode": "score",
        "affinity": "affinity_miss",
        "tie_break": "final",
        "propensity": 1.0,
        "signals": ["complexity", "cost"],
        "matched_terms": [],
        "flags": [],
    },
    "candidates": [
        {
            "target": "paris/m",
            "weight": 1.0,
            "observations": 60.0,
            "in_flight": 0,
            "overdue": 0,
            "dynamic_score": 0.75,
            "contrasted_score": 0.875,
            "final_score": 0.9,
            "near_tie": True,
            "scores": [{"name": "cost_score", "raw": None, "value": 1.0, "flag": "no_data"}],
            "terms": [{"name": "cheap", "share": 1.0, "value": 0.75, "preferred_tags": 1, "flag": None}],
        },
        {
            "target": "oslo/m",
            "weight": 0.5,
            "observations": 40.0,
            "in_flight": 1,
            "overdue": 0,
            "dynamic_score": 0.25,
            "contrasted_score": 0.125,
            "final_score": 0.25,
            "near_tie": False,
            "scores": [{"name": "cost_score", "raw": 0.02, "value": 0.5, "flag": None}],
            "terms": [{"name": "cheap", "share": 1.0, "value": 0.25, "preferred_tags": 0, "flag": None}],
        },
    ],
    "exclusions": [
        {"target": "rome/m", "stage": "eligibility", "reason": "context_exceeded", "detail": "needs 9, has 8"}
    ],
    "attempts": [
        {
            "target": "oslo/m",
            "provider": "oslo",
            "model": "m-1",
            "outcome": "timeout",
            "status": None,
            "error_code": "upstream_timeout",
            "started_ms": 0.5,
            "duration_ms": 90.0,
            "first_content_ms": None,
            "retry_after_s": None,
            "served": False,
            "input_tokens": None,
            "output_tokens": None,
            "cost_microdollars": 0,
        },
        {
            "target": "paris/m",
            "provider": "paris",
            "model": "m-1",
            "outcome": "ok",
            "status": 200,
            "error_code": "",
            "started_ms": 0.5,
            "duration_ms": 90.0,
            "first_content_ms": 20.0,
            "retry_after_s": None,
            "served": True,
            "input_tokens": 1_400,
            "output_tokens": 100,
            "cost_microdollars": 3_000,
        },
    ],
    "transitions": [{"from_target": "oslo/m", "to_target": "paris/m", "reason": "timeout"}],
    "served_by": {"target": "paris/m", "provider": "paris", "model": "m-1"},
    "outcome": {
        "outcome": "success",
        "status": 200,
        "error_code": "",
        "error_detail": "",
        "terminal_marker": "received",
    },
    "timings": {"duration_ms": 100.25, "first_content_ms": 20.5, "queued_ms": 0.0},
    "tokens": {
        "input": 1_000,
        "cache_read": 400,
        "cache_write_5m": None,
        "cache_write_1h": None,
        "output": 100,
        "reasoning": None,
    },
    "usage": {"usage_quality": "reported", "prompt_cache": "read"},
    "cost": {
        "microdollars": 3_000,
        "flags": [],
        "lines": [
            {"token_class": "input", "tokens": 1_000, "price": 2_000_000, "picodollars": 2_000_000_000},
            {"token_class": "cache_read", "tokens": 400, "price": 500_000, "picodollars": 200_000_000},
            {"token_class": "output", "tokens": 100, "price": 8_000_000, "picodollars": 800_000_000},
        ],
        "prices": {
            "input": 2_000_000,
            "cache_read": 500_000,
            "cache_write_5m": None,
            "cache_write_1h": None,
            "output": 8_000_000,
        },
    },
}

FAILED = an_attempt("oslo/m", outcome="timeout", status=None, error_code="upstream_timeout", first_content_ms=None)
END = an_end(attempts=[FAILED, an_attempt()], cache_read_tokens=400, cached_input_price=500_000)


def document(found: Evidence) -> object:
    return msgspec.json.decode(msgspec.json.encode(as_document(found)))


def test_evidence_of_an_exchange_is_all_that_its_rows_say(database, folder):
    ingested(folder, an_intent(), END)
    assert document(evidence("req_1", spool=folder)) == WHOLE


def test_what_is_still_in_the_spool_is_told_as_it_will_be(database, folder):
    spool = a_spool(folder, [an_intent(), END])
    assert document(evidence("req_1", spool=folder)) == {**WHOLE, "completeness": "not_ingested_yet"}
    spool.close()


def test_in_the_spool_an_end_is_worth_more_than_its_intent_and_nothing_that_has_been_read_counts(database, folder):
    spool = a_spool(folder, [an_intent()])
    assert evidence("req_1", spool=folder).completeness == "not_ingested_yet"
    Ingest(folder).cycle()
    assert evidence("req_1", spool=folder).completeness == "in_progress"
    add(spool, [an_end("req_10"), an_end()])
    assert evidence("req_1", spool=folder).completeness == "in_progress"
    Ingest(folder).cycle()
    assert evidence("req_1", spool=folder).completeness == "complete"
    spool.close()


def test_how_far_another_hosts_file_of_the_same_name_was_read_says_nothing(database, folder):
    spool = a_spool(folder, [an_end()])
    [path] = folder.glob("*.jsonl")
    SpoolFile.objects.create(spool="another", name=path.name, offset=path.stat().st_size)
    assert evidence("req_1", spool=folder).completeness == "not_ingested_yet"
    spool.close()


def test_of_an_exchange_under_way_its_beginning_is_told(database, folder):
    spool = a_spool(folder, [an_intent()])
    Ingest(folder).cycle()
    found = evidence("req_1", spool=folder)
    assert (found.completeness, found.outcome["outcome"], found.served_by["target"], found.who["caller"]) == (
        "in_progress",
        "in_progress",
        "paris/m",
        "team",
    )
    spool.close()


def test_of_a_process_that_died_it_says_so(database, folder):
    ingested(folder, an_intent())
    found = evidence("req_1", spool=folder)
    assert (found.completeness, found.outcome["outcome"], found.cost and found.cost.microdollars) == (
        "aborted",
        "aborted",
        2_000,
    )


@pytest.mark.parametrize(
    ("deleted", "name"), [(Candidate, "candidates"), (Exclusion, "exclusions"), (Attempt, "attempts")]
)
def test_detail_that_was_deleted_for_its_age_is_named(database, folder, deleted, name):
    ingested(folder, an_end())
    deleted.objects.all().delete()
    found = evidence("req_1", spool=folder)
    assert (found.completeness, found.missing, getattr(found, name)) == ("expired", [name], [])
    assert found.cost is not None
    assert found.cost.microdollars == 2_800


@pytest.mark.parametrize("id", ["req_2", "", "x" * 300, "req_1\x00", 'req_1"', "%", "é"])
def test_an_unknown_id_is_unknown_and_nothing_else(database, folder, id):
    ingested(folder, an_end())
    a_spool(folder, [an_end("req_1x")]).close()
    assert evidence(id, spool=folder) == Evidence(id=id, completeness="unknown")


def test_without_a_spool_there_is_the_database(database, tmp_path):
    assert evidence("req_1", spool=tmp_path / "nowhere").completeness == "unknown"


def test_evidence_for_people_shows_the_choice_and_the_arithmetic(database, folder):
    ingested(folder, END)
    lines = as_text(evidence("req_1", spool=folder)).splitlines()
    assert lines[:3] == [
        "exchange                 req_1",
        "completeness             complete",
        "started at               2026-11-30T12:00:00Z",
    ]
    for line in (
        "       cost_score               1            from -, no_data",
        "       cheap                    0.75         share 1, 1 preferred tags",
        "  rome/m: context_exceeded (eligibility) needs 9, has 8",
        "  oslo/m -> paris/m: timeout",
        "  cache_read               400 x $0.500000 per million = $0.000200000000",
        "  total                    $0.003000",
    ):
        assert line in lines


def test_a_cost_that_nobody_knows_says_which_price_is_missing(database, folder):
    ingested(folder, an_end(output_price=None))
    text = as_text(evidence("req_1", spool=folder))
    assert "  output                   100 x an unknown price\n" in text
    assert "  total                    unknown (no_output_price)\n" in text


def test_the_command_tells_it_as_text_or_json_and_fails_for_an_unknown_id(database, folder, monkeypatch):
    ingested(folder, END)
    monkeypatch.setattr(settings, "PILOTAGE", dataclasses.replace(settings.PILOTAGE, data_dir=folder.parent))
    out = io.StringIO()
    call_command("evidence", "req_1", "--format", "json", stdout=out)
    assert msgspec.json.decode(out.getvalue()) == WHOLE
    out = io.StringIO()
    call_command("evidence", "req_1", stdout=out)
    assert out.getvalue() == as_text(evidence("req_1", spool=folder))
    with pytest.raises(CommandError, match="no exchange is known by this id"):
        call_command("evidence", "req_2", stdout=io.StringIO())


def test_the_numbers_of_a_record_that_has_no_decision_are_simply_not_there(database, folder):
    ingested(folder, an_end(order=[], candidates=None, exclusions=[], attempts=[], strategy=None, outcome="refused"))
    found = evidence("req_1", spool=folder)
    assert (found.completeness, found.candidates, found.attempts, Exchange.objects.get().cost_microdollars) == (
        "complete",
        [],
        [],
        0,
    )
