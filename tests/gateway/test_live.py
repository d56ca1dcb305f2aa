"""What a gateway process says to the live page, and that it says nothing while nobody watches."""

import asyncio
import os
import time
from pathlib import Path

from gateway.live import OTHER, Live, Tap
from reports.core.live import Said
from reports.live_folder import STALE_SECONDS, LiveFolder
from tests.reports.records import an_end
from tests.support.loops import in_loop
from tests.support.relays import Kept, answering, completion, in_order, relaying, target_on
from tests.support.scripted import Close, scripted

ASKED = {"model": "g", "messages": [{"role": "user", "content": "hi"}]}


@in_loop
async def test_records_go_straight_to_the_spool_but_while_somebody_watches(tmp_path: Path) -> None:
    async with (
        scripted(answering(completion())) as upstream,
        relaying(in_order(target_on(upstream, "a"))) as bench,
    ):
        folder = LiveFolder(tmp_path)
        live = Live(bench.relay, folder, max_names=10)

        async def tick(now: float) -> list[Said]:
            await asyncio.to_thread(live.tick, now=now)
            return folder.said(now=now)

        assert await tick(time.time()) == []
        assert bench.relay.spool is bench.kept
        await bench.post("/v1/chat/completions", ASKED)
        folder.watch()
        now = time.time()
        (said,) = await tick(now)
        assert isinstance(bench.relay.spool, Tap)
        assert (said.pid, said.since, said.ended) == (os.getpid(), now, [])
        for _ in range(3):
            await bench.post("/v1/chat/completions", ASKED)
        (said,) = await tick(now + 1)
        assert (said.since, said.ended, said.served) == (now, [("g", "success", 3)], [("g", bench.end.target, 3)])
        assert len(bench.kept.ends) == 4
        assert await tick(now + 2 * STALE_SECONDS) == []
        assert bench.relay.spool is bench.kept
        assert list(folder.path.glob("*.json")) == []


@in_loop
async def test_targets_that_are_kept_out_are_told_with_the_reason(tmp_path: Path) -> None:
    async with scripted([Close()]) as dead, scripted(answering(completion())) as alive:
        group = in_order(target_on(dead, "dead"), target_on(alive, "alive"))
        async with relaying(group) as bench:
            folder = LiveFolder(tmp_path)
            live = Live(bench.relay, folder, max_names=10)
            folder.watch()
            await asyncio.to_thread(live.tick, now=time.time())
            for _ in range(8):
                await bench.post("/v1/chat/completions", ASKED)
            await asyncio.to_thread(live.tick, now=time.time())
            (said,) = folder.said(now=time.time())
            ((name, target, reason, detail),) = said.out
            assert (name, target, reason) == ("g", group.targets[0].id, "kept_out")
            assert "failures" in detail


@in_loop
async def test_what_is_counted_has_a_bound_and_nothing_is_lost() -> None:
    kept = Kept()
    tap = Tap(kept, max_names=3)
    for number in range(10):
        tap.end(an_end(group=f"group-{number}"))
    assert len(kept.ends) == 10
    assert tap.ended == {**{(f"group-{number}", "success"): 1 for number in range(3)}, (OTHER, OTHER): 7}
