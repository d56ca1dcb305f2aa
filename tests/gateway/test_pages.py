"""The pages that Django serves, and the files they need."""

import pytest
from django.contrib.staticfiles import finders
from django.core.management import call_command
from django.test import Client


def test_the_front_page_leads_to_the_admin(client: Client) -> None:
    response = client.get("/")
    assert (response.status_code, response["Location"]) == (302, "/admin/")


def test_the_admin_asks_who_one_is_under_the_security_headers(client: Client) -> None:
    response = client.get("/admin/")
    assert (response.status_code, response["Location"]) == (302, "/admin/login/?next=/admin/")
    expected = {
        "X-Frame-Options": "DENY",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "same-origin",
        "Cross-Origin-Opener-Policy": "same-origin",
    }
    assert {name: response[name] for name in expected} == expected


def test_another_host_name_is_refused(client: Client) -> None:
    assert client.get("/", headers={"Host": "evil.example"}).status_code == 400


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("unfold/css/styles.css", "text/css"),
        ("admin/js/cancel.js", "text/javascript"),
        ("unfold/js/app.js", "text/javascript"),
    ],
)
def test_the_admins_files_are_served_without_debug(client: Client, name: str, kind: str) -> None:
    response = client.get(f"/static/{name}")
    path = finders.find(name)
    assert isinstance(path, str)
    with open(path, "rb") as file:
        assert (response.status_code, response["Content-Type"], response.content) == (200, kind, file.read())
    assert response["Cache-Control"] == "public, max-age=3600"
    again = client.get(f"/static/{name}", headers={"If-Modified-Since": response["Last-Modified"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize(
    "name",
    [
        "../settings.py",
        "..%2fsettings.py",
        "admin/../../../../etc/passwd",
        "/etc/passwd",
        "%2fetc/passwd",
        "admin%00",
        "admin/css",
        "admin/css/",
        "missing.css",
        "..",
    ],
)
def test_nothing_else_is(client: Client, name: str) -> None:
    assert client.get(f"/static/{name}").status_code == 404


def test_files_are_only_read(client: Client) -> None:
    assert client.post("/static/admin/js/cancel.js").status_code == 405


@pytest.mark.django_db
def test_the_migrations_say_all_that_the_models_do() -> None:
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)
