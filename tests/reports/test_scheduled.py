"""Scheduled reports as rows: what is due, once each; what is made and kept; mail and its second tries."""

import dataclasses
import threading
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.mail import BadHeaderError
from django.db import IntegrityError, transaction
from django.utils import timezone

from reports import mailing, scheduled
from reports.core.schedule import Schedule
from reports.rollups import roll
from reports.scheduled_models import ReportDefinition, ReportFile, ReportRun
from tests.reports.rows import an_exchange, elsewhere, save
from tests.support.mail import MailServer, mail_server

__all__ = ["mail_server"]

SIX = datetime(2026, 3, 4, 6, 5, tzinfo=UTC)
"""When the definition below is due."""
BEFORE = SIX - timedelta(hours=12)


def a_definition(**said: Any) -> ReportDefinition:
    """Saved: usage of yesterday, made every day at 06:05 UTC, due at SIX for the first time."""
    definition = ReportDefinition(**{"name": "Usage", "report": "usage", "zone": "UTC"} | said)
    definition.full_clean()
    scheduled.plan_next(definition, now=BEFORE)
    definition.save()
    return definition


def runs() -> list[tuple[datetime | None, str]]:
    return [(run.due_at, run.state) for run in ReportRun.objects.order_by("due_at", "pk")]


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> Any:
    def choose(**values: Any) -> None:
        monkeypatch.setattr(settings, "PILOTAGE", dataclasses.replace(settings.PILOTAGE, **values))

    return choose


def test_a_report_is_queued_at_its_time_and_once_however_often_it_is_looked(database: str) -> None:
    definition = a_definition()
    assert scheduled.due(now=SIX - timedelta(seconds=1)).make == []
    for _ in range(3):
        assert len(scheduled.due(now=SIX + timedelta(seconds=30)).make) == 1
    definition.refresh_from_db()
    assert (runs(), definition.next_run_at) == ([(SIX, "queued")], SIX + timedelta(days=1))


def test_those_who_look_at_the_same_time_queue_and_make_it_once(database: str) -> None:
    a_definition()
    made: list[bool] = []
    problems: list[BaseException] = []

    def look() -> None:
        try:
            for run_id in scheduled.due(now=SIX).make:
                scheduled.make(run_id)
                made.append(ReportRun.objects.get(pk=run_id).tries == 1)
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=elsewhere, args=(look,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (problems, set(made), runs()) == ([], {True}, [(SIX, "done")])
    assert ReportFile.objects.count() == 2


def test_a_report_that_is_changed_meanwhile_is_not_queued_for_its_old_time(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    definition = a_definition()
    later = SIX + timedelta(days=3)

    def changed_while_looking(self: Any, moment: datetime) -> datetime:
        ReportDefinition.objects.filter(pk=definition.pk).update(next_run_at=later)
        return SIX + timedelta(days=1)

    monkeypatch.setattr(Schedule, "next_after", changed_while_looking)
    assert scheduled.due(now=SIX).make == []
    definition.refresh_from_db()
    assert (runs(), definition.next_run_at) == ([], later)


def test_a_due_time_cannot_have_two_runs(database: str) -> None:
    definition = a_definition()
    definition.runs.create(due_at=SIX, queued_at=SIX)
    with pytest.raises(IntegrityError), transaction.atomic():
        definition.runs.create(due_at=SIX, queued_at=SIX)


def test_what_was_missed_is_made_up_for_within_the_limit(database: str, chosen: Any) -> None:
    chosen(report_catch_up_hours=48)
    a_definition()
    scheduled.due(now=SIX + timedelta(days=4, hours=1))
    assert runs() == [(SIX + timedelta(days=days), "queued") for days in (3, 4)]


def test_the_last_time_is_made_up_for_however_long_ago_it_was(database: str) -> None:
    a_definition(every="month", day=4)
    scheduled.due(now=SIX + timedelta(days=20))
    assert runs() == [(SIX, "queued")]


def test_one_that_is_not_active_is_made_by_hand_only(database: str) -> None:
    definition = a_definition(active=False)
    assert definition.next_run_at is None
    assert scheduled.due(now=SIX + timedelta(days=9)).make == []
    run = scheduled.order(definition, by="anna", now=SIX)
    assert scheduled.order(definition, by="berta", now=SIX).pk == run.pk
    assert (scheduled.due(now=SIX).make, run.requested_by) == ([run.pk], "anna")


def test_a_report_is_of_the_days_before_it_was_due_and_kept_in_each_format(database: str) -> None:
    save([an_exchange(datetime(2026, 3, 3, 23, 59, tzinfo=UTC)), an_exchange(datetime(2026, 3, 4, 0, 1, tzinfo=UTC))])
    roll(now=SIX + timedelta(days=9))
    a_definition(json=True, group="chat")
    (run_id,) = scheduled.due(now=SIX + timedelta(days=2, minutes=-1)).make[:1]
    assert scheduled.make(run_id) is False  # nobody gets a mail
    run = ReportRun.objects.get(pk=run_id)
    assert (run.state, run.first_day, run.last_day, run.error) == ("done", date(2026, 3, 3), date(2026, 3, 3), "")
    files = {file.format: file for file in run.files.all()}
    assert {name: file.name for name, file in files.items()} == {
        name: f"pilotage-usage-2026-03-03_2026-03-03.{name}" for name in ("csv", "html", "json")
    }
    assert [file.size for file in files.values()] == [len(file.data) for file in files.values()]
    assert b'"Requests": {"value": 1,' in bytes(files["json"].data)
    assert "2026-03-03, UTC" in bytes(files["html"].data).decode()


def test_a_report_that_cannot_be_made_says_why_and_is_not_tried_again(
    database: str, chosen: Any, caplog: pytest.LogCaptureFixture
) -> None:
    chosen(report_file_bytes=1024)
    a_definition(html=True, csv=False)
    (run_id,) = scheduled.due(now=SIX).make
    assert scheduled.make(run_id) is False
    run = ReportRun.objects.get()
    assert (run.state, run.error, run.files.count()) == (
        "failed",
        "the html file is larger than 1,024 bytes (PILOTAGE_REPORT_FILE_BYTES)",
        0,
    )
    assert run.finished_at is not None
    assert scheduled.due(now=SIX).make == []
    assert caplog.messages == ["the report Usage, 2026-03-04 06:05 was not made"]


def test_a_report_that_there_is_no_more_fails_with_its_name(database: str) -> None:
    definition = a_definition()
    ReportDefinition.objects.filter(pk=definition.pk).update(report="weather")
    (run_id,) = scheduled.due(now=SIX).make
    scheduled.make(run_id)
    assert ReportRun.objects.get().error == "there is no report called 'weather' any more"


def test_a_run_whose_worker_was_killed_goes_back_and_fails_after_three(database: str) -> None:
    definition = a_definition()
    run = definition.runs.create(due_at=SIX, queued_at=SIX, state="running", started_at=SIX, claim="x", tries=1)
    limit = timedelta(seconds=settings.PILOTAGE.task_hard_seconds + scheduled.GRACE_SECONDS)
    definition.next_run_at = SIX + timedelta(days=1)
    definition.save()
    assert scheduled.due(now=SIX + limit).make == []
    assert scheduled.due(now=SIX + limit + timedelta(seconds=1)).make == [run.pk]
    ReportRun.objects.update(state="running", tries=3)
    assert scheduled.due(now=SIX + limit + timedelta(seconds=1)).make == []
    run.refresh_from_db()
    assert (run.state, run.error) == ("failed", "Its worker was killed or out of time, 3 times.")


def test_runs_are_kept_for_their_days_and_up_to_their_number(database: str, chosen: Any) -> None:
    chosen(keep_report_days=10, keep_report_runs=3)
    definition, other = a_definition(), a_definition(name="Other")
    for days in (11, 9, 8, 7, 6):
        at = SIX - timedelta(days=days)
        run = definition.runs.create(due_at=at, queued_at=at, state="done")
        ReportFile.objects.create(run=run, format="csv", name="x", size=1, data=b"x")
    other.runs.create(queued_at=SIX - timedelta(days=9), state="done")
    waiting = other.runs.create(queued_at=SIX - timedelta(days=30), state="queued")
    assert scheduled.prune(now=SIX) == 2
    assert sorted(run.queued_at for run in definition.runs.all()) == [SIX - timedelta(days=days) for days in (8, 7, 6)]
    assert (ReportFile.objects.count(), other.runs.count(), waiting in other.runs.all()) == (3, 2, True)


@pytest.mark.parametrize("recipients", ["no address", "a@example.com\nb@example", "a@example.com\nA@example.com", "a@b.example\0"])  # fmt: skip
def test_recipients_are_addresses_each_once(recipients: str) -> None:
    with pytest.raises(ValidationError) as error:
        ReportDefinition(name="x", report="usage", recipients=recipients).clean()
    assert list(error.value.message_dict) == ["recipients"]


@pytest.mark.parametrize("name", ["a\nBcc: b@example.com", "a\rb", "a\0b", "a\u2028b", "a\x1b[1m"])
def test_a_name_is_one_line(name: str) -> None:
    with pytest.raises(ValidationError) as error:
        ReportDefinition(name=name, report="usage").clean_fields()
    assert "name" in error.value.message_dict


def test_no_header_can_be_put_in_by_a_name_even_past_the_form(database: str) -> None:
    definition = ReportDefinition(name="a\nBcc: victim@example.com", report="usage")
    run = ReportRun(pk=1, definition=definition, queued_at=SIX, first_day=SIX.date(), last_day=SIX.date())
    with pytest.raises(BadHeaderError):
        mailing.message_for(run, [], "a@example.com").message()


def mailed(recipients: str, **said: Any) -> ReportRun:
    """A run that is made, its mail due."""
    a_definition(recipients=recipients, **said)
    (run_id,) = scheduled.due(now=SIX).make
    assert scheduled.make(run_id)
    return ReportRun.objects.get(pk=run_id)


def state_of(run: ReportRun) -> tuple[str, list[str], list[str], str]:
    run.refresh_from_db()
    return run.state, run.mail_to, run.mailed_to, run.error


def test_everybody_gets_a_mail_of_their_own_with_the_files(database: str, mail_server: MailServer) -> None:
    run = mailed("a@example.com\nb@example.com")
    mailing.mail(run.pk, now=timezone.now())
    assert state_of(run) == ("done", [], ["a@example.com", "b@example.com"], "")
    assert [(mail.to, mail.subject, mail.files) for mail in mail_server.mails] == [
        ([address], "Usage: 2026-03-03", {file.name: bytes(file.data) for file in run.files.all()})
        for address in ("a@example.com", "b@example.com")
    ]
    assert f"/admin/reports/reportrun/{run.pk}/change/" in mail_server.mails[0].text


def test_files_that_are_too_large_for_a_mail_are_linked(database: str, mail_server: MailServer, chosen: Any) -> None:
    chosen(report_mail_bytes=100, public_url="https://pilotage.example.com")
    run = mailed("a@example.com")
    mailing.mail(run.pk, now=timezone.now())
    (mail,) = mail_server.mails
    assert mail.files == {}
    assert f"https://pilotage.example.com/admin/reports/reportrun/{run.pk}/change/" in mail.text


def test_only_who_has_not_got_it_gets_it_again_until_the_tries_are_over(
    database: str, mail_server: MailServer, chosen: Any, caplog: pytest.LogCaptureFixture
) -> None:
    chosen(report_mail_tries=3)
    mail_server.refuse = {"later@example.com": "450 full", "never@example.com": "550 unknown"}
    run = mailed("a@example.com\nlater@example.com\nnever@example.com")
    now = timezone.now()
    waits = []
    for _ in range(3):
        mailing.mail(run.pk, now=now)
        mailing.mail(run.pk, now=now)  # another worker: nothing is due
        state_of(run)
        if run.mail_next_at is not None:
            waits.append(run.mail_next_at - now)
            now = run.mail_next_at
    assert waits == [timedelta(minutes=1), timedelta(minutes=5)]
    assert mail_server.asked == [
        "a@example.com", "later@example.com", "never@example.com", "later@example.com", "later@example.com"
    ]  # fmt: skip
    assert state_of(run) == (
        "mail_failed",
        ["later@example.com"],
        ["a@example.com"],
        "never@example.com: 550 unknown\nlater@example.com: 450 full",
    )
    said = [line.getMessage() for line in caplog.records if line.name == "pilotage.reports"]
    assert said == ["the report Usage, 2026-03-04 06:05 was not mailed to everybody"]
    mail_server.refuse = {}
    mailing.mail_again(run, now=now)
    mailing.mail(run.pk, now=now)
    state, left, got, error = state_of(run)
    assert (state, left, set(got), error) == (
        "done",
        [],
        {"a@example.com", "later@example.com", "never@example.com"},
        "",
    )


def test_a_mail_server_that_is_away_is_tried_again_with_the_same_message(
    database: str, mail_server: MailServer
) -> None:
    run = mailed("a@example.com")
    now = timezone.now()
    mail_server.stop()
    mailing.mail(run.pk, now=now)
    state, left, got, error = state_of(run)
    assert (state, left, got) == ("mailing", ["a@example.com"], [])
    assert "Connection" in error
    assert scheduled.due(now=now).mail == []
    assert scheduled.due(now=now + timedelta(minutes=1)).mail == [run.pk]
    mail_server.start()
    mailing.mail(run.pk, now=now + timedelta(minutes=1))
    assert state_of(run) == ("done", [], ["a@example.com"], "")
    message = mailing.message_for(run, [], "a@example.com").message()
    assert [mail.id for mail in mail_server.mails] == [message["Message-ID"]]


def test_a_worker_killed_while_it_mails_is_followed_by_another(database: str, mail_server: MailServer) -> None:
    run = mailed("a@example.com")
    now = timezone.now()
    ReportRun.objects.update(mail_next_at=now + timedelta(seconds=300), mail_tries=1)
    mailing.mail(run.pk, now=now)
    assert mail_server.mails == []
    mailing.mail(run.pk, now=now + timedelta(seconds=300))
    assert state_of(run) == ("done", [], ["a@example.com"], "")
