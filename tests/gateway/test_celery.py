"""What Celery is told: brokers, formats, limits, the schedule. Real workers: `tests/faults/test_workers.py`."""

import dataclasses
import multiprocessing
import ssl
import time
from pathlib import Path
from typing import Any

import pytest
from billiard import pool as billiard_pool
from celery import signals
from django.conf import settings
from kombu import Connection

from gateway import celery
from gateway.celery import app, schedule
from gateway.settings import broker_settings


def broker(**changes: Any) -> dict[str, Any]:
    return broker_settings(dataclasses.replace(settings.PILOTAGE, **changes))


def test_without_redis_tasks_wait_in_the_data_directory() -> None:
    assert broker(data_dir=Path("/srv/data"), redis_url=None, broker_max_messages=50) == {
        "url": "files://localhost",
        "options": {"folder": "/srv/data/broker", "max_waiting": 50, "polling_interval": 0.5},
        "ssl": None,
    }


def test_with_redis_a_task_goes_to_another_worker_after_more_than_twice_its_time_limit() -> None:
    assert broker(redis_url="redis://:p@host:6380/2", task_hard_seconds=300) == {
        "url": "redis://:p@host:6380/2",
        "options": {
            "visibility_timeout": 605,
            "unacked_restore_throttle": 1,
            "global_keyprefix": "pilotage:",
            "socket_connect_timeout": 5,
            "socket_timeout": 15,
            "socket_keepalive": True,
            "health_check_interval": 25,
        },
        "ssl": None,
    }


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://user:p%40ss@host:6380/2", {"host": "host", "port": 6380, "db": 2, "username": "user", "password": "p@ss"}),
        ("rediss://:p@host", {"host": "host", "port": 6379, "db": 0, "password": "p", "ssl_cert_reqs": ssl.CERT_REQUIRED}),
        ("unix:///run/redis.sock", {"path": "/run/redis.sock", "db": 0}),
        ("unix://user:p@/run/redis.sock?db=3", {"path": "/run/redis.sock", "db": 3, "username": "user", "password": "p"}),
    ],
)  # fmt: skip
def test_every_form_of_the_redis_url_reaches_the_client(url: str, expected: dict[str, Any]) -> None:
    told = broker(redis_url=url)
    connection = Connection(told["url"], ssl=told["ssl"] or False, transport_options=told["options"])
    transport: Any = connection.transport
    channel = object.__new__(transport.Channel)
    channel.connection = transport
    parameters = channel._connparams()
    assert {name: parameters.get(name) for name in expected} == expected


def test_certificates_of_redis_are_verified() -> None:
    assert broker(redis_url="rediss://host")["ssl"] == {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_check_hostname": True}


def test_only_json_is_taken_and_nothing_is_commanded_or_kept_through_the_broker() -> None:
    told = {
        "accept_content": ["json"],
        "task_serializer": "json",
        "result_serializer": "json",
        "event_serializer": "json",
        "result_backend": None,
        "task_ignore_result": True,
        "task_acks_late": True,
        "task_reject_on_worker_lost": False,
        "worker_prefetch_multiplier": 1,
        "worker_concurrency": 1,
        "worker_pool": "prefork",
        "worker_enable_remote_control": False,
        "worker_send_task_events": False,
        "task_soft_time_limit": 240,
        "task_time_limit": 300,
        "timezone": "UTC",
    }
    assert {name: app.conf[name] for name in told} == told


def test_the_schedule_names_tasks_that_exist_and_drops_those_that_waited_for_longer_than_their_turn() -> None:
    app.loader.import_default_modules()
    assert {name: (entry["task"], entry["options"]["expires"]) for name, entry in schedule().items()} == {
        "rollup": ("reports.roll_pending", 120),
        "retention": ("reports.retain", 43_200),
        "scheduled reports": ("reports.make_due", 60),
        "broker": ("gateway.sweep_broker", 3600),
    }
    assert {entry["task"] for entry in schedule().values()} <= set(app.tasks)


def test_retention_runs_at_its_time_of_the_installation_s_day() -> None:
    found = schedule()["retention"]["schedule"]
    assert (found.hour, found.minute, found.day_of_week) == ({3}, {30}, set(range(7)))


def test_a_process_whose_last_result_nobody_takes_note_of_does_not_wait_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when its worker was told to end in the moment in which the task did."""
    monkeypatch.setattr(billiard_pool, "GUARANTEE_MESSAGE_CONSUMPTION_RETRY_LIMIT", 300)
    monkeypatch.setattr(celery, "LAST_RESULT_SECONDS", 0.5)
    assert celery._bound_the_last_wait in [receiver() for _, receiver in signals.worker_process_init.receivers]
    celery._bound_the_last_wait()
    process: Any = object.__new__(billiard_pool.Worker)
    process.on_ready_counter = multiprocessing.Value("i", 0)
    began = time.monotonic()
    assert process._ensure_messages_consumed(completed=1) is False
    assert 0.5 <= time.monotonic() - began < 5
    process.on_ready_counter.value = 1
    assert process._ensure_messages_consumed(completed=1) is True
