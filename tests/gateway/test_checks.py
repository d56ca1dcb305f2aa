"""What `manage.py check` says of an installation."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.checks import CheckMessage

from gateway import checks

Installation = Callable[..., None]


@pytest.fixture
def installation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Installation:
    """Sets process settings of this test's own, in a data directory of its own."""

    def set_(**changes: Any) -> None:
        monkeypatch.setattr(
            settings, "PILOTAGE", dataclasses.replace(settings.PILOTAGE, **{"data_dir": tmp_path, **changes})
        )

    set_()
    return set_


def said(messages: list[CheckMessage]) -> list[tuple[str | None, str, str | None]]:
    return [(message.id, message.msg, message.hint) for message in messages]


def test_a_sound_installation_gives_nothing_to_say(installation: Installation, tmp_path: Path) -> None:
    (tmp_path / "secret_key").touch(0o600)
    for check in (checks.data_directory, checks.debug_mode, checks.unknown_variables, checks.plain_http):
        assert check(None) == []


def test_a_data_directory_that_is_missing_is_an_error(installation: Installation, tmp_path: Path) -> None:
    installation(data_dir=tmp_path / "missing")
    assert said(checks.data_directory(None)) == [
        (
            "pilotage.E001",
            f"The data directory {tmp_path}/missing cannot be written.",
            "Give it to the user that runs Pilotage, or set PILOTAGE_DATA_DIR to another.",
        )
    ]


def test_a_secret_that_others_can_read_is_an_error(installation: Installation, tmp_path: Path) -> None:
    for name, mode in (("secret_key", 0o640), ("token_pepper", 0o604)):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(mode)
    assert said(checks.data_directory(None)) == [
        ("pilotage.E002", f"{tmp_path}/{name} can be read by other users.", f"chmod 600 {tmp_path}/{name}")
        for name in ("secret_key", "token_pepper")
    ]


def test_debug_mode_is_a_warning(installation: Installation) -> None:
    installation(debug=True)
    assert [message.id for message in checks.debug_mode(None)] == ["pilotage.W001"]


def test_a_misspelt_variable_is_a_warning_with_the_nearest_right_one(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PILOTAGE_MAX_INFLIGHT", "5")
    monkeypatch.setenv("PILOTAGE_REDIS_URL", "5")
    monkeypatch.setenv("PILOTAGE_XYZZY", "5")
    assert said(checks.unknown_variables(None)) == [
        (
            "pilotage.W002",
            "PILOTAGE_MAX_INFLIGHT is not a setting of Pilotage.",
            "Did you mean PILOTAGE_MAX_IN_FLIGHT?",
        ),
        ("pilotage.W002", "PILOTAGE_REDIS_URL is not a setting of Pilotage.", "Did you mean REDIS_URL?"),
        ("pilotage.W002", "PILOTAGE_XYZZY is not a setting of Pilotage.", "docs/settings.md lists every setting."),
    ]


@pytest.mark.parametrize(("secure", "expected"), [(False, ["pilotage.W003"]), (True, [])])
def test_an_admin_under_other_names_without_secure_cookies_is_a_warning(
    installation: Installation, secure: bool, expected: list[str]
) -> None:
    installation(allowed_hosts=("localhost", "pilotage.example"), secure_cookies=secure)
    assert [message.id for message in checks.plain_http(None)] == expected


def test_metrics_that_other_machines_can_read_need_a_token(installation: Installation) -> None:
    installation(metrics_port=9464)
    assert checks.open_metrics(None) == []
    installation(metrics_port=9464, metrics_host="0.0.0.0")
    assert said(checks.open_metrics(None)) == [
        (
            "pilotage.W004",
            "The metrics at 0.0.0.0:9464 are open to everybody who can reach it.",
            "Set PILOTAGE_METRICS_TOKEN, or let a firewall decide who can.",
        )
    ]
    installation(metrics_port=9464, metrics_host="0.0.0.0", metrics_token="x" * 32)
    assert checks.open_metrics(None) == []


def test_a_broker_folder_that_others_can_reach_is_an_error(installation: Installation, tmp_path: Path) -> None:
    assert checks.broker_folder(None) == []
    (tmp_path / "broker").mkdir(mode=0o755)
    assert said(checks.broker_folder(None)) == [
        (
            "pilotage.E003",
            f"Other users can reach the tasks in {tmp_path}/broker.",
            f"chmod 700 {tmp_path}/broker",
        )
    ]
    installation(redis_url="redis://host")
    assert checks.broker_folder(None) == []
    installation()
    (tmp_path / "broker").chmod(0o700)
    assert checks.broker_folder(None) == []


def test_a_task_has_time_to_wait_for_the_database(installation: Installation) -> None:
    installation(task_soft_seconds=21, database_wait_seconds=20.0)
    assert checks.time_limits_of_tasks(None) == []
    installation(task_soft_seconds=20, database_wait_seconds=20.0)
    assert said(checks.time_limits_of_tasks(None)) == [
        (
            "pilotage.W005",
            "A task that waits for the database is stopped before the wait is over.",
            "PILOTAGE_TASK_SOFT_SECONDS must be more than PILOTAGE_DATABASE_WAIT_SECONDS.",
        )
    ]
