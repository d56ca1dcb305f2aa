"""Rows into tables by the database's fastest way in: COPY on PostgreSQL, one prepared statement on SQLite."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from typing import Any

from django.db import connection

from reports.ingest_rows import Row, columns
from reports.models import Exchange, IngestCount, SpoolFile, TouchedHour


def reserve_ids(count: int) -> list[int]:
    """Primary keys for that many new exchanges, inside the transaction that writes them."""
    table = Exchange._meta.db_table
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(
                "SELECT nextval(pg_get_serial_sequence(%s, 'id')) FROM generate_series(1, %s)", [table, count]
            )
            return [number for (number,) in cursor.fetchall()]
        # The transaction holds the database's only place to write, so nobody else takes these numbers.
        cursor.execute("SELECT seq FROM sqlite_sequence WHERE name = %s", [table])
        found = cursor.fetchone()
        last = found[0] if found else 0
        return list(range(last + 1, last + 1 + count))


def write(model: Any, rows: Sequence[Row], names: Sequence[str] = ()) -> None:
    """`rows`: values in the order of `names`, or of `columns(model)`. Raises Django's database errors."""
    if not rows:
        return
    quote = connection.ops.quote_name
    names = names or columns(model)
    listed = ", ".join(quote(name) for name in names)
    table = quote(model._meta.db_table)
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            with connection.wrap_database_errors, cursor.copy(f"COPY {table} ({listed}) FROM STDIN") as copy:
                for row in rows:
                    copy.write_row(row)
            return
        places = ", ".join(["%s"] * len(names))
        statement = f"INSERT INTO {table} ({listed}) VALUES ({places})"  # noqa: S608 - names of our own models
        times = [place for place, value in enumerate(rows[0]) if isinstance(value, date)]
        cursor.executemany(statement, [_for_sqlite(row, times) for row in rows] if times else rows)


def touch(hours: Iterable[datetime], *, now: datetime) -> None:
    """In order, so that two ingests never wait for each other in a circle."""
    table = connection.ops.quote_name(TouchedHour._meta.db_table)
    _each(
        f"INSERT INTO {table} (hour, sequence, touched_at) VALUES (%s, 1, %s) ON CONFLICT (hour) DO UPDATE"  # noqa: S608
        f" SET sequence = {table}.sequence + 1, touched_at = EXCLUDED.touched_at",
        [(hour, now) for hour in sorted(hours)],
    )


def count(counts: Mapping[str, int]) -> None:
    table = connection.ops.quote_name(IngestCount._meta.db_table)
    _each(
        f"INSERT INTO {table} (name, count) VALUES (%s, %s) ON CONFLICT (name) DO UPDATE"  # noqa: S608
        f" SET count = {table}.count + EXCLUDED.count",
        [(name, number) for name, number in sorted(counts.items()) if number],
    )


def move_on(spool: str, name: str, offset: int) -> None:
    table, column = (connection.ops.quote_name(each) for each in (SpoolFile._meta.db_table, "offset"))
    _each(
        f"INSERT INTO {table} (spool, name, {column}) VALUES (%s, %s, %s) ON CONFLICT (spool, name) DO UPDATE"  # noqa: S608
        f" SET {column} = EXCLUDED.{column}",
        [(spool, name, offset)],
    )


def _each(statement: str, rows: Sequence[Row]) -> None:
    with connection.cursor() as cursor:
        for row in rows:
            times = [place for place, value in enumerate(row) if isinstance(value, date)]
            cursor.execute(statement, _for_sqlite(row, times) if connection.vendor == "sqlite" else row)


def _for_sqlite(row: Row, times: Sequence[int]) -> Row:
    """With the moments and days at `times` as SQLite keeps them."""
    adapted: list[Any] = list(row)
    for place in times:
        if isinstance(row[place], datetime):
            adapted[place] = connection.ops.adapt_datetimefield_value(row[place])
        else:
            adapted[place] = connection.ops.adapt_datefield_value(row[place])
    return tuple(adapted)
