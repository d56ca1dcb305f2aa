"""Scheduled reports by real workers: on their hour, once, and again by the button; mail goes to a local mail server."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import DjangoDbBlocker

from reports import scheduled
from reports.scheduled_models import ReportDefinition, ReportRun
from tests.reports.rows import an_exchange, save
from tests.support.databases import serving_from
from tests.support.mail import MailServer, mail_server
from tests.support.working import Worker, files_broker

__all__ = ["mail_server"]

pytestmark = pytest.mark.e2e

SIX = datetime(2026, 3, 4, 6, 5, tzinfo=UTC)


@pytest.fixture
def data(tmp_path: Path, sqlite_template: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    shutil.copy(sqlite_template, folder / "pilotage.sqlite3")
    return folder


@pytest.fixture
def workers(tmp_path: Path, data: Path, mail_server: MailServer) -> Iterator[list[Worker]]:
    """Two, that share a data directory."""
    environment = {
        "PILOTAGE_DATA_DIR": str(data),
        "PILOTAGE_EMAIL_URL": f"smtp://127.0.0.1:{mail_server.port}",
        "PILOTAGE_EMAIL_FROM": "Reports <reports@pilotage.example.com>",
    }
    started = [Worker(tmp_path / f"worker-{number}", environment=environment) for number in range(2)]
    yield started
    for worker in started:
        worker.kill()


def test_a_report_is_made_on_its_hour_by_one_of_two_workers_kept_and_mailed_and_again_by_the_button(
    data: Path, workers: list[Worker], mail_server: MailServer, django_db_blocker: DjangoDbBlocker
) -> None:
    @contextmanager
    def rows() -> Iterator[None]:
        with django_db_blocker.unblock(), serving_from(f"sqlite:///{data}/pilotage.sqlite3"):
            yield

    def states() -> list[str]:
        with rows():
            return [run.state for run in ReportRun.objects.order_by("pk")]

    with rows():
        save([an_exchange(datetime(2026, 3, 3, 23, 59, tzinfo=UTC))])
        User.objects.create_superuser("admin", password="x")
        definition = ReportDefinition(name="Daily usage", report="usage", json=True, recipients="team@example.com")
        scheduled.plan_next(definition, now=SIX - timedelta(hours=1))
        definition.save()
    broker = files_broker(data)
    broker.send("reports.make_due", (SIX - timedelta(minutes=1)).isoformat())
    for _ in range(4):
        broker.send("reports.make_due", (SIX + timedelta(seconds=20)).isoformat())
    workers[0].until(lambda: states() == ["done"], what="a report")
    workers[0].until(lambda: broker.waiting() == 0, what="an empty queue")
    with rows():
        run = ReportRun.objects.get()
        files = {file.name: bytes(file.data) for file in run.files.all()}
    assert (run.due_at, run.tries, run.mailed_to) == (SIX, 1, ["team@example.com"])
    (mail,) = mail_server.mails
    assert (mail.to, mail.subject, mail.files) == (["team@example.com"], "Daily usage: 2026-03-03", files)
    assert mail.message["from"] == "Reports <reports@pilotage.example.com>"
    assert b'"Requests": {"value": 1,' in files["pilotage-usage-2026-03-03_2026-03-03.json"]

    # The page's button queues a run, which the next look finds; this process's own broker is another.
    with rows():
        client = Client()
        client.force_login(User.objects.get())
        answer = client.post(f"/admin/reports/reportdefinition/{definition.pk}/run/")
        assert answer.status_code == 302
    broker.send("reports.make_due", (SIX + timedelta(minutes=1)).isoformat())
    workers[0].until(lambda: states() == ["done", "done"], what="the report by hand")
    assert [mail.to for mail in mail_server.mails] == [["team@example.com"]] * 2

    # What goes wrong is told.
    with rows():
        ReportDefinition.objects.update(report="gone")
        client.post(f"/admin/reports/reportdefinition/{definition.pk}/run/")
    broker.send("reports.make_due", (SIX + timedelta(minutes=2)).isoformat())
    workers[0].until(lambda: states() == ["done", "done", "failed"], what="a failure")
    with rows():
        page = client.get(f"/admin/reports/reportdefinition/{definition.pk}/change/").content.decode()
    assert "there is no report called &#x27;gone&#x27; any more" in page
    assert [worker.stop() for worker in workers] == [0, 0]


def test_the_schedule_looks_for_reports_by_itself(
    tmp_path: Path, data: Path, django_db_blocker: DjangoDbBlocker
) -> None:
    with django_db_blocker.unblock(), serving_from(f"sqlite:///{data}/pilotage.sqlite3"):
        definition = ReportDefinition(name="Hourly", report="usage", every="hour")
        scheduled.plan_next(definition, now=datetime.now(UTC) - timedelta(hours=2))
        definition.save()
    (data / "schedule.json").write_text('{"scheduled reports": 1}')
    worker = Worker(tmp_path / "worker", "--schedule", environment={"PILOTAGE_DATA_DIR": str(data)})
    try:

        def states() -> set[str]:
            with django_db_blocker.unblock(), serving_from(f"sqlite:///{data}/pilotage.sqlite3"):
                return set(ReportRun.objects.values_list("state", flat=True))

        worker.until(lambda: states() == {"done"}, what="the reports that were due")
    finally:
        worker.stop()
