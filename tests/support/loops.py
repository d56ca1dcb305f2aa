"""Runs a coroutine to its end on either event loop, and fails when the loop had something to complain about."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, Literal, TypeVar

import pytest
import uvloop

T = TypeVar("T")

LoopName = Literal["asyncio", "uvloop"]

on_both_loops = pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
"""Gives a test the argument `loop`, to be handed to `run`."""


def run(main: Coroutine[Any, Any, T], *, loop: LoopName = "asyncio", within: float = 30.0) -> T:
    """The result of `main`, or `TimeoutError` after `within` seconds.

    An exception that reached the loop's own handler (a callback that raised, a future nobody awaited) fails the run.
    """
    complaints: list[dict[str, Any]] = []
    factory: Callable[[], asyncio.AbstractEventLoop]
    factory = uvloop.new_event_loop if loop == "uvloop" else asyncio.new_event_loop

    async def bounded() -> T:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        async with asyncio.timeout(within):
            return await main

    with asyncio.Runner(loop_factory=factory) as runner:
        result = runner.run(bounded())
    assert complaints == []
    return result


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Makes a coroutine function a test: it runs on uvloop, as the server does."""

    @functools.wraps(test)
    def running(*args: Any, **kwargs: Any) -> None:
        run(test(*args, **kwargs), loop="uvloop")

    return running
