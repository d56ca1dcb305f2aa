"""Marks planted in everything secret or said: none may stand in a table, nor in the evidence of an exchange."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from django.apps import apps
from django.db import connection, models

from reports.evidence import as_document, evidence
from reports.evidence_text import as_text
from reports.ingest import Ingest
from reports.models import Attempt, Candidate, Exchange
from tests.e2e import wire
from tests.e2e.test_canary import MARKS, bodies, configuration, found_in
from tests.reports.records import a_spool, an_end, an_intent
from tests.support.processes import StartGateway, StartSimulator

pytestmark = pytest.mark.e2e

Column = tuple[str, str]
DIGEST = ("accounts_token", "digest")
"""The one place where a token leaves a trace."""


def columns() -> list[Column]:
    """Every column of every table, whatever its kind."""
    with connection.cursor() as cursor:
        tables = connection.introspection.table_names(cursor)
        return [
            (table, column.name)
            for table in tables
            for column in connection.introspection.get_table_description(cursor, table)
        ]


def values(table: str, column: str) -> Iterator[bytes]:
    quote = connection.ops.quote_name
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {quote(column)} FROM {quote(table)}")
        for (value,) in cursor.fetchall():
            yield bytes(value) if isinstance(value, bytes | memoryview) else str(value).encode()


def found(marks: dict[str, str], places: list[Column]) -> dict[Column, set[str]]:
    """Which marks stand where."""
    hits = {place: found_in(b"\n".join(values(*place)), marks) for place in places}
    return {place: names for place, names in hits.items() if names}


def texts(model: Any) -> list[Any]:
    """A relation's column holds a number."""
    return [
        each
        for each in model._meta.concrete_fields
        if isinstance(each, models.CharField | models.TextField | models.JSONField | models.BinaryField)
    ]


def test_the_search_finds_a_mark_in_every_column_that_can_hold_one(database, tmp_path):
    a_spool(tmp_path / "spool", [an_end(), an_intent("req_2")]).close()
    Ingest(tmp_path / "spool").once()
    mark = {"planted": "canary-here-0f0f"}
    places = columns()
    assert found(mark, places) == {}
    models_of_ours = [each for each in apps.get_app_config("reports").get_models() if each._default_manager.exists()]
    assert {Exchange, Attempt, Candidate} <= set(models_of_ours)
    for model in models_of_ours:
        for field in texts(model):
            kept = list(model._default_manager.values_list("pk", field.attname))
            planted: Any = mark["planted"]
            if isinstance(field, models.JSONField):
                planted = {"a": [planted]}
            model._default_manager.filter(pk=kept[0][0]).update(**{field.attname: planted})
            table = model._meta.db_table
            assert found(mark, [place for place in places if place[0] == table]) == {(table, field.column): {"planted"}}
            model._default_manager.filter(pk=kept[0][0]).update(**{field.attname: kept[0][1]})


def test_nothing_that_is_said_or_secret_reaches_a_table_or_the_evidence(
    start_simulator: StartSimulator, start_gateway: StartGateway
) -> None:
    simulator = start_simulator(name=MARKS["answer"], latency_ms=0, jitter_ms=0, tokens_per_second=0)
    gateway = start_gateway(configuration(simulator), environment={"CANARY_KEY": MARKS["key"]})
    token = gateway.until_accepted(gateway.token())
    host, port = gateway.url.removeprefix("http://").split(":")

    def ask(path: str, content: bytes, *, bearer: str = token) -> wire.Reply:
        headers = [("Authorization", f"Bearer {bearer}"), ("x-note", MARKS["header"])]
        return wire.request((host, int(port)), "POST", f"{path}?q={MARKS['query']}", headers=headers, body=content)

    faults: list[dict[str, Any]] = [
        {},
        {"error_rate": 1, "status": 400},
        {"error_rate": 1, "status": 500},
        {"error_rate": 1, "status": 401},
        {"error_rate": 0, "cut_rate": 1},
        {"cut_rate": 0, "error_event_rate": 1},
    ]
    asked = 0
    for behaviour in faults:
        simulator.set(name=MARKS["answer"], **behaviour)
        for path, body in bodies():
            for stream in (False, True):
                reply = ask(path, json.dumps(body | {"stream": stream}).encode())
                asked += 1
                if not behaviour:
                    assert MARKS["answer"].encode() in reply.body
    for path, body in bodies():
        whole = json.dumps(body).encode()
        ask(path, json.dumps(body | {"model": MARKS["model"]}).encode())
        ask(path, whole[:-20])
        ask(path, whole, bearer="plt_wrong" + token[9:])
        asked += 3
    assert gateway.stop() == 0
    marks = MARKS | {"token": token[12:]}
    spool = gateway.data / "spool"
    with gateway.open_database():
        Ingest(spool, now=lambda: datetime.now(UTC)).once()
        assert {place: names for place, names in found(marks, columns()).items() if place != DIGEST} == {}
        ids = list(Exchange.objects.values_list("request_id", flat=True))
        assert len(ids) == asked
        for id in ids:
            told = evidence(id, spool=spool)
            assert (
                found_in(json.dumps(as_document(told), default=str).encode() + as_text(told).encode(), marks) == set()
            )
        outcomes = set(Exchange.objects.values_list("outcome", flat=True))
    assert outcomes == {"success", "refused", "upstream_failed", "upstream_truncated"}
