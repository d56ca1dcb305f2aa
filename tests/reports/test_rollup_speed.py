"""What a day's rollup costs: its shape here, its figures under `full`."""

import os
import time
from datetime import UTC, date, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from django.db import connection
from django.db.models import Sum

from reports.models import Exchange
from reports.rollup_models import DailyRollup, DecisionBucket, SlotRollup
from reports.rollups import roll
from tests.reports.rows import an_exchange
from tests.support.databases import serving_from

BERLIN = ZoneInfo("Europe/Berlin")
DAY = date(2026, 3, 10)
LATER = datetime(2026, 4, 1, tzinfo=UTC)


def fill(count: int, candidates: int = 3) -> None:
    """Spread over the day: 20 callers, 3 groups, 4 models. By the database itself, which is a hundred times faster."""
    pattern = an_exchange(datetime(2026, 3, 9, 23, tzinfo=UTC), signals=["cost_score", "latency_score", "ttfc_score"])
    pattern.save()
    columns = [field.column for field in Exchange._meta.concrete_fields if field.column and not field.primary_key]
    changed = {
        "request_id": "'req_n' || n",
        "started_at": f"started_at + n * interval '86399 seconds' / {count}",
        "caller": "'caller' || n % 20",
        "group": "'group' || n % 3",
        "model": "'m' || n % 4",
        "target": "'paris/m' || n % 4",
        "duration_ms": "exp(random() * 8)",
        "first_content_ms": "exp(random() * 6)",
        "cost_microdollars": "n % 1000",
        "mode": "(ARRAY['score', 'pinned', 'cold_start'])[1 + n % 3]",
        "input_bucket": "(ARRAY['<=1000', '<=4000', '<=16000'])[1 + (random() * 2)::int]",
    }
    with connection.cursor() as cursor:
        names = ", ".join(f'"{column}"' for column in columns)
        values = ", ".join(changed.get(column, f'"{column}"') for column in columns)
        cursor.execute(
            f"INSERT INTO reports_exchange ({names}) SELECT {values} FROM reports_exchange, generate_series(0, {count - 1}) n"
        )
        pattern.delete()
        cursor.execute(
            f"""INSERT INTO reports_candidate
                (exchange_id, place, target, dynamic_score, contrasted_score, final_score, near_tie, scores, terms)
            SELECT id, place, 'paris/m' || place, random(), random(), random(), false,
                   jsonb_build_object('cost_score', jsonb_build_array(1.5, random()), 'latency_score',
                   jsonb_build_array(120.5, random()), 'ttfc_score', jsonb_build_array(80.5, random())), '[]'
            FROM reports_exchange, generate_series(0, {candidates - 1}) place"""
        )
        cursor.execute(
            """INSERT INTO reports_exclusion (exchange_id, place, target, stage, reason, detail)
            SELECT id, 0, 'rome/m', 'eligibility', 'context_exceeded', 'needs more' FROM reports_exchange"""
        )
        cursor.execute(
            """INSERT INTO reports_attempt (exchange_id, place, target, provider, model, outcome, error_code, started_ms,
                duration_ms, served) SELECT id, 0, target, provider, model, 'ok', '', 1, duration_ms, true
            FROM reports_exchange"""
        )
        cursor.execute("ANALYZE")


def cpu_seconds(pid: int) -> float:
    """Of one process, from its start."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_day_of_200_000_exchanges_is_summed_in_one_go(postgres_url, django_db_blocker, capsys):
    """Prints what it took, of both processes: the time of a busy machine says nothing."""
    count = 200_000
    with django_db_blocker.unblock(), serving_from(postgres_url):
        fill(count)
        with connection.cursor() as cursor:
            cursor.execute("SET max_parallel_workers_per_gather = 0")  # the work of one server process can be told
            cursor.execute("SELECT pg_backend_pid()")
            (backend,) = cursor.fetchone() or (0,)
        started, before = time.perf_counter(), (cpu_seconds(os.getpid()), cpu_seconds(backend))
        roll(DAY, DAY, now=LATER, zone=BERLIN)
        seconds = time.perf_counter() - started
        python, server = cpu_seconds(os.getpid()) - before[0], cpu_seconds(backend) - before[1]
        assert DailyRollup.objects.aggregate(n=Sum("requests"), cost=Sum("cost_microdollars")) == {
            "n": count, "cost": sum(n % 1000 for n in range(count)),
        }  # fmt: skip
        rows = (SlotRollup.objects.count(), DailyRollup.objects.count(), DecisionBucket.objects.count())
    with capsys.disabled():
        print(f"\n{count:,} exchanges: {seconds:.1f} s, CPU {python:.1f} s here and {server:.1f} s in the server")
        print(f"rows of slots, days and buckets: {rows}")
