"""Raw rows for tests of what is made of them."""

import itertools
import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from django.db import connections, transaction
from django.db.models import F
from django.utils import timezone

from reports.core.buckets import digits_of
from reports.core.rollup import hour_of
from reports.core.shape_buckets import complexity_bucket, input_bucket, output_cap_bucket
from reports.models import Attempt, Candidate, Exchange, Exclusion, TouchedHour, Transition

_numbers = itertools.count(1)


def an_exchange(started_at: datetime, **said: Any) -> Exchange:
    """Not saved. A success of `team` in group `chat`, served by `paris/m`, for 1,000 micro-dollars."""
    values: dict[str, Any] = {
        "request_id": f"req_{next(_numbers)}",
        "started_at": started_at,
        "caller": "team",
        "project": "search",
        "environment": "prod",
        "token": "plt_12345678",
        "endpoint": "chat",
        "group": "chat",
        "dialect": "openai-chat",
        "stream": False,
        "revision": 1,
        "status": 200,
        "outcome": "success",
        "duration_ms": 100.0,
        "first_content_ms": 20.0,
        "strategy": "dynamic_score",
        "mode": "score",
        "affinity": "affinity_miss",
        "tie_break": "final",
        "target": "paris/m",
        "provider": "paris",
        "model": "m",
        "attempt_count": 1,
        "usage_quality": "reported",
        "prompt_cache": "none",
        "input_tokens": 10,
        "output_tokens": 5,
        "cost_microdollars": 1_000,
        "ingested_at": timezone.now(),
        **said,
    }
    values.setdefault("input_bucket", input_bucket(values.get("input_tokens_estimated", 0)))
    values.setdefault("output_cap_bucket", output_cap_bucket(values.get("output_cap")))
    values.setdefault("complexity_bucket", complexity_bucket(values.get("complexity", 0.0)))
    return Exchange(**values)


def save(exchanges: Sequence[Exchange], *, detail: bool = False) -> None:
    """As ingest does: rows, and the hours that they touch. `detail`: two candidates, an exclusion and an attempt each,
    and a fallback for those that fell back."""
    with transaction.atomic():
        Exchange.objects.bulk_create(exchanges, batch_size=500)
        if detail:
            save_detail(exchanges)
        for hour in {hour_of(exchange.started_at) for exchange in exchanges}:
            touched = TouchedHour.objects.filter(hour=hour)
            if not touched.update(sequence=F("sequence") + 1):
                TouchedHour.objects.create(hour=hour, touched_at=timezone.now())


def elsewhere(work: Callable[[], object]) -> None:
    """In a thread of its own, which has a connection of its own."""

    def working() -> None:
        try:
            work()
        finally:
            connections.close_all()

    thread = threading.Thread(target=working)
    thread.start()
    thread.join()


def save_detail(exchanges: Sequence[Exchange]) -> None:
    Candidate.objects.bulk_create(
        (
            Candidate(
                exchange=exchange, place=place, target=target, weight=1.0, dynamic_score=score, contrasted_score=score,
                final_score=score / 2, near_tie=place == 1, scores={"latency_score": [120.0, score], "cost_score": [None, None]},
                digits=digits_of([[score], [score], [score / 2], [None], [score]], 1)[0],
            )
            for exchange in exchanges
            for place, (target, score) in enumerate((("paris/m", 0.93), ("oslo/m", 0.41)))
        ),
        batch_size=500,
    )  # fmt: skip
    Exclusion.objects.bulk_create(
        (
            Exclusion(exchange=exchange, place=0, target="rome/m", stage="eligibility", reason="context_exceeded")
            for exchange in exchanges
        ),
        batch_size=500,
    )
    Attempt.objects.bulk_create(
        (
            Attempt(
                exchange=exchange, place=0, target="paris/m", provider="paris", model="m", outcome="ok", status=200,
                started_ms=1.0, duration_ms=90.0, served=True,
            )
            for exchange in exchanges
        ),
        batch_size=500,
    )  # fmt: skip
    Transition.objects.bulk_create(
        Transition(exchange=exchange, place=0, from_target="oslo/m", to_target="paris/m", reason="server_error")
        for exchange in exchanges
        if exchange.fell_back
    )
