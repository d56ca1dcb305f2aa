"""`reports/` and their runs: for staff with the rights, and one can be made now."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from reports import scheduled
from reports.scheduled_models import ReportDefinition, ReportRun
from tests.reports.api.ground import Ground

SIX = datetime(2026, 3, 4, 6, 5, tzinfo=UTC)


@pytest.fixture
def definition(ground: Ground) -> ReportDefinition:
    made = ReportDefinition(name="Usage", report="usage", group="chat", recipients="a@example.com", html=False)
    scheduled.plan_next(made, now=SIX - timedelta(hours=1))
    made.save()
    return made


def with_rights(*codenames: str, **how: Any) -> Client:
    user = User.objects.create_user(f"user-{'-'.join(codenames)}", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    client = Client(**how)
    client.force_login(user)
    return client


def test_reports_are_told_with_how_the_last_run_went(ground: Ground, definition: ReportDefinition) -> None:
    run = definition.runs.create(due_at=SIX, queued_at=SIX, finished_at=SIX + timedelta(seconds=2), state="done")
    client = with_rights("view_dailyrollup", "view_reportdefinition")
    assert client.get("/api/reports/").json() == {
        "next": None,
        "results": [
            {
                "id": definition.pk,
                "name": "Usage",
                "active": True,
                "report": "usage",
                "period": "yesterday",
                "zone": "UTC",
                "filters": {"group": "chat"},
                "schedule": "every day at 06:05",
                "next_run_at": "2026-03-04T06:05:00Z",
                "formats": ["csv"],
                "recipients": ["a@example.com"],
                "last_run": {"id": run.pk, "state": "done", "finished_at": "2026-03-04T06:05:02Z"},
            }
        ],
    }


def test_runs_come_newest_first_in_pages_with_their_files(ground: Ground, definition: ReportDefinition) -> None:
    for days in range(5):
        at = SIX + timedelta(days=days)
        definition.runs.create(due_at=at, queued_at=at, state="failed" if days == 1 else "queued")
    newest = ReportRun.objects.first()
    assert newest is not None
    scheduled.make(newest.pk)
    path = f"/api/reports/{definition.pk}/runs/?page_size=2"
    pages = []
    while path:
        page = ground.client("admin").get(path).json()
        pages.append([row["due_at"] for row in page["results"]])
        path = page["next"]
    assert pages == [
        ["2026-03-08T06:05:00Z", "2026-03-07T06:05:00Z"],
        ["2026-03-06T06:05:00Z", "2026-03-05T06:05:00Z"],
        ["2026-03-04T06:05:00Z"],
    ]
    first = ground.get("admin", f"reports/{definition.pk}/runs/").json()["results"][0]
    (file,) = first.pop("files")
    assert (file["name"], file["url"]) == (
        "pilotage-usage-2026-03-07_2026-03-07.csv",
        f"/admin/reports/reportrun/{newest.pk}/file/csv/",
    )
    assert (first["state"], first["first_day"], first["last_day"]) == ("mailing", "2026-03-07", "2026-03-07")
    failed = ground.get("admin", f"reports/{definition.pk}/runs/", state="failed").json()["results"]
    assert [row["due_at"] for row in failed] == ["2026-03-05T06:05:00Z"]


def test_who_may_change_reports_can_have_one_made_now(ground: Ground, definition: ReportDefinition) -> None:
    client = with_rights("view_dailyrollup", "change_reportdefinition")
    path = f"/api/reports/{definition.pk}/runs/"
    first, again = client.post(path), client.post(path)
    assert (first.status_code, again.status_code, first.json()["id"]) == (202, 202, again.json()["id"])
    run = ReportRun.objects.get()
    assert (run.state, run.due_at, run.requested_by) == (
        "queued",
        None,
        "user-view_dailyrollup-change_reportdefinition",
    )
    assert client.get(path).status_code == 403


@pytest.mark.parametrize(
    ("rights", "expected"),
    [
        (("view_dailyrollup",), (403, 403, 403)),
        (("view_reportdefinition", "view_reportrun", "change_reportdefinition"), (403, 403, 403)),
        (("view_dailyrollup", "view_reportdefinition"), (200, 403, 403)),
        (("view_dailyrollup", "view_reportrun"), (403, 200, 403)),
        (("view_dailyrollup", "view_reportrun", "view_reportdefinition"), (200, 200, 403)),
    ],
)
def test_rights_are_needed_for_each_and_to_see_sums_for_all(
    ground: Ground, definition: ReportDefinition, rights: tuple[str, ...], expected: tuple[int, ...]
) -> None:
    client = with_rights(*rights)
    runs = f"/api/reports/{definition.pk}/runs/"
    answers = [client.get("/api/reports/"), client.get(runs), client.post(runs)]
    assert tuple(answer.status_code for answer in answers) == expected


def test_runs_of_a_report_that_one_may_not_see_are_not_told(ground: Ground, definition: ReportDefinition) -> None:
    ReportDefinition.objects.update(report="odd")
    rights = ("view_dailyrollup", "view_reportrun", "change_reportdefinition")
    runs = f"/api/reports/{definition.pk}/runs/"
    blind, seeing = with_rights(*rights), with_rights(*rights, "view_exchange")
    assert [blind.get(runs).status_code, blind.post(runs).status_code] == [403, 403]
    assert [seeing.get(runs).status_code, seeing.post(runs).status_code] == [200, 202]


def test_callers_and_other_sites_order_nothing(ground: Ground, definition: ReportDefinition) -> None:
    path = f"/api/reports/{definition.pk}/runs/"
    forged = with_rights("view_dailyrollup", "change_reportdefinition", enforce_csrf_checks=True)
    answers = [ground.client(who).post(path).status_code for who in ("team", "open", "nobody", "revoked")]
    assert (answers, forged.post(path).status_code) == ([403, 403, 401, 401], 403)
    assert ReportRun.objects.count() == 0


def test_a_report_that_never_was_is_not_found(ground: Ground) -> None:
    client = ground.client("admin")
    answers = [
        client.get("/api/reports/999/runs/"),
        client.post("/api/reports/999/runs/"),
        client.get("/api/reports/x/runs/"),
    ]
    assert [answer.status_code for answer in answers] == [404, 404, 404]
