"""The API is as its own description says, whatever it is asked."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from django.core.management import call_command
from django.core.wsgi import get_wsgi_application
from django.urls import URLPattern
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from reports.api import urls
from reports.ingest import Ingest
from tests.reports.api.ground import Ground
from tests.reports.records import a_spool, add, an_end, an_intent

WHO = ("team", "open", "rival", "admin", "accountant", "nobody", "revoked")
TRIED = settings(max_examples=10, deadline=None, database=None, suppress_health_check=list(HealthCheck))
"""For each operation, once with what is described and once with what is not, on both databases."""
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
REQUESTS = ("req_team_1", "req_rival_1", "req_open_0", "req_spooled", "req_begun")
FILLED: dict[str, list[dict[str, Any]]] = {
    "/api/exchanges/": [{"page_size": 3}, {"stream": True}],
    "/api/rollups/hourly/": [{"from": "2026-03-10T00:00:00Z", "to": "2026-03-11T00:00:00Z", "group_by": ["caller"]}],
    "/api/rollups/daily/": [
        {"from": "2026-03-01", "to": "2026-03-31"},
        {"from": "2026-03-01", "zone": "Asia/Kathmandu"},
    ],
    "/api/decisions/daily/": [{"from": "2026-03-01", "to": "2026-03-31"}],
}
"""Parameters that find something."""


_django = get_wsgi_application()


def application(environ: dict[str, Any], start_response: Any) -> Any:
    """The client of schemathesis takes the place of every cookie by its own, of which it has none."""
    environ["HTTP_COOKIE"] = environ.pop("HTTP_X_COOKIE", "")
    return _django(environ, start_response)


@pytest.fixture
def schema(busy: Ground, tmp_path: Path, settings: Any) -> Any:
    settings.PILOTAGE = dataclasses.replace(settings.PILOTAGE, data_dir=tmp_path, api_requests_per_minute=0)
    spool = a_spool(tmp_path / "spool", [an_intent("req_begun"), an_end("req_ingested")])
    Ingest(tmp_path / "spool").once()
    add(spool, [an_end("req_spooled")])
    headers = busy.headers("admin")
    yield schemathesis.openapi.from_wsgi("/api/schema/", application, headers=headers)
    spool.close()


def operations(schema: Any) -> dict[str, Any]:
    return {operation.path: operation for operation in (found.ok() for found in schema.get_all_operations())}


def test_every_address_is_described(schema: Any) -> None:
    undescribed = {"schema", "docs", "elsewhere"}
    addresses = {pattern.name for pattern in urls.urlpatterns if isinstance(pattern, URLPattern)} - undescribed
    assert len(operations(schema)) == len(addresses)


def test_the_description_is_valid_and_nothing_in_it_is_guessed(tmp_path: Path) -> None:
    call_command("spectacular", validate=True, fail_on_warn=True, file=str(tmp_path / "schema.yaml"))


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_nothing_that_is_asked_is_answered_with_a_mistake_or_in_another_shape(
    busy: Ground, schema: Any, mode: GenerationMode
) -> None:
    headers = {who: busy.headers(who) for who in WHO}
    statuses = {path: asked(operation, mode, headers) for path, operation in operations(schema).items()}
    assert all(401 in seen and seen <= {200, 400, 401, 403, 404} for seen in statuses.values()), statuses


def asked(operation: Any, mode: GenerationMode, headers: dict[str, dict[str, str]]) -> set[int]:
    """The statuses of a number of requests, each of which was answered as is described."""
    seen: set[int] = set()

    @seed(1)
    @TRIED
    @given(case=operation.as_strategy(generation_mode=mode), who=st.sampled_from(WHO))
    def ask(case: Any, who: str) -> None:
        answer = case.call(headers=headers[who])
        case.validate_response(answer, headers=headers[who], checks=CHECKS)
        seen.add(answer.status_code)

    ask()
    return seen


def test_what_is_found_has_the_shape_that_is_described(busy: Ground, schema: Any) -> None:
    found = operations(schema)
    statuses = []
    for who in ("team", "open", "admin"):
        cases = [found[path].Case(query=query) for path, queries in FILLED.items() for query in queries]
        evidence = found["/api/exchanges/{request_id}/"]
        cases += [evidence.Case(path_parameters={"request_id": each}) for each in REQUESTS]
        for case in cases:
            answer = case.call(headers=busy.headers(who))
            case.validate_response(answer, headers=busy.headers(who), checks=CHECKS)
            if answer.status_code == 200:
                document = answer.json()
                assert document.get("results", document), case.path
            statuses.append((who, case.path, answer.status_code))
    refused = {(who, path) for who, path, status in statuses if status != 200}
    decisions, evidence_path = "/api/decisions/daily/", "/api/exchanges/{request_id}/"
    assert refused == {
        (who, path) for who in ("team", "open") for path in (decisions, evidence_path)
    }  # one is a rival's
