"""How long the database may work on one answer."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import psycopg
from django.conf import settings
from django.db import OperationalError, connection, transaction

_STEPS = 5_000
"""Of SQLite's machine between two looks at the clock: a fraction of a millisecond."""


@contextlib.contextmanager
def limited_queries() -> Iterator[None]:
    """Inside, queries only read, and fail with an `OperationalError` after PILOTAGE_API_QUERY_SECONDS.

    On PostgreSQL each statement has that long, on SQLite all of them together.
    """
    seconds = settings.PILOTAGE.api_query_seconds
    if connection.vendor == "postgresql":
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT set_config('statement_timeout', %s, true), set_config('transaction_read_only', 'on', true)",
                    [f"{round(seconds * 1000)}"],
                )
            yield
        return
    connection.ensure_connection()
    end = time.monotonic() + seconds
    database: Any = connection.connection
    database.set_progress_handler(lambda: time.monotonic() > end, _STEPS)
    try:
        yield
    finally:
        database.set_progress_handler(None, 0)


def is_out_of_time(error: OperationalError) -> bool:
    return isinstance(error.__cause__, psycopg.errors.QueryCanceled) or str(error) == "interrupted"
