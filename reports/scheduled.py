"""Scheduled reports: what is due, making it, keeping it. What `now` is, the caller says; mail is in `reports.mailing`.

Rows are the queue. A due time becomes one run, whoever looks and however often; a run is made by whoever claims it.
"""

import logging
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, cast
from zoneinfo import ZoneInfo

from celery.exceptions import SoftTimeLimitExceeded
from django.conf import settings
from django.db import transaction
from django.db.models import F, OuterRef, Q, QuerySet, Subquery
from django.utils import timezone

from reports import exports
from reports.catalogue import REPORTS, build
from reports.core.schedule import days_of
from reports.exports import Format
from reports.filters import Filters
from reports.scheduled_models import ERROR_LENGTH, ReportDefinition, ReportFile, ReportRun
from reports.tables import Report

log = logging.getLogger("pilotage.reports")

MOST_TRIES = 3
"""How often a run is begun whose workers are killed over it."""
GRACE_SECONDS = 30
"""Beyond the time limit of tasks, before a run counts as abandoned."""
READY = ("running", "mailing")


class TooLarge(Exception):
    """A file would be larger than PILOTAGE_REPORT_FILE_BYTES."""


@dataclass(slots=True)
class Due:
    """What is to be done now: ids of runs."""

    make: list[int] = field(default_factory=list)
    mail: list[int] = field(default_factory=list)


def due(*, now: datetime) -> Due:
    """Queues what has come due, gives back what was abandoned, deletes what was kept long enough. Any number may do it
    at once."""
    for definition in ReportDefinition.objects.filter(active=True, next_run_at__lte=now):
        _queue(definition, now)
    _give_back(now)
    prune(now=now)
    runs = ReportRun.objects.order_by("queued_at", "pk")
    return Due(
        make=list(runs.filter(state="queued").values_list("pk", flat=True)),
        mail=list(runs.filter(state="mailing", mail_next_at__lte=now).values_list("pk", flat=True)),
    )


def order(definition: ReportDefinition, *, by: str, now: datetime) -> ReportRun:
    """A run by hand. One that waits already is the one: a button may be pressed twice."""
    with transaction.atomic():
        ReportDefinition.objects.select_for_update().get(pk=definition.pk)
        waiting = definition.runs.filter(state="queued", due_at=None).first()
        return waiting or definition.runs.create(queued_at=now, requested_by=by)


def plan_next(definition: ReportDefinition, *, now: datetime) -> None:
    """To be called when the schedule was changed, before it is saved: it counts from now on."""
    definition.next_run_at = definition.schedule.next_after(now) if definition.active else None


def make(run_id: int) -> bool:
    """Makes and keeps the files, unless somebody else does or did; whether there is a mail to send. What goes wrong
    stands in the run."""
    now = timezone.now()
    claim = secrets.token_hex(8)
    queued = ReportRun.objects.filter(pk=run_id, state="queued")
    claimed = queued.update(state="running", claim=claim, started_at=now, error="", tries=F("tries") + 1)
    if not claimed:
        return False
    run = ReportRun.objects.select_related("definition").get(pk=run_id)
    try:
        report, filters = built(run.definition, run.moment)
        files = list(_files(run.definition, report, filters))
    except Exception as problem:
        _end(run, state="failed", error=_words(problem))
        log.exception("the report %s was not made", run)
        return False
    addresses = run.definition.addresses
    with transaction.atomic():
        ended = _end(
            run,
            state="mailing" if addresses else "done",
            first_day=filters.first,
            last_day=filters.last,
            mail_to=addresses,
            mail_next_at=now if addresses else None,
        )
        if ended:
            run.files.all().delete()
            ReportFile.objects.bulk_create(
                ReportFile(run=run, format=format, name=name, size=len(data), data=data) for format, name, data in files
            )
    return bool(ended and addresses)


def built(definition: ReportDefinition, moment: datetime) -> tuple[Report, Filters]:
    """The report as it was at `moment`, of the sums that there are now."""
    zone = ZoneInfo(definition.zone)
    first, last = days_of(definition.asked_period, moment, zone)
    filters = Filters(
        period="custom",
        first=first,
        last=last,
        zone=zone,
        now=moment,
        group=definition.group,
        caller=definition.caller,
        project=definition.project,
        provider=definition.provider,
        model=definition.model,
        baseline=definition.baseline,
    )
    if definition.report not in REPORTS:
        raise LookupError(f"there is no report called {definition.report!r} any more")
    return build(definition.report, filters), filters


def prune(*, now: datetime) -> int:
    """Deletes runs with their files that are older than PILOTAGE_KEEP_REPORT_DAYS, and of each report those beyond
    PILOTAGE_KEEP_REPORT_RUNS. Those under way stay."""
    ended = ReportRun.objects.exclude(state__in=("queued", *READY))
    count = 0
    if days := settings.PILOTAGE.keep_report_days:
        count += _delete(ended.filter(queued_at__lt=now - timedelta(days=days)))
    for definition in ReportDefinition.objects.only("pk"):
        kept = definition.runs.order_by("-queued_at", "-pk")[settings.PILOTAGE.keep_report_runs :][:1]
        for newest_beyond in kept:
            older = Q(queued_at__lt=newest_beyond.queued_at) | Q(
                queued_at=newest_beyond.queued_at, pk__lte=newest_beyond.pk
            )
            count += _delete(ended.filter(older, definition=definition))
    return count


def with_last_run(definitions: QuerySet[ReportDefinition]) -> QuerySet[ReportDefinition]:
    """With `last_state`, `last_at` (when it was finished, or `None`) and `last_id` of each one's last run."""
    last = ReportRun.objects.filter(definition=OuterRef("pk"))
    return definitions.annotate(
        last_state=Subquery(last.values("state")[:1]),
        last_at=Subquery(last.values("finished_at")[:1]),
        last_id=Subquery(last.values("pk")[:1]),
    )


def _queue(definition: ReportDefinition, now: datetime) -> None:
    """One run for every due time since, of those within PILOTAGE_REPORT_CATCH_UP_HOURS; the last in any case."""
    seen = definition.next_run_at
    assert seen is not None
    since = now - timedelta(hours=settings.PILOTAGE.report_catch_up_hours)
    schedule = definition.schedule
    times: list[datetime] = []
    skipped = 0
    at = seen
    while at <= now:
        if times and times[0] < since:
            times.pop(0)
            skipped += 1
        times.append(at)
        at = schedule.next_after(at)
    with transaction.atomic():
        ours = ReportDefinition.objects.filter(pk=definition.pk, active=True, next_run_at=seen)
        if not ours.update(next_run_at=at):  # another did it, or it was changed
            return
        ReportRun.objects.bulk_create(
            [ReportRun(definition=definition, due_at=moment, queued_at=now) for moment in times], ignore_conflicts=True
        )
    if skipped:
        log.warning("%s: %s due times are too long ago and were left out", definition, skipped)


def _give_back(now: datetime) -> None:
    abandoned = ReportRun.objects.filter(
        state="running", started_at__lt=now - timedelta(seconds=settings.PILOTAGE.task_hard_seconds + GRACE_SECONDS)
    )
    abandoned.filter(tries__gte=MOST_TRIES).update(
        state="failed", claim="", finished_at=now, error=f"Its worker was killed or out of time, {MOST_TRIES} times."
    )
    abandoned.update(state="queued", claim="")


def _end(run: ReportRun, *, state: str, **values: Any) -> bool:
    """Whether the run was still this worker's."""
    finished = None if state == "mailing" else timezone.now()
    ours = ReportRun.objects.filter(pk=run.pk, state="running", claim=run.claim)
    return bool(ours.update(state=state, claim="", finished_at=finished, **values))


def _files(definition: ReportDefinition, report: Report, filters: Filters) -> Iterator[tuple[Format, str, bytes]]:
    for format in cast(list[Format], definition.formats):
        pieces = {
            "csv": lambda: exports.as_csv(report),
            "json": lambda: exports.as_json(report),
            "html": lambda: exports.as_html(report, filters=filters, zone=filters.zone),
        }[format]()
        name = exports.file_name(report.slug, f"{filters.first}_{filters.last}", format)
        yield format, name, _bounded(pieces, format)


def _bounded(pieces: Iterable[str], format: str) -> bytes:
    most = settings.PILOTAGE.report_file_bytes
    whole = bytearray()
    for piece in pieces:
        whole += piece.encode()
        if len(whole) > most:
            raise TooLarge(f"the {format} file is larger than {most:,} bytes (PILOTAGE_REPORT_FILE_BYTES)")
    return bytes(whole)


def _words(problem: Exception) -> str:
    """Of our own errors the text; of others the kind too."""
    if isinstance(problem, SoftTimeLimitExceeded):
        return "It took longer than PILOTAGE_TASK_SOFT_SECONDS."
    text = str(problem) if isinstance(problem, TooLarge | LookupError) else f"{type(problem).__name__}: {problem}"
    return text[:ERROR_LENGTH]


def _delete(runs: QuerySet[ReportRun]) -> int:
    return runs.delete()[1].get("reports.ReportRun", 0)
