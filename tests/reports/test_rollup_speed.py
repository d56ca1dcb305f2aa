"""What a day's rollup costs: its shape here, its figures under `full`."""

import os
import resource
import time
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from django.db import connection
from django.db.models import Sum

from reports.core.rollup import day_span
from reports.models import Exchange
from reports.rollup_models import DailyRollup, DecisionBucket, SlotRollup
from reports.rollups import roll
from tests.reports.rows import an_exchange
from tests.support.databases import serving_from

BERLIN = ZoneInfo("Europe/Berlin")
SMALL, LARGE = date(2026, 3, 10), date(2026, 3, 12)
LATER = datetime(2026, 4, 1, tzinfo=UTC)


def fill(day: date, count: int) -> None:
    """Spread over the day: 8 groups, 50 callers, 3 targets with 4 scores each; one
    exchange in 30 fell back. By the database itself, which is a hundred times faster."""
    start = day_span(day, BERLIN).start
    pattern = an_exchange(start, signals=["cost", "observed_performance"])
    pattern.save()
    columns = [field.column for field in Exchange._meta.concrete_fields if field.column and not field.primary_key]
    changed = {
        "request_id": f"'req_{day}_' || n",
        "started_at": f"started_at + n * interval '86399 seconds' / {count}",
        "caller": "'caller' || n::bigint * 7919 % 50",
        "group": "'group' || n::bigint * 7919 % 50 % 8",
        "provider": "'p' || n % 3",
        "model": "'m' || n % 3",
        "target": "'p' || n % 3 || '/m' || n % 3",
        "duration_ms": "exp(3 + random() * 6)",
        "first_content_ms": "exp(3 + random() * 4)",
        "cost_microdollars": "n % 1000",
        "fell_back": "n % 30 = 0",
        "mode": "(ARRAY['score', 'pinned', 'cold_start'])[1 + n % 3]",
        "input_bucket": "(ARRAY['<=1000', '<=4000', '<=16000'])[1 + (random() * 2)::int]",
        "output_cap_bucket": "(ARRAY['none', '<=256', '<=1024'])[1 + (random() * 2)::int]",
    }
    with connection.cursor() as cursor:
        names = ", ".join(f'"{column}"' for column in columns)
        values = ", ".join(changed.get(column, f'"{column}"') for column in columns)
        cursor.execute(
            f"""INSERT INTO reports_exchange ({names}) SELECT {values}
            FROM reports_exchange, generate_series(0, {count - 1}) n WHERE id = {pattern.pk}"""
        )
        cursor.execute(
            f"""INSERT INTO reports_candidate (exchange_id, place, target, dynamic_score, contrasted_score, final_score,
                near_tie, scores, terms, digits)
            SELECT id, place, 'p' || place || '/m' || place, 0.5, 0.5, 0.5, false,
                   '{{"cost_score": [1, 0.5], "latency_score": [1, 0.5]}}', '[]',
                   LPAD((random() * 9999999)::integer::text, 7, '0')
            FROM reports_exchange, generate_series(0, 2) place WHERE id > {pattern.pk}"""
        )
        cursor.execute(
            f"""INSERT INTO reports_exclusion (exchange_id, place, target, stage, reason, detail)
            SELECT id, 0, 'rome/m', 'eligibility', 'context_exceeded', 'needs more' FROM reports_exchange
            WHERE id > {pattern.pk} AND id % 3 = 0"""
        )
        cursor.execute(
            f"""INSERT INTO reports_attempt (exchange_id, place, target, provider, model, outcome, error_code, started_ms,
                duration_ms, served)
            SELECT id, 0, target, provider, model, 'ok', '', 1, duration_ms, true FROM reports_exchange
            WHERE id > {pattern.pk}"""
        )
        cursor.execute(
            f"""INSERT INTO reports_transition (exchange_id, place, from_target, to_target, reason)
            SELECT id, 0, target, 'p0/m0', 'timeout' FROM reports_exchange WHERE id > {pattern.pk} AND fell_back"""
        )
        pattern.delete()
        cursor.execute("ANALYZE")


def cpu_seconds(pid: int) -> float:
    """Of one process, from its start."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_memory() -> int:
    """Bytes that this process ever had in memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


@dataclass(frozen=True, kw_only=True)
class Taken:
    seconds: float
    python: float
    """CPU seconds, as is the next."""
    server: float
    memory: int
    """Bytes, beyond what there was before."""


def taken_by(day: date, count: int) -> Taken:
    with connection.cursor() as cursor:
        cursor.execute("SET max_parallel_workers_per_gather = 0")  # the work of one server process can be told
        cursor.execute("SELECT pg_backend_pid()")
        (backend,) = cursor.fetchone() or (0,)
    started, memory = time.perf_counter(), peak_memory()
    before = (cpu_seconds(os.getpid()), cpu_seconds(backend))
    roll(day, day, now=LATER, zone=BERLIN)
    seconds = time.perf_counter() - started
    python, server = cpu_seconds(os.getpid()) - before[0], cpu_seconds(backend) - before[1]
    assert DailyRollup.objects.filter(day=day).aggregate(n=Sum("requests"), cost=Sum("cost_microdollars")) == {
        "n": count, "cost": sum(n % 1000 for n in range(count)),
    }  # fmt: skip
    digits = DecisionBucket.objects.filter(day=day, dimension="value.reliability_score")
    assert digits.aggregate(n=Sum("count"))["n"] == 3 * count
    return Taken(seconds=seconds, python=python, server=server, memory=peak_memory() - memory)


@pytest.mark.full
@pytest.mark.timeout(1_800)
def test_a_day_of_a_million_exchanges_costs_four_times_one_of_a_quarter_of_a_million(
    postgres_url, django_db_blocker, capsys
):
    with django_db_blocker.unblock(), serving_from(postgres_url):
        taken = []
        for day, count in ((SMALL, 250_000), (LARGE, 1_000_000)):
            fill(day, count)
            taken.append(taken_by(day, count))
            with capsys.disabled():
                print(
                    f"\n{count:,} exchanges: {taken[-1].seconds:.1f} s, CPU {taken[-1].python:.1f} s here and"
                    f" {taken[-1].server:.1f} s in the server, {taken[-1].memory >> 20} MiB more in memory"
                )
        rows = (SlotRollup.objects.count(), DailyRollup.objects.count(), DecisionBucket.objects.count())
        with capsys.disabled():
            print(f"rows of slots, days and buckets: {rows}")
    small, large = taken
    assert large.python + large.server <= 5 * (small.python + small.server)
    assert large.memory <= 128 << 20, "an hour's exchanges are held at a time, as a few bytes each"
