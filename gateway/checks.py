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
