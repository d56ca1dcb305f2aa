"""The live page's websocket: one builder for all who watch in this process, which works only while somebody does.

The page answers each message; the next is sent only then, whatever the server buffers. Who does not answer in time has
to go.
"""

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final
from weakref import WeakKeyDictionary

import msgspec
from asgiref.sync import sync_to_async
from channels.auth import get_user
from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings

from reports.core.live import Watch
from reports.live_folder import LiveFolder, seconds_until_tick

log = logging.getLogger("pilotage.live")

RIGHT: Final = "reports.view_dailyrollup"
"""As for the reports' pages."""
CHECK_SECONDS: Final = 20.0
"""How often it is looked whether a watcher may still watch."""
BEHIND_SECONDS: Final = 0.3
"""How long after the gateway's processes have spoken it is listened."""

LOGGED_OUT, NOT_ALLOWED, TOO_SLOW, TOO_MANY = 4401, 4403, 4408, 4429
"""Why a connection was ended, for the page."""

encode = msgspec.json.Encoder().encode


@dataclass(eq=False, slots=True)
class Watcher:
    """Holds the newest view alone: who is slow sees fewer."""

    fresh: asyncio.Event = field(default_factory=asyncio.Event)
    newest: str = ""

    def show(self, text: str) -> None:
        self.newest = text
        self.fresh.set()


class Hub:
    """Of one event loop."""

    def __init__(self, folder: LiveFolder) -> None:
        self.watchers: set[Watcher] = set()
        self._folder = folder
        self._newest = ""
        self._task: asyncio.Task[None] | None = None

    def join(self, watcher: Watcher) -> None:
        self.watchers.add(watcher)
        if self._newest:
            watcher.show(self._newest)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._build())

    def leave(self, watcher: Watcher) -> None:
        self.watchers.discard(watcher)

    async def _build(self) -> None:
        """Until nobody watches any more. What goes wrong is logged, and the next second tried again."""
        failed = ""
        watch = Watch(since=time.time())
        try:
            while self.watchers:
                try:
                    text = await sync_to_async(self._look, thread_sensitive=False)(watch)
                    self._newest = text
                    for watcher in self.watchers:
                        watcher.show(text)
                    failed = ""
                except OSError as problem:
                    if str(problem) != failed:
                        failed = str(problem)
                        log.exception("the live page cannot be built")
                wait = seconds_until_tick(time.time() - BEHIND_SECONDS)
                await asyncio.sleep(wait)
        finally:
            self._task, self._newest = None, ""

    def _look(self, watch: Watch) -> str:
        self._folder.watch()
        now = time.time()
        return encode(watch.add(self._folder.said(now=now), now=now)).decode()


_hubs: "WeakKeyDictionary[asyncio.AbstractEventLoop, Hub]" = WeakKeyDictionary()


def hub() -> Hub:
    loop = asyncio.get_running_loop()
    found = _hubs.get(loop)
    if found is None:
        found = _hubs[loop] = Hub(LiveFolder(settings.PILOTAGE.data_dir))
    return found


class LiveConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]  # the library has no types
    _tasks: tuple[asyncio.Task[None], ...] = ()

    async def connect(self) -> None:
        why = await self._refusal()
        if why is not None:
            await self.close()
            return
        await self.accept()
        ours = hub()
        if len(ours.watchers) >= settings.PILOTAGE.live_max_watchers:
            await self.close(TOO_MANY)
            return
        self._watcher = Watcher()
        self._answered = asyncio.Event()
        ours.join(self._watcher)
        loop = asyncio.get_running_loop()
        self._tasks = (loop.create_task(self._show()), loop.create_task(self._check()))

    async def disconnect(self, code: int) -> None:
        if not self._tasks:
            return
        hub().leave(self._watcher)
        for task in self._tasks:
            task.cancel()
        self._tasks = ()

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Whatever it is: the page has shown what it got."""
        if self._tasks:
            self._answered.set()

    async def _show(self) -> None:
        try:
            while True:
                await self._watcher.fresh.wait()
                self._watcher.fresh.clear()
                self._answered.clear()
                async with asyncio.timeout(settings.PILOTAGE.live_answer_seconds):
                    await self.send(self._watcher.newest)
                    await self._answered.wait()
        except TimeoutError:
            await self._end(TOO_SLOW)

    async def _check(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            if (why := await self._refusal()) is not None:
                await self._end(why)
                return

    async def _end(self, code: int) -> None:
        hub().leave(self._watcher)
        with contextlib.suppress(RuntimeError):  # it has left meanwhile
            await self.close(code)

    async def _refusal(self) -> int | None:
        """A code, or `None`: the session is looked up anew, and so are the user and the rights."""
        key = self.scope["session"].session_key
        session = import_module(settings.SESSION_ENGINE).SessionStore(key)
        user: Any = await get_user({"session": session})
        if not user.is_authenticated or not user.is_active:
            return LOGGED_OUT
        allowed = user.is_staff and await database_sync_to_async(user.has_perm)(RIGHT)
        return None if allowed else NOT_ALLOWED
