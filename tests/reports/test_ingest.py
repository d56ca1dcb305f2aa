"""The spool into rows: every record once in effect, on SQLite and PostgreSQL."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from django.db import connection, models

from accounts import tokens
from accounts.models import Caller, DirectoryVersion, Token
from reports import ingest_tables
from reports.core.record import EndRecord, IntentRecord
from reports.ingest import Ingest
from reports.ingest_rows import TABLES, Rows, columns, moment
from reports.models import (
    Attempt,
    Candidate,
    Exchange,
    Exclusion,
    IngestCount,
    OpenExchange,
    SpoolFile,
    TouchedHour,
    Transition,
)
from reports.spool import Spool
from tests.reports.records import NOON, a_spool, add, an_attempt, an_end, an_intent, line_of, some_candidates

NOW = datetime(2026, 12, 1, 8, tzinfo=UTC)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "spool"
    folder.mkdir(mode=0o700)
    return folder


def an_ingest(folder: Path, **how: Any) -> Ingest:
    return Ingest(folder, now=lambda: NOW, **how)


def read(folder: Path, **how: Any) -> None:
    an_ingest(folder, **how).once()


def row(kept: models.Model) -> dict[str, Any]:
    """Without its own key and its exchange's."""
    return {
        field.attname: getattr(kept, field.attname)
        for field in kept._meta.concrete_fields
        if field.attname not in ("id", "exchange_id")
    }


def counts() -> dict[str, int]:
    return dict(IngestCount.objects.values_list("name", "count"))


def outcomes() -> dict[str, str]:
    return dict(Exchange.objects.values_list("request_id", "outcome"))


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


OURS = ["ingest.lock", "spool.id"]


def test_a_record_becomes_rows(database, folder):
    a_spool(folder, [an_intent(), an_end()]).close()
    read(folder)
    exchange = Exchange.objects.get()
    assert row(exchange) == {
        "request_id": "req_1",
        "started_at": datetime(2026, 11, 30, 12, tzinfo=UTC),
        "caller": "team",
        "project": "search",
        "environment": "prod",
        "token": "plt_12345678",
        "endpoint": "chat",
        "group": "chat",
        "dialect": "openai-chat",
        "stream": True,
        "revision": 3,
        "status": 200,
        "outcome": "success",
        "error_code": "",
        "error_detail": "",
        "terminal_marker": "received",
        "duration_ms": 100.25,
        "first_content_ms": 20.5,
        "queued_ms": 0.0,
        "request_bytes": 0,
        "response_bytes": 0,
        "strategy": "dynamic_score",
        "mode": "score",
        "affinity": "affinity_miss",
        "tie_break": "final",
        "propensity": 1.0,
        "target": "paris/m",
        "provider": "paris",
        "model": "m-1",
        "attempt_count": 1,
        "candidate_count": 2,
        "exclusion_count": 1,
        "fell_back": False,
        "signals": ["complexity", "cost"],
        "matched_terms": [],
        "flags": [],
        "input_tokens_estimated": 1_000,
        "output_cap": 256,
        "tool_count": 0,
        "image_count": 0,
        "complexity": 0.4,
        "prompt_features": ["code"],
        "input_bucket": "<=1000",
        "output_cap_bucket": "<=256",
        "complexity_bucket": "standard",
        "input_tokens": 1_000,
        "cache_read_tokens": None,
        "cache_write_5m_tokens": None,
        "cache_write_1h_tokens": None,
        "output_tokens": 100,
        "reasoning_tokens": None,
        "usage_quality": "reported",
        "prompt_cache": "unknown",
        "input_price": 2_000_000,
        "cache_read_price": None,
        "cache_write_5m_price": None,
        "cache_write_1h_price": None,
        "output_price": 8_000_000,
        "cost_microdollars": 2_800,
        "cost_flags": [],
        "legal_hold": False,
        "ingested_at": NOW,
    }
    assert [row(each) for each in exchange.attempts.all()] == [
        {
            "place": 0,
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
            "input_tokens": 1_000,
            "output_tokens": 100,
            "cost_microdollars": 2_800,
        }
    ]
    assert [row(each) for each in exchange.candidates.order_by("place")] == [
        {
            "place": 0,
            "target": "paris/m",
            "weight": 1.0,
            "observations": 60.0,
            "in_flight": 0,
            "overdue": 0,
            "dynamic_score": 0.75,
            "contrasted_score": 0.875,
            "final_score": 0.9,
            "near_tie": True,
            "scores": {"cost_score": [None, 1.0, "no_data"]},
            "terms": [["cheap", 1.0, 0.75, 1, None]],
            "digits": "7899",
        },
        {
            "place": 1,
            "target": "oslo/m",
            "weight": 0.5,
            "observations": 40.0,
            "in_flight": 1,
            "overdue": 0,
            "dynamic_score": 0.25,
            "contrasted_score": 0.125,
            "final_score": 0.25,
            "near_tie": False,
            "scores": {"cost_score": [0.02, 0.5]},
            "terms": [["cheap", 1.0, 0.25, 0, None]],
            "digits": "2125",
        },
    ]
    assert [row(each) for each in exchange.exclusions.all()] == [
        {
            "place": 0,
            "target": "rome/m",
            "stage": "eligibility",
            "reason": "context_exceeded",
            "detail": "needs 9, has 8",
        }
    ]
    assert Transition.objects.count() == 0
    assert [row(each) for each in TouchedHour.objects.all()] == [
        {"hour": datetime(2026, 11, 30, 12, tzinfo=UTC), "sequence": 1, "touched_at": NOW}
    ]
    assert files(folder) == ["spool.id"]


def test_the_rows_have_a_value_for_every_column():
    rows = Rows()
    rows.add(an_end(attempts=[an_attempt("a/m"), an_attempt("b/m")]), pk=1, now=NOW, max_candidates=9)
    widths = {model: {len(row) for row in added} for model, added in rows.by_table()}
    assert widths == {model: {len(columns(model))} for model in TABLES}


def test_after_a_fallback_the_last_target_is_billed_and_the_failed_attempt_is_a_row_of_its_own(database, folder):
    failed = an_attempt("oslo/m", outcome="server_error", status=500, error_code="upstream_server_error")
    a_spool(folder, [an_end(attempts=[failed, an_attempt(started_ms=40.0)])]).close()
    read(folder)
    exchange = Exchange.objects.get()
    assert (exchange.target, exchange.cost_microdollars, exchange.fell_back, exchange.attempt_count) == (
        "paris/m",
        2_800,
        True,
        2,
    )
    shown = ("target", "outcome", "error_code", "served", "output_tokens", "cost_microdollars")
    assert list(exchange.attempts.order_by("place").values_list(*shown)) == [
        ("oslo/m", "server_error", "upstream_server_error", False, None, 0),
        ("paris/m", "ok", "", True, 100, 2_800),
    ]
    assert [row(each) for each in exchange.transitions.all()] == [
        {"place": 0, "from_target": "oslo/m", "to_target": "paris/m", "reason": "server_error"}
    ]


def test_an_attempt_that_broke_after_it_was_accepted_has_a_cost_that_nobody_knows(database, folder):
    broken = an_attempt("oslo/m", outcome="server_error", status=200, error_code="upstream_malformed")
    a_spool(folder, [an_end(attempts=[broken, an_attempt()])]).close()
    read(folder)
    assert list(Attempt.objects.order_by("place").values_list("served", "cost_microdollars")) == [
        (False, None),
        (True, 2_800),
    ]


def test_only_so_many_candidates_and_exclusions_are_kept_the_first_in_the_order_of_trying(database, folder):
    order = ["paris/m", "oslo/m", "probe/m"]
    a_spool(folder, [an_end("all", order=order), an_end("few", order=order)]).close()
    read(folder, max_candidates=2)
    assert list(
        Candidate.objects.filter(exchange__request_id="few").order_by("place").values_list("target", flat=True)
    ) == [
        "paris/m",
        "oslo/m",
    ]
    assert set(Exchange.objects.values_list("candidate_count", "exclusion_count")) == {(2, 1)}


def test_a_probe_stands_beside_the_scores(database, folder):
    a_spool(folder, [an_end(order=["probe/m", "paris/m"])]).close()
    read(folder)
    assert list(Candidate.objects.order_by("place").values_list("target", "weight", "final_score")) == [
        ("probe/m", None, None),
        ("paris/m", 1.0, 0.9),
    ]


# -- once, whatever happens


def test_what_is_read_twice_is_there_once(database, folder):
    a_spool(folder, [an_intent(), an_end(), an_end()]).close()
    [path] = folder.glob("*.jsonl")
    before = path.read_bytes()
    read(folder)
    path.write_bytes(before)
    read(folder)
    assert outcomes() == {"req_1": "success"}
    assert counts() == {"ended": 1, "repeated": 3}
    assert [hour.sequence for hour in TouchedHour.objects.all()] == [1]
    assert (Candidate.objects.count(), Attempt.objects.count(), OpenExchange.objects.count()) == (2, 1, 0)


def test_a_batch_is_all_or_nothing(database, folder, monkeypatch):
    a_spool(folder, [an_intent(), an_end(), an_intent("req_2")]).close()

    class Killed(BaseException):
        pass

    def dies(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(ingest_tables, "count", dies)
        with pytest.raises(Killed):
            read(folder)
    kept = (Exchange, Attempt, Candidate, Exclusion, OpenExchange, TouchedHour, SpoolFile, IngestCount)
    assert {model.__name__: model._default_manager.count() for model in kept} == {model.__name__: 0 for model in kept}
    read(folder)
    assert outcomes() == {"req_1": "success", "req_2": "aborted"}
    assert files(folder) == ["spool.id"]


def test_it_goes_on_where_it_was_in_a_file_that_grows(database, folder):
    ingest = an_ingest(folder, batch_lines=2)
    spool = a_spool(folder, [an_end(f"req_{number}") for number in range(5)])
    assert (ingest.cycle(), ingest.cycle()) == (5, 0)
    [kept] = SpoolFile.objects.all()
    [path] = folder.glob("*.jsonl")
    assert (kept.name, kept.offset) == (path.name, path.stat().st_size)
    add(spool, [an_end("req_5")])
    assert an_ingest(folder).cycle() == 1
    assert len(outcomes()) == 6
    assert path.exists()
    spool.close()
    ingest.cycle()
    assert not path.exists()
    assert SpoolFile.objects.count() == 0


def test_half_a_line_is_waited_for(database, folder):
    spool = a_spool(folder, [an_end()])
    [path] = folder.glob("*.jsonl")
    line = line_of(an_end("req_2"))
    with path.open("ab") as file:
        file.write(line[:100])
    ingest = an_ingest(folder)
    ingest.cycle()
    assert list(outcomes()) == ["req_1"]
    with path.open("ab") as file:
        file.write(line[100:])
    ingest.cycle()
    spool.close()
    assert sorted(outcomes()) == ["req_1", "req_2"]
    assert "damaged" not in counts()


def test_files_of_several_processes_are_read_side_by_side(database, folder):
    spools = [a_spool(folder, [an_end(f"{name}_1")], name=name) for name in ("a", "b-c")]
    for spool in spools:
        spool.close()
    read(folder)
    assert sorted(outcomes()) == ["a_1", "b-c_1"]


# -- intents


def test_an_intent_whose_process_lives_waits_for_its_end(database, folder):
    spool = a_spool(folder, [an_intent()])
    ingest = an_ingest(folder)
    ingest.cycle()
    ingest.cycle()
    [begun] = OpenExchange.objects.all()
    assert (begun.request_id, begun.started_at, outcomes()) == ("req_1", moment(NOON), {})
    add(spool, [an_end()])
    ingest.cycle()
    spool.close()
    assert (outcomes(), OpenExchange.objects.count()) == ({"req_1": "success"}, 0)


def test_an_intent_whose_process_is_dead_becomes_aborted_with_its_input_estimated(database, folder):
    a_spool(folder, [an_intent()]).close()
    read(folder)
    shown = (
        "outcome",
        "status",
        "duration_ms",
        "target",
        "provider",
        "input_tokens",
        "output_tokens",
        "usage_quality",
        "cost_microdollars",
        "attempt_count",
    )
    assert Exchange.objects.values_list(*shown).get() == (
        "aborted",
        None,
        None,
        "paris/m",
        "paris",
        1_000,
        None,
        "estimated",
        2_000,
        0,
    )
    assert counts() == {"aborted": 1}
    assert [hour.sequence for hour in TouchedHour.objects.all()] == [1]
    assert (OpenExchange.objects.count(), files(folder)) == (0, ["spool.id"])


def test_an_end_that_comes_to_light_later_replaces_what_was_taken_for_aborted(database, folder):
    a_spool(folder, [an_intent()]).close()
    read(folder)
    a_spool(folder, [an_end()]).close()
    read(folder)
    assert outcomes() == {"req_1": "success"}
    assert counts() == {"aborted": 1, "replaced": 1, "ended": 1}
    assert [hour.sequence for hour in TouchedHour.objects.all()] == [2]


def test_an_intent_in_one_file_and_its_end_in_the_next_of_its_process_are_one_exchange(database, folder):
    records: list[EndRecord | IntentRecord] = [
        an_intent("req_1"),
        *(an_end(f"other_{number}") for number in range(60)),
        an_end("req_1"),
    ]
    spool = a_spool(folder, records, max_file_bytes=1 << 14)
    first = sorted(folder.glob("*.jsonl"))
    assert len(first) > 2
    ingest = an_ingest(folder)
    ingest.cycle()
    assert sorted(folder.glob("*.jsonl")) == first[-1:]
    assert counts() == {"ended": 61}
    spool.close()


def test_while_a_process_lives_none_of_its_intents_is_given_up_though_their_file_is_finished(database, folder):
    records: list[EndRecord | IntentRecord] = [an_intent("req_1"), *(an_end(f"other_{number}") for number in range(30))]
    spool = a_spool(folder, records, max_file_bytes=1 << 14)
    assert len(list(folder.glob("*.jsonl"))) > 1
    ingest = an_ingest(folder)
    ingest.cycle()
    ingest.cycle()
    assert (OpenExchange.objects.count(), counts()) == (1, {"ended": 30})
    spool.close()
    ingest.cycle()
    assert counts() == {"ended": 30, "aborted": 1}


def test_intents_of_files_that_somebody_has_removed_are_given_up(database, folder):
    spool = a_spool(folder, [an_intent()])
    an_ingest(folder).cycle()
    spool.close()
    for path in folder.glob("*.jsonl"):
        path.unlink()
    read(folder)
    assert (outcomes(), SpoolFile.objects.count()) == ({"req_1": "aborted"}, 0)


# -- lines that are no records

GOOD = line_of(an_end("good"))
RAGGED = msgspec.structs.replace(some_candidates(), weights=[])


@pytest.mark.parametrize(
    ("what", "lines", "damaged"),
    [
        ("torn", GOOD[:200] + b"\n" + GOOD, 1),
        ("binary", bytes(range(256)).replace(b"\n", b"") + b"\n" + GOOD, 1),
        ("zeros", b"\0" * 70_000 + b"\n" + GOOD, 1),
        ("empty", b"\n\n" + GOOD + b"\n", 0),
        ("foreign", b'{"kind":"other","v":1}\n{"a":1}\n[]\nnull\n7\n' + GOOD, 5),
        ("last without its end", GOOD + GOOD[:100], 1),
        ("whole last without its end", GOOD.rstrip(), 0),
        ("huge", b"x" * 5_000_000 + b"\n" + GOOD, 1),
        ("huge and last", GOOD + b"x" * 5_000_000, 1),
        ("half a character", GOOD.replace(b"search", b"\xc3") + GOOD, 1),
        ("no id", line_of(an_end("")) + GOOD, 1),
        ("an endless id", line_of(an_end("x" * 256)) + GOOD, 1),
        ("no time", line_of(an_end("bad", at=1e300)) + GOOD, 1),
        ("before time", line_of(an_end("bad", at=-1e18)) + GOOD, 1),
        ("ragged columns", line_of(an_end("bad", candidates=RAGGED)) + GOOD, 1),
        ("a number beyond every column", line_of(an_end("bad", revision=10**30)) + GOOD, 1),
        ("deep", b'{"a":' * 5_000 + b"1" + b"}" * 5_000 + b"\n" + GOOD, 1),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_line_that_is_no_record_is_set_aside_and_counted_and_the_others_are_read(
    database, folder, what, lines, damaged
):
    (folder / "records-1-2-0000.jsonl").write_bytes(lines)
    read(folder)
    assert (outcomes(), counts().get("damaged", 0)) == ({"good": "success"}, damaged)
    aside = folder / "damaged"
    assert aside.exists() == bool(damaged)
    if damaged:
        assert aside.read_bytes().count(b"\n") == damaged
        assert aside.stat().st_mode & 0o777 == 0o600
    assert not list(folder.glob("*.jsonl"))


def test_a_record_that_the_tables_cannot_hold_is_found_among_many(database, folder):
    many = [an_end(f"req_{number}") for number in range(50)]
    many[31] = an_end("bad", status=10**12, revision=2**62)
    a_spool(folder, many).close()
    read(folder)
    held = 49 if connection.vendor == "postgresql" else 50  # SQLite's columns hold it
    assert (len(outcomes()), counts().get("damaged", 0)) == (held, 50 - held)


def test_texts_that_a_database_cannot_hold_are_made_to_fit(database, folder):
    a_spool(folder, [an_end(project="nul \0 here", error_detail="é" * 1_000)]).close()
    read(folder)
    assert Exchange.objects.values_list("project", "error_detail").get() == ("nul \ufffd here", "é" * 255)


def test_what_is_set_aside_is_bounded_and_what_finds_no_room_is_counted(database, folder):
    (folder / "records-1-2-0000.jsonl").write_bytes((b"y" * 99 + b"\n") * 10)
    read(folder, max_aside_bytes=450)
    assert (folder / "damaged").stat().st_size == 400
    assert counts() == {"damaged": 10, "lost": 6}


def test_lines_of_a_newer_release_are_kept_until_this_one_can_read_them(database, folder, monkeypatch):
    newer = line_of(an_end("req_new", v=2))
    unknown = b'{"kind":"midway","v":3,"id":"x"}\n'
    (folder / "records-1-2-0000.jsonl").write_bytes(newer + GOOD + unknown)
    read(folder)
    assert (outcomes(), counts()) == ({"good": "success"}, {"ended": 1, "newer": 2})
    assert (folder / "newer").read_bytes() == newer + unknown
    read(folder)
    assert (folder / "newer").exists()
    monkeypatch.setattr("reports.ingest.VERSION", 2)
    read(folder)
    assert sorted(outcomes()) == ["good", "req_new"]
    assert (folder / "newer").read_bytes() == unknown


def test_a_file_that_may_not_be_read_stops_no_other(database, folder, monkeypatch):
    (folder / "records-1-2-0000.jsonl").symlink_to("/nowhere")
    (folder / "records-1-2-0001.jsonl").mkdir()
    (folder / "records-1-2-0002.jsonl").write_bytes(GOOD)
    read(folder)
    assert outcomes() == {"good": "success"}


# -- hours


def test_every_batch_that_adds_to_an_hour_moves_its_sequence_on(database, folder):
    ingest = an_ingest(folder)
    spool = a_spool(folder, [an_end("req_1"), an_end("req_2", at=NOON + 3_599), an_end("req_3", at=NOON - 0.5)])
    ingest.cycle()
    add(spool, [an_end("req_4")])
    ingest.cycle()
    add(spool, [an_end("req_4")])
    ingest.cycle()
    spool.close()
    noon = moment(NOON)
    assert list(TouchedHour.objects.order_by("hour").values_list("hour", "sequence")) == [
        (noon - timedelta(hours=1), 1),
        (noon, 2),
    ]


# -- the last use of tokens


def last_use(token: Token) -> datetime | None:
    return Token.objects.get(pk=token.pk).last_used_at


def test_a_tokens_last_use_is_written_at_most_once_a_minute_and_in_the_end(database, folder):
    clock = Clock()
    token, _ = tokens.issue(Caller.objects.create(name="team"))
    version = DirectoryVersion.objects.get().number
    ingest = an_ingest(folder, clock=clock)
    spool = Spool(folder)
    seen = []
    for number, at in enumerate((0.0, 59.0, 60.0, 61.0)):
        clock.now = at
        add(spool, [an_end(f"req_{number}", at=NOON + at, token=token.shown)])
        ingest.cycle()
        seen.append(last_use(token))
    ingest.once()
    spool.close()
    assert seen == [moment(NOON), moment(NOON), moment(NOON + 60), moment(NOON + 60)]
    assert last_use(token) == moment(NOON + 61)
    assert DirectoryVersion.objects.get().number == version


def test_an_older_use_never_replaces_a_later_one(database, folder):
    token, _ = tokens.issue(Caller.objects.create(name="team"))
    for at in (NOON, NOON - 100):
        a_spool(folder, [an_end(f"req_{at}", at=at, token=token.shown)]).close()
        read(folder)
    assert last_use(token) == moment(NOON)


# -- the spool at its bound


def test_a_spool_that_was_full_goes_on_once_it_has_been_read(database, folder):
    clock = Clock()
    spool = Spool(folder, max_file_bytes=1 << 14, max_total_bytes=1 << 15, clock=clock)
    add(spool, (an_end(f"req_{number}") for number in range(100)))
    written = spool.written
    assert 0 < written < 100
    ingest = an_ingest(folder)
    ingest.cycle()
    assert len(outcomes()) == written
    clock.now = 2.0
    add(spool, [an_end("after")])
    ingest.cycle()
    spool.close()
    assert "after" in outcomes()
    assert spool.dropped == 100 - written
    assert counts() == {"ended": written + 1, "dropped": 100 - written}


def test_what_a_spool_dropped_up_to_its_end_is_known(database, folder):
    spool = a_spool(folder, [an_end("one")], max_total_bytes=2_000, max_file_bytes=1_000)
    add(spool, (an_end(f"req_{number}") for number in range(9)))
    assert spool.dropped > 0
    spool.close()
    spool.close()
    read(folder)
    assert counts() == {"ended": spool.written, "dropped": spool.dropped}


def test_everything_it_makes_is_for_the_owner_alone(database, tmp_path):
    folder = tmp_path / "data" / "spool"
    ingest = an_ingest(folder)
    with ingest.reader.alone():
        ingest.once()
        assert files(folder) == OURS
        assert (folder / "ingest.lock").read_text() == f"{os.getpid()}\n"
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert folder.stat().st_mode & 0o777 == 0o700


def test_records_of_older_releases_lack_the_newer_fields(database, folder):
    bare = {
        "kind": "end",
        "v": 1,
        "id": "old",
        "at": NOON,
        "caller": "team",
        "project": "",
        "environment": "",
        "token": "",
        "endpoint": "chat",
        "group": "chat",
        "dialect": "openai-chat",
        "stream": False,
        "revision": 1,
        "status": 401,
        "outcome": "refused",
        "duration_ms": 0.5,
    }
    (folder / "records-1-2-0000.jsonl").write_bytes(msgspec.json.encode(bare) + b"\n")
    read(folder)
    assert outcomes() == {"old": "refused"}
