"""Candidates that were there before their digits get the same ones as from ingest."""

import importlib
from datetime import UTC, datetime

from django.apps import apps
from django.db import connection

from reports.core.buckets import SCORES, digits_of
from reports.models import Candidate
from tests.reports.rows import an_exchange

SCORED: list[tuple[list[float | None], dict[str, float | None]]] = [
    ([0.93, 0.4, 0.0], {"cost_score": 1.0, "latency_score": 0.0999, "budget_score": 0.7}),
    ([1.7, -0.3, 0.29], {"ttfb_score": 0.5, "cost_score": None}),
    ([None, None, None], {"reliability_score": 0.3}),
    ([None, 0.61, None], {}),
    ([None, None, None], {}),
]


def test_older_candidates_get_the_digits_that_ingest_would_have_given_them(database):
    exchange = an_exchange(datetime(2026, 3, 10, tzinfo=UTC))
    exchange.save()
    Candidate.objects.bulk_create(
        Candidate(
            exchange=exchange, place=place, target="paris/m", dynamic_score=of[0], contrasted_score=of[1], final_score=of[2],
            scores={name: [120.0, value] for name, value in scores.items()},
        )
        for place, (of, scores) in enumerate(SCORED)
    )  # fmt: skip
    with connection.schema_editor() as editor:
        importlib.import_module("reports.migrations.0004_digits_of_candidates").fill(apps, editor)
    assert list(Candidate.objects.order_by("place").values_list("digits", flat=True)) == [
        digits_of([[value] for value in (*of, *(scores.get(name) for name in SCORES))], 1)[0] for of, scores in SCORED
    ]
