"""The live socket: who may watch and for how long, how many, and who has to go."""

import asyncio
import dataclasses
import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import ThreadSensitiveContext, sync_to_async
from channels.testing import WebsocketCommunicator
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.db import connections
from django.test import Client

from gateway.asgi import application
from reports import consumers
from reports.consumers import LOGGED_OUT, NOT_ALLOWED, TOO_MANY, TOO_SLOW
from tests.reports.rows import elsewhere
from tests.support.loops import run

pytestmark = pytest.mark.usefixtures("database")

PATH = "/admin/reports/live/socket"
OURS = {"origin": "http://localhost", "host": "localhost"}


@pytest.fixture(autouse=True)
def chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    def choose(**values: Any) -> None:
        monkeypatch.setattr(settings, "PILOTAGE", dataclasses.replace(settings.PILOTAGE, **values))

    choose(data_dir=tmp_path)
    monkeypatch.setattr(consumers, "CHECK_SECONDS", 0.2)
    return choose


async def in_a_thread_of_its_own(scope: Any, receive: Any, send: Any) -> None:
    """The application; in the thread that others use it would still have another test's database."""
    async with ThreadSensitiveContext():
        try:
            await application(scope, receive, send)
        finally:
            await sync_to_async(connections.close_all)()


def cookie(name: str = "seer", *, staff: bool = True, right: bool = True) -> str:
    user = User.objects.create_user(name, is_staff=staff)
    if right:
        user.user_permissions.add(Permission.objects.get(codename="view_dailyrollup"))
    client = Client()
    client.force_login(user)
    return client.cookies[settings.SESSION_COOKIE_NAME].value


def socket(session: str | None, *, path: str = PATH, **headers: str) -> WebsocketCommunicator:
    sent = OURS | headers | ({"cookie": f"{settings.SESSION_COOKIE_NAME}={session}"} if session else {})
    made = WebsocketCommunicator(
        in_a_thread_of_its_own, path, headers=[(name.encode(), value.encode()) for name, value in sent.items()]
    )
    made.scope["root_path"] = ""
    return made


async def view_of(watcher: WebsocketCommunicator) -> dict[str, Any]:
    view: dict[str, Any] = json.loads(await watcher.receive_from(timeout=5))
    await watcher.send_to(text_data="shown")
    return view


async def end_of(watcher: WebsocketCommunicator) -> int:
    """The code it is closed with, whatever it is sent before."""
    while True:
        message = await watcher.receive_output(timeout=10)
        if message["type"] == "websocket.close":
            return int(message["code"])
        await watcher.send_to(text_data="shown")


def test_staff_with_the_right_is_shown_how_things_stand_again_and_again() -> None:
    async def main() -> None:
        watcher = socket(session)
        assert (await watcher.connect())[0]
        first, second = await view_of(watcher), await view_of(watcher)
        assert (first["processes"], first["groups"], second["at"] > first["at"]) == (0, [], True)
        await watcher.disconnect()

    session = cookie()
    run(main())


@pytest.mark.parametrize(
    ("who", "headers", "path"),
    [
        (None, {}, PATH),
        ({"staff": False}, {}, PATH),
        ({"right": False}, {}, PATH),
        ({}, {"origin": "http://evil.example"}, PATH),
        ({}, {}, "/admin/reports/live/other"),
    ],
)
def test_everybody_else_is_refused_before_anything_is_opened(
    who: dict[str, bool] | None, headers: dict[str, str], path: str
) -> None:
    async def main() -> None:
        assert not (await socket(session, path=path, **headers).connect(timeout=5))[0]

    session = None if who is None else cookie(staff=who.get("staff", True), right=who.get("right", True))
    run(main())


def log_out(user: User) -> None:
    import_module(settings.SESSION_ENGINE).SessionStore.get_model_class().objects.all().delete()


def lose_the_right(user: User) -> None:
    user.user_permissions.clear()


def leave_the_staff(user: User) -> None:
    User.objects.update(is_staff=False)


def be_blocked(user: User) -> None:
    User.objects.update(is_active=False)


def get_a_new_password(user: User) -> None:
    user.set_password("another")
    user.save()


@pytest.mark.parametrize(
    ("event", "code"),
    [
        (log_out, LOGGED_OUT),
        (be_blocked, LOGGED_OUT),
        (get_a_new_password, LOGGED_OUT),
        (lose_the_right, NOT_ALLOWED),
        (leave_the_staff, NOT_ALLOWED),
    ],
)
def test_who_may_not_watch_any_more_is_told_so(event: Callable[[User], None], code: int) -> None:
    async def main() -> None:
        watcher = socket(session)
        assert (await watcher.connect())[0]
        await view_of(watcher)
        await asyncio.to_thread(elsewhere, lambda: event(User.objects.get()))
        assert await end_of(watcher) == code
        await watcher.disconnect()

    session = cookie()
    run(main())


def test_who_does_not_show_what_it_got_has_to_go(chosen: Callable[..., None]) -> None:
    async def main() -> None:
        slow, brisk = socket(session), socket(session)
        assert (await slow.connect())[0]
        assert (await brisk.connect())[0]
        await slow.receive_from(timeout=5)
        closing = asyncio.ensure_future(slow.receive_output(timeout=10))
        for _ in range(3):
            await view_of(brisk)
        assert await closing == {"type": "websocket.close", "code": TOO_SLOW}
        assert len(consumers.hub().watchers) == 1
        await slow.disconnect()
        await brisk.disconnect()

    chosen(live_answer_seconds=0.5)
    session = cookie()
    run(main())


def test_no_more_than_the_bound_watch_at_once(chosen: Callable[..., None]) -> None:
    async def main() -> None:
        first, second, third = (socket(session) for _ in range(3))
        assert (await first.connect())[0]
        await second.connect()
        assert await end_of(second) == TOO_MANY
        await second.disconnect()
        await first.disconnect()
        assert (await third.connect())[0]
        await view_of(third)
        await third.disconnect()

    chosen(live_max_watchers=1)
    session = cookie()
    run(main())


def test_one_builder_works_for_all_and_only_while_somebody_watches(tmp_path: Path) -> None:
    async def main() -> None:
        watchers = [socket(session) for _ in range(5)]
        for watcher in watchers:
            assert (await watcher.connect())[0]
        views = [await view_of(watcher) for watcher in watchers]
        views = [await view_of(watcher) for watcher in watchers]
        assert len({view["at"] for view in views}) <= 2
        hub: Any = consumers.hub()
        assert (len(hub.watchers), hub._task is not None) == (5, True)
        for watcher in watchers:
            await watcher.disconnect()
        async with asyncio.timeout(5):
            await hub._task
        assert (hub.watchers, hub._task) == (set(), None)

    session = cookie()
    run(main())
    assert (tmp_path / "live/watched").exists()
