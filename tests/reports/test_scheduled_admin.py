"""The admin's pages of scheduled reports: ordering, running by hand, what came of it, and who may."""

from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from reports import scheduled
from reports.scheduled_models import ReportDefinition, ReportFile, ReportRun

pytestmark = pytest.mark.django_db

SIX = datetime(2026, 3, 4, 6, 5, tzinfo=UTC)
LIST = "/admin/reports/reportdefinition/"
RUNS = "/admin/reports/reportrun/"
FILLED = {
    "name": "Usage", "active": "on", "report": "usage", "period": "yesterday", "every": "week", "hour": "6",
    "minute": "5", "weekday": "2", "day": "1", "zone": "Europe/Oslo", "csv": "on", "recipients": "a@example.com",
}  # fmt: skip


def staff(*codenames: str) -> Client:
    user = User.objects.create_user(f"user {len(User.objects.all())}", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def admin() -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("anna", password="x"))
    return client


def a_run(report: str = "usage") -> ReportRun:
    """Done, with a file."""
    definition = ReportDefinition.objects.create(name=report, report=report)
    run = definition.runs.create(due_at=SIX, queued_at=SIX, state="done", first_day=SIX.date(), last_day=SIX.date())
    ReportFile.objects.create(run=run, format="html", name="pilotage-x.html", size=9, data=b"<b>hi</b>")
    return run


def test_a_report_that_is_ordered_has_a_next_time_in_its_zone(admin: Client) -> None:
    assert admin.post(f"{LIST}add/", FILLED).status_code == 302
    definition = ReportDefinition.objects.get()
    assert definition.next_run_at is not None
    shown = definition.next_run_at.astimezone(definition.schedule.zone)
    assert (shown.weekday(), shown.hour, shown.minute, definition.created_by) == (2, 6, 5, "anna")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"recipients": "a@example.com\nnobody"}, "“nobody” is no mail address."),
        ({"zone": "Mars/Olympus"}, "“Mars/Olympus” is no time zone"),
        ({"minute": "60"}, "less than or equal to 59"),
        ({"csv": ""}, "Choose at least one format."),
        ({"report": "weather"}, "Select a valid choice."),
    ],
)
def test_what_cannot_be_made_is_refused_with_what_was_filled_in(
    admin: Client, change: dict[str, str], message: str
) -> None:
    answer = admin.post(f"{LIST}add/", FILLED | change)
    assert (answer.status_code, ReportDefinition.objects.count()) == (200, 0)
    assert message in answer.content.decode()


def test_only_another_schedule_changes_the_next_time(admin: Client) -> None:
    admin.post(f"{LIST}add/", FILLED)
    definition = ReportDefinition.objects.get()
    due = SIX - timedelta(days=1)
    ReportDefinition.objects.update(next_run_at=due)
    admin.post(f"{LIST}{definition.pk}/change/", FILLED | {"name": "Other"})
    definition.refresh_from_db()
    assert (definition.name, definition.next_run_at) == ("Other", due)
    admin.post(f"{LIST}{definition.pk}/change/", FILLED | {"hour": "7"})
    definition.refresh_from_db()
    assert definition.next_run_at is not None
    assert definition.next_run_at > datetime.now(UTC)


def test_the_list_and_the_page_show_how_the_last_run_went(admin: Client) -> None:
    run = a_run()
    ReportRun.objects.update(state="failed", error="no <b>disk</b>")
    assert "failed" in admin.get(LIST).content.decode()
    for path in (f"{LIST}{run.definition_id}/change/", f"{RUNS}{run.pk}/change/", RUNS):
        page = admin.get(path).content.decode()
        assert "no &lt;b&gt;disk&lt;/b&gt;" in page
        assert f"{RUNS}{run.pk}/file/html/" in page


def test_files_are_saved_and_never_shown_under_our_name(admin: Client) -> None:
    run = a_run()
    answer = admin.get(f"{RUNS}{run.pk}/file/html/")
    assert (answer.content, answer.headers["Content-Disposition"]) == (
        b"<b>hi</b>",
        'attachment; filename="pilotage-x.html"',
    )
    assert answer.headers["Cache-Control"].startswith("private, no-store")
    assert admin.get(f"{RUNS}{run.pk}/file/csv/").status_code == 404


def test_the_button_queues_one_run_and_takes_a_post(admin: Client) -> None:
    run = a_run()
    path = f"{LIST}{run.definition_id}/run/"
    assert admin.get(path).status_code == 405
    for _ in range(2):
        assert admin.post(path).status_code == 302
    assert list(ReportRun.objects.filter(state="queued").values_list("due_at", "requested_by")) == [(None, "anna")]


def test_the_button_is_for_who_may_change_the_report() -> None:
    run = a_run()
    path = f"{LIST}{run.definition_id}/run/"
    viewer = staff("view_dailyrollup", "view_reportdefinition")
    assert "Run now" not in viewer.get(f"{LIST}{run.definition_id}/change/").content.decode()
    assert viewer.post(path).status_code == 403
    assert staff("change_reportdefinition").post(path).status_code == 403
    assert staff("view_dailyrollup", "change_reportdefinition").post(path).status_code == 302


@pytest.mark.parametrize(
    ("report", "rights", "status"),
    [
        ("usage", ("view_reportrun", "view_dailyrollup"), 200),
        ("usage", ("view_reportrun",), 403),
        ("usage", ("view_dailyrollup",), 403),
        ("odd", ("view_reportrun", "view_dailyrollup"), 403),
        ("odd", ("view_reportrun", "view_dailyrollup", "view_exchange"), 200),
    ],
)
def test_a_file_is_for_who_may_see_runs_and_the_report_itself(
    report: str, rights: tuple[str, ...], status: int
) -> None:
    run = a_run(report)
    assert staff(*rights).get(f"{RUNS}{run.pk}/file/html/").status_code == status


def test_nobody_else_gets_anything() -> None:
    run = a_run()
    stranger = Client()
    stranger.force_login(User.objects.create_user("visitor"))
    answers = [client.get(f"{RUNS}{run.pk}/file/html/") for client in (Client(), stranger)]
    assert [(answer.status_code, answer["location"].split("?")[0]) for answer in answers] == [
        (302, "/admin/login/")
    ] * 2


def test_nobody_orders_a_report_whose_page_is_closed_to_them() -> None:
    client = staff("view_dailyrollup", "add_reportdefinition", "view_reportdefinition")
    answer = client.post(f"{LIST}add/", FILLED | {"report": "odd"})
    assert (answer.status_code, ReportDefinition.objects.count()) == (200, 0)


def test_what_was_not_mailed_can_be_mailed_again(admin: Client) -> None:
    run = a_run()
    ReportRun.objects.update(state="mail_failed", mail_refused={"a@example.com": "550 unknown"}, error="x")
    action = {"action": "mail_again", "_selected_action": [run.pk]}
    assert admin.post(RUNS, action).status_code == 302
    run.refresh_from_db()
    assert (run.state, run.mail_to, run.error) == ("mailing", ["a@example.com"], "")
    assert scheduled.due(now=datetime.now(UTC)).mail == [run.pk]
