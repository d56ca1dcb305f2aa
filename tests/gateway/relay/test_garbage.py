"""What an exchange held is given back at its end: nothing waits for the collector, which comes rarely."""

import asyncio
import gc

import msgspec
import pytest

from gateway.relay.exchange import Exchange
from tests.support.loops import in_loop
from tests.support.relays import DONE, chat_event, completion, in_order, relaying, sse, target_on, text
from tests.support.scripted import Close, Expect, Pause, Script, Send, answer, scripted

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("stream", [False, True])
@in_loop
async def test_a_slow_exchange_is_gone_when_it_is_over(stream):
    unary: Script = [Send(answer(msgspec.json.encode(completion())))]
    streamed: Script = [Send(sse(text("a"), chat_event(finish="stop"), DONE)), Close()]
    # Longer than it takes until the client's leaving is watched for.
    script: Script = [Expect(), Pause(0.06), *(streamed if stream else unary)]
    async with scripted(script) as upstream, relaying(in_order(target_on(upstream, "a"))) as bench:
        gc.collect()
        gc.disable()
        try:
            for leaves in (False, True):
                call = bench.call(
                    CHAT, {"model": "g", "messages": [{"role": "user", "content": "hi"}], "stream": stream}
                )
                if leaves:
                    await asyncio.sleep(0.04)
                    call.hang_up()
                assert (await call.answered()).status == (0 if leaves else 200)
                del call
                await asyncio.sleep(0.01)
            left = [each for each in gc.get_objects() if isinstance(each, Exchange)]
            assert len(left) == 0
        finally:
            gc.enable()
