"""System checks: what an installation gets wrong, said by `manage.py check` and before serving."""

import difflib
import os
import stat
from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register

from gateway.env import SETTINGS

PREFIX = "PILOTAGE_"
SECRET_FILES = ("secret_key", "token_pepper")


@register()
def data_directory(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:
    """pilotage.E001: the data directory cannot be written. pilotage.E002: others can read a secret in it."""
    folder = settings.PILOTAGE.data_dir
    if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        return [
            Error(
                f"The data directory {folder} cannot be written.",
                hint="Give it to the user that runs Pilotage, or set PILOTAGE_DATA_DIR to another.",
                id="pilotage.E001",
            )
        ]
    open_files = [
        path
        for path in (folder / name for name in SECRET_FILES)
        if path.exists() and stat.S_IMODE(path.stat().st_mode) & 0o077
    ]
    return [
        Error(f"{path} can be read by other users.", hint=f"chmod 600 {path}", id="pilotage.E002")
        for path in open_files
    ]


@register()
def debug_mode(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:
    """pilotage.W001: tracebacks are shown to whoever can reach the admin."""
    if not settings.PILOTAGE.debug:
        return []
    return [
        Warning(
            "PILOTAGE_DEBUG is on: pages show tracebacks and settings.",
            hint="Turn it off wherever others can reach this server.",
            id="pilotage.W001",
        )
    ]


@register()
def unknown_variables(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:
    """pilotage.W002: a variable with our prefix that nothing reads, most likely a slip."""
    known = {setting.name.removeprefix(PREFIX): setting.name for setting in SETTINGS}
    messages: list[CheckMessage] = []
    for name in sorted(os.environ):
        if name.startswith(PREFIX) and name not in known.values():
            near = difflib.get_close_matches(name.removeprefix(PREFIX), known, n=1)
            hint = f"Did you mean {known[near[0]]}?" if near else "docs/settings.md lists every setting."
            messages.append(Warning(f"{name} is not a setting of Pilotage.", hint=hint, id="pilotage.W002"))
    return messages


@register()
def open_metrics(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:
    """pilotage.W004: whoever reaches this machine reads the metrics."""
    process = settings.PILOTAGE
    if (
        process.metrics_port is None
        or process.metrics_token
        or process.metrics_host in ("127.0.0.1", "::1", "localhost")
    ):
        return []
    return [
        Warning(
            f"The metrics at {process.metrics_host}:{process.metrics_port} are open to everybody who can reach it.",
            hint="Set PILOTAGE_METRICS_TOKEN, or let a firewall decide who can.",
            id="pilotage.W004",
        )
    ]


@register()
def broker_folder(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:
    """pilotage.E003: the broker's folder cannot be used, or others can put tasks into it."""
    folder = settings.PILOTAGE.data_dir / "broker"
    if settings.PILOTAGE.redis_url is not None or not folder.exists():
        return []
    if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        return [
            Error(
                f"The broker's folder {folder} cannot be written.",
                hint="Give it to the user that runs Pilotage, or set REDIS_URL.",
                id="pilotage.E003",
            )
        ]
    if stat.S_IMODE(folder.stat().st_mode) & 0o077:
        return [Error(f"Other users can reach the tasks in {folder}.", hint=f"chmod 700 {folder}", id="pilotage.E003")]
    return []


@register()
def time_limits_of_tasks(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:
    """pilotage.W005: tasks have no time for what they wait for."""
    process = settings.PILOTAGE
    if process.task_soft_seconds > process.database_wait_seconds:
        return []
    return [
        Warning(
            "A task that waits for the database is stopped before the wait is over.",
            hint="PILOTAGE_TASK_SOFT_SECONDS must be more than PILOTAGE_DATABASE_WAIT_SECONDS.",
            id="pilotage.W005",
        )
    ]


@register()
def plain_http(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:
    """pilotage.W003: the admin is open to other names than this machine's, yet its cookies go over plain HTTP."""
    local = {"localhost", "127.0.0.1", "[::1]"}
    elsewhere = [host for host in settings.PILOTAGE.allowed_hosts if host not in local]
    if not elsewhere or settings.PILOTAGE.secure_cookies:
        return []
    return [
        Warning(
            f"The admin answers as {', '.join(elsewhere)}, and its cookies may travel unencrypted.",
            hint="Serve it under HTTPS and set PILOTAGE_SECURE_COOKIES=1.",
            id="pilotage.W003",
        )
    ]
