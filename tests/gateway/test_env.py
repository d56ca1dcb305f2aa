"""The process settings."""

import dataclasses
import os
import re
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gateway import env
from gateway.env import MIB, BadEnvironment, PostgresServer, SqliteFile, derived_key, kept_secret, read

ROOT = Path(__file__).parent.parent.parent


def test_every_setting_has_a_default_that_is_allowed_and_is_used_when_nothing_is_set() -> None:
    assert read({}) == env.Environment(
        data_dir=Path.cwd() / "var",
        database=None,
        redis_url=None,
        secret_key=None,
        token_pepper=None,
        allowed_hosts=("localhost", "127.0.0.1", "[::1]"),
        csrf_trusted_origins=(),
        secure_cookies=False,
        trust_forwarded_proto=False,
        hsts_seconds=0,
        session_seconds=43_200,
        time_zone="UTC",
        log_level="INFO",
        debug=False,
        database_wait_seconds=20.0,
        poll_seconds=0.5,
        max_request_bytes=32 * MIB,
        max_in_flight=1024,
        max_queued=512,
        queue_seconds=5.0,
        max_body_bytes_held=512 * MIB,
        max_memory_bytes=0,
        head_seconds=10.0,
        min_body_bytes_per_second=1024,
        write_stall_seconds=60.0,
        drain_seconds=300.0,
        spool_file_bytes=64 * MIB,
        spool_max_bytes=1024 * MIB,
        ingest_batch_lines=2000,
        ingest_poll_seconds=0.5,
        ingest_aside_max_bytes=256 * MIB,
        max_candidates=32,
        metrics_host="127.0.0.1",
        metrics_port=None,
        metrics_token=None,
        metrics_max_names=200,
        traces_endpoint=None,
        traces_headers=None,
        traces_share=1.0,
        traces_max_waiting=10_000,
        traces_timeout_seconds=10.0,
        rollup_seconds=120,
        retention_at=(3, 30),
        rollup_today_seconds=900,
        rollup_memory_mb=64,
        keep_detail_days=30,
        keep_attempt_days=90,
        keep_exchange_days=90,
        keep_slot_days=400,
        keep_day_days=0,
        keep_damaged_days=30,
        retention_batch=1000,
        retention_pause_seconds=0.05,
        report_max_days=400,
        report_page_rows=50,
        report_search_rows=50_000,
        report_export_rows=100_000,
        report_file_bytes=10 * MIB,
        report_mail_bytes=5 * MIB,
        report_mail_tries=5,
        report_max_recipients=20,
        report_catch_up_hours=48,
        keep_report_days=90,
        keep_report_runs=200,
        email=None,
        email_password_file=None,
        email_from="Pilotage <pilotage@localhost>",
        email_timeout_seconds=20.0,
        public_url=None,
        live_max_watchers=50,
        live_answer_seconds=15.0,
        live_max_names=500,
        api_requests_per_minute=300,
        api_page_size=100,
        api_max_page_size=1000,
        api_query_seconds=10.0,
        task_soft_seconds=240,
        task_hard_seconds=300,
        broker_max_messages=10_000,
        broker_keep_days=7,
    )


def test_a_task_is_told_to_stop_before_it_is_killed() -> None:
    with pytest.raises(BadEnvironment) as error:
        read({"PILOTAGE_TASK_SOFT_SECONDS": "60", "PILOTAGE_TASK_HARD_SECONDS": "60"})
    assert error.value.problems == ["PILOTAGE_TASK_SOFT_SECONDS: must be less than PILOTAGE_TASK_HARD_SECONDS"]


@pytest.mark.parametrize("text", ["24:00", "3", "03:60", "3.30"])
def test_a_time_of_day_is_hours_and_minutes(text: str) -> None:
    with pytest.raises(BadEnvironment, match="expected a time of day, such as 03:30"):
        read({"PILOTAGE_RETENTION_AT": text})


def test_a_variable_that_is_empty_or_blank_counts_as_absent() -> None:
    assert read({setting.name: " " for setting in env.SETTINGS}) == read({})


def test_all_bad_values_are_reported_at_once_each_with_its_name_and_what_is_allowed() -> None:
    with pytest.raises(BadEnvironment) as error:
        read(
            {
                "PILOTAGE_DEBUG": "maybe",
                "PILOTAGE_MAX_IN_FLIGHT": "0",
                "PILOTAGE_POLL_SECONDS": "nan",
                "PILOTAGE_TIME_ZONE": "Mars/Olympus",
                "PILOTAGE_LOG_LEVEL": "LOUD",
                "UNRELATED": "x",
            }
        )
    assert error.value.problems == [
        "PILOTAGE_TIME_ZONE: 'Mars/Olympus' is not allowed; expected a name of the time zone database, such as Europe/Paris",
        "PILOTAGE_LOG_LEVEL: 'LOUD' is not allowed; expected one of DEBUG, INFO, WARNING, ERROR, CRITICAL",
        "PILOTAGE_DEBUG: 'maybe' is not allowed; expected 1 or 0 (also true, false, yes, no, on, off)",
        "PILOTAGE_POLL_SECONDS: 'nan' is not allowed; expected a number from 0.05 to 1.5 (seconds)",
        "PILOTAGE_MAX_IN_FLIGHT: '0' is not allowed; expected a whole number from 1 to 100000",
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PILOTAGE_SECRET_KEY", "canary-short"),
        ("PILOTAGE_TOKEN_PEPPER", "canary-short"),
        ("DATABASE_URL", "mysql://user:canary@host/name"),
        ("REDIS_URL", "http://:canary@host"),
        ("PILOTAGE_EMAIL_URL", "http://user:canary@host"),
    ],
)
def test_a_bad_value_that_may_hold_a_secret_is_not_shown(name: str, value: str) -> None:
    with pytest.raises(BadEnvironment) as error:
        read({name: value})
    assert "canary" not in str(error.value)
    assert name in str(error.value)


def test_secrets_do_not_show_in_what_was_read() -> None:
    held = read(
        {
            "PILOTAGE_SECRET_KEY": "canary" * 6,
            "PILOTAGE_TOKEN_PEPPER": "canary" * 6,
            "DATABASE_URL": "postgres://u:canary@h/n",
            "REDIS_URL": "redis://:canary@h",
        }
    )
    assert "canary" not in repr(held)
    assert "canary" not in repr(held.database)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("max_request_bytes", "4096", 4096),
        ("max_request_bytes", "1 MiB", MIB),
        ("max_request_bytes", "2KiB", 2048),
        ("spool_max_bytes", "2GiB", 2048 * MIB),
        ("debug", "1", True),
        ("debug", "ON", True),
        ("debug", "False", False),
        ("log_level", "debug", "DEBUG"),
        ("allowed_hosts", "a.example, .b.example", ("a.example", ".b.example")),
        ("allowed_hosts", "*", ("*",)),
        (
            "csrf_trusted_origins",
            "https://a.example,https://*.b.example:8443",
            ("https://a.example", "https://*.b.example:8443"),
        ),
        ("head_seconds", "2.5", 2.5),
        ("drain_seconds", "0", 0.0),
        ("time_zone", "Asia/Kathmandu", "Asia/Kathmandu"),
        ("data_dir", "/srv/pilotage", Path("/srv/pilotage")),
        ("data_dir", "here", Path.cwd() / "here"),
        ("retention_at", "4:05", (4, 5)),
        ("redis_url", "rediss://:p@host:6380/2", "rediss://:p@host:6380/2"),
        ("redis_url", "unix:///run/redis.sock", "unix:///run/redis.sock"),
    ],
)
def test_values_are_read(name: str, text: str, expected: object) -> None:
    variable = {row.name: row.metadata["setting"].name for row in dataclasses.fields(env.Environment)}[name]
    assert getattr(read({variable: text}), name) == expected


@pytest.mark.parametrize(
    ("variable", "texts"),
    [
        ("PILOTAGE_MAX_REQUEST_BYTES", ["0", "-1", "1.5MiB", "1MB", "2GiB", "٣٣٣٣", "1e6"]),
        ("PILOTAGE_MAX_IN_FLIGHT", ["-1", "1.0", "1e3", "100001", "1_000", "٣"]),
        ("PILOTAGE_HEAD_SECONDS", ["0", "inf", "-1", "1_0", "ten", "301"]),
        ("PILOTAGE_DEBUG", ["2", "y", "maybe"]),
        ("PILOTAGE_ALLOWED_HOSTS", ["https://a", "a:80", "a b", ",", "a,,b/c"]),
        ("PILOTAGE_CSRF_TRUSTED_ORIGINS", ["a.example", "https://a/", "ftp://a", "https://", "https://u@a"]),
        ("PILOTAGE_TIME_ZONE", ["CET7", "../etc/passwd", "Europe"]),
        (
            "REDIS_URL",
            ["redis://", "redis://h/x", "http://h", "redis://h/0#f", "redis://h:port", "unix://h/x", "redis://h o"],
        ),
        (
            "DATABASE_URL",
            [
                "sqlite://",
                "sqlite:///",
                "sqlite://host/x",
                "sqlite:///x?mode=ro",
                "sqlite:///:memory:",
                "sqlite:///dir/",
                "mysql://h/n",
                "postgres://h",
                "postgres://h/",
                "postgres://h/a/b",
                "postgres://h:99999/n",
                "postgres://h/n?sslmode=require&sslmode=disable",
                "postgres://h/n?options=-c%20log_statement%3Dall",
                "postgres://h/n?sslmode",
                "postgres://h/n#f",
                "postgres://h/n?host=/run",
                "postgres:///n?host=other",
                "h/n",
            ],
        ),
    ],
)
def test_what_is_not_allowed_is_refused(variable: str, texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(BadEnvironment, match=variable):
            print("accepted:", text, read({variable: text}))


def test_the_bodies_of_two_requests_must_fit_into_memory_at_least() -> None:
    with pytest.raises(BadEnvironment) as error:
        read({"PILOTAGE_MAX_REQUEST_BYTES": "1MiB", "PILOTAGE_MAX_BODY_BYTES_HELD": "2097151"})
    assert error.value.problems == ["PILOTAGE_MAX_BODY_BYTES_HELD: must be at least twice PILOTAGE_MAX_REQUEST_BYTES"]


def test_the_spool_must_hold_at_least_one_file() -> None:
    with pytest.raises(
        BadEnvironment, match="PILOTAGE_SPOOL_MAX_BYTES: must not be less than PILOTAGE_SPOOL_FILE_BYTES"
    ):
        read({"PILOTAGE_SPOOL_MAX_BYTES": "1MiB"})


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("sqlite:////srv/p.sqlite3", SqliteFile(path=Path("/srv/p.sqlite3"))),
        ("sqlite:///p%20q.sqlite3", SqliteFile(path=Path.cwd() / "p q.sqlite3")),
        (
            "postgres://us%40er:p%2Fw%3A@db.example:6432/na%20me?sslmode=verify-full&sslrootcert=/ca.pem",
            PostgresServer(
                host="db.example",
                port=6432,
                user="us@er",
                password="p/w:",
                name="na me",
                options={"sslmode": "verify-full", "sslrootcert": "/ca.pem"},
            ),
        ),
        ("postgresql://[::1]/n", PostgresServer(host="::1", port=None, user="", password="", name="n")),
        (
            "postgres://u@/n?host=/run/postgresql",
            PostgresServer(host="/run/postgresql", port=None, user="u", password="", name="n"),
        ),
    ],
)
def test_database_urls_are_read(url: str, expected: object) -> None:
    assert read({"DATABASE_URL": url}).database == expected


def test_a_secret_is_made_once_for_this_user_only(tmp_path: Path) -> None:
    path = tmp_path / "made" / "secret"
    first = kept_secret(path)
    assert re.fullmatch("[0-9a-f]{64}", first)
    assert (kept_secret(path), stat.S_IMODE(path.stat().st_mode), os.listdir(path.parent)) == (first, 0o600, ["secret"])
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_those_who_start_together_have_one_secret(tmp_path: Path) -> None:
    for round_ in range(20):
        path, barrier, got = tmp_path / str(round_), threading.Barrier(8), list[str]()

        def start(path: Path = path, barrier: threading.Barrier = barrier, got: list[str] = got) -> None:
            barrier.wait()
            got.append(kept_secret(path))

        threads = [threading.Thread(target=start) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(got), len(set(got))) == (8, 1)


def test_an_empty_secret_file_is_not_taken_for_a_secret(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("\n")
    with pytest.raises(ValueError, match="holds no secret"):
        kept_secret(tmp_path / "secret")


def test_keys_of_two_purposes_or_two_secrets_differ() -> None:
    keys = {derived_key(secret, purpose) for secret in ("a" * 32, "b" * 32) for purpose in ("django", "token-digest")}
    assert {len(key) for key in keys} == {32}
    assert len(keys) == 4


def start(**variables: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run(
        [sys.executable, "-c", "import gateway.settings"],
        env={**inherited, **variables},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


def test_a_bad_value_stops_the_start_with_its_name_and_no_traceback(tmp_path: Path) -> None:
    ended = start(PILOTAGE_DATA_DIR=str(tmp_path / "var"), PILOTAGE_MAX_IN_FLIGHT="many")
    assert (ended.returncode, ended.stderr, (tmp_path / "var").exists()) == (
        1,
        "Pilotage cannot start with these settings:\n"
        "  PILOTAGE_MAX_IN_FLIGHT: 'many' is not allowed; expected a whole number from 1 to 100000\n",
        False,
    )


def test_a_data_directory_that_cannot_be_made_stops_the_start_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ended = start(PILOTAGE_DATA_DIR=str(tmp_path / "file" / "var"))
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"Pilotage cannot start: PILOTAGE_DATA_DIR {tmp_path}/file/var cannot be used: ")
    assert ended.stderr.count("\n") == 1


def test_the_documentation_lists_every_setting_as_it_is() -> None:
    rows = re.findall(
        r"^\| `([A-Z_]+)` \| (.*?) \| (.*?) \| (.*) \|$", (ROOT / "docs/settings.md").read_text(), re.MULTILINE
    )
    assert rows == [
        (setting.name, f"`{setting.default}`" if setting.default else "none", setting.bounds, setting.meaning)
        for setting in env.SETTINGS
    ]
