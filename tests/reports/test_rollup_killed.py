"""Commands that are killed in the middle of a transaction: the tables are the old ones or the new ones, never half."""

import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from reports.models import Candidate, Exclusion
from reports.rollup_models import DailyRollup, DecisionBucket, SlotRollup
from reports.rollups import pending, roll
from tests.reports.rows import an_exchange, save

ROOT = Path(__file__).parents[2]
NOON = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0) - timedelta(days=60)
"""Commands ask the clock; this is past what the settings keep of detail, and within what they keep of the rest."""

KILLED_BEFORE = """
import os, signal, sys
import django
django.setup()
from django.core.management import call_command
from django.db import connection
from reports import ingest_tables

def killing(execute, sql, params, many, context):
    if sql.startswith(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
    return execute(sql, params, many, context)

def writing(model, *rows):
    # COPY comes by no wrapper.
    killing(lambda *statement: None, f'INSERT INTO "{model._meta.db_table}"', None, False, None)
    write(model, *rows)

write, ingest_tables.write = ingest_tables.write, writing
with connection.execute_wrapper(killing):
    call_command(*sys.argv[2:])
"""


def kill(database: str, folder: Path, statement: str, *command: str) -> None:
    """Runs a command in a process of its own, which dies as it comes to a statement that begins like this."""
    environment = {**os.environ, "DATABASE_URL": database, "PILOTAGE_DATA_DIR": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", KILLED_BEFORE, statement, *command], cwd=ROOT, env=environment, capture_output=True, timeout=60
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


def table(model: Any) -> list[tuple[Any, ...]]:
    columns = [field.name for field in model._meta.concrete_fields if not field.primary_key]
    rows = model.objects.values_list(*columns)
    return sorted((tuple(bytes(v) if isinstance(v, memoryview) else v for v in row) for row in rows), key=repr)


def tables() -> list[list[tuple[Any, ...]]]:
    return [table(SlotRollup), table(DailyRollup), table(DecisionBucket)]


@pytest.mark.parametrize(
    ("statement", "slots_are_new"),
    [
        ('INSERT INTO "reports_slotrollup"', False),
        ('DELETE FROM "reports_touchedhour"', False),
        ('INSERT INTO "reports_decisionbucket"', True),
    ],
)
def test_a_rollup_killed_in_the_middle_leaves_the_old_tables_or_the_new(database, tmp_path, statement, slots_are_new):
    save([an_exchange(NOON, fell_back=True)], detail=True)
    roll()
    slots, days, buckets = tables()
    save([an_exchange(NOON, cost_microdollars=7), an_exchange(NOON, caller="shop")], detail=True)
    kill(database, tmp_path, statement, "rollup")
    killed = tables()
    assert killed[1:] == [days, buckets]
    assert (killed[0] == slots) is not slots_are_new
    left = pending()
    assert (len(left.hours), len(left.days)) == ((0, 1) if slots_are_new else (1, 0))
    roll()
    finished = tables()
    assert (finished[0] == killed[0]) is slots_are_new
    assert DailyRollup.objects.get(caller="team").cost_microdollars == 1_007
    for model in (SlotRollup, DailyRollup, DecisionBucket):
        model.objects.all().delete()
    roll(NOON.date(), NOON.date())
    assert tables() == finished


def test_retention_killed_in_the_middle_goes_on_where_it_was(database, tmp_path):
    save([an_exchange(NOON + timedelta(minutes=n)) for n in range(4)], detail=True)
    roll()
    before = tables()
    kill(database, tmp_path, 'DELETE FROM "reports_exclusion"', "retention", "--apply")
    assert (Candidate.objects.count(), Exclusion.objects.count()) == (8, 4)
    roll(NOON.date(), NOON.date())
    assert tables() == before
    subprocess.run(
        [sys.executable, "manage.py", "retention", "--apply"],
        cwd=ROOT, check=True, capture_output=True, timeout=60,
        env={**os.environ, "DATABASE_URL": database, "PILOTAGE_DATA_DIR": str(tmp_path)},
    )  # fmt: skip
    assert (Candidate.objects.count(), Exclusion.objects.count()) == (0, 0)
    roll(NOON.date(), NOON.date())
    assert tables() == before
