"""Which connection carries which request."""

import asyncio

import pytest

from tests.gateway.upstream.calling import (
    KEEPS_ANSWERING,
    call,
    failure,
    http1_only,
    now,
    provider_at,
    send,
    transport,
    until,
)
from tests.support.loops import LoopName, on_both_loops, run
from tests.support.scripted import (
    LAST_CHUNK,
    AwaitPeer,
    Close,
    Expect,
    ExpectHead,
    Pause,
    Reset,
    Script,
    Send,
    answer,
    chunk,
    chunked_head,
    scripted,
)


@http1_only
@on_both_loops
def test_calls_one_after_the_other_share_a_connection(loop: LoopName) -> None:
    async def main() -> None:
        async with scripted(KEEPS_ANSWERING) as upstream, transport() as through:
            provider = provider_at(upstream)
            assert [await call(through, provider) for _ in range(20)] == [b"ok"] * 20
            assert (len(upstream.connections), through.open_connections, through.in_use("p")) == (1, 1, 0)

    run(main(), loop=loop)


@http1_only
@on_both_loops
def test_calls_at_once_take_a_connection_each_and_leave_them_for_the_next(loop: LoopName) -> None:
    async def main() -> None:
        async with scripted(KEEPS_ANSWERING) as upstream, transport() as through:
            provider = provider_at(upstream)
            for _ in range(3):
                assert await asyncio.gather(*(call(through, provider) for _ in range(10))) == [b"ok"] * 10
            assert (len(upstream.connections), through.open_connections) == (10, 10)

    run(main(), loop=loop)


@http1_only
def test_the_connection_used_last_is_used_next() -> None:
    async def main() -> None:
        async with scripted(KEEPS_ANSWERING) as upstream, transport() as through:
            provider = provider_at(upstream)
            await asyncio.gather(*(call(through, provider) for _ in range(3)))
            for _ in range(10):
                await call(through, provider)
            assert sorted(len(played.requests) for played in upstream.connections) == [1, 1, 11]

    run(main())


@on_both_loops
def test_a_full_provider_refuses_at_once_and_has_room_again_when_an_answer_has_ended(loop: LoopName) -> None:
    async def main() -> None:
        script: Script = [Expect(), Send(chunked_head() + chunk(b"a")), Expect()]
        async with scripted(script) as upstream, transport() as through:
            provider = provider_at(upstream, max_in_flight=2)
            first = await send(through, provider)
            second = await send(through, provider)
            assert (await failure(send(through, provider)))[0] == "AtCapacity"
            assert through.in_use("p") == 2
            first.close()
            first.close()
            assert through.in_use("p") == 1
            third = await send(through, provider)
            assert (await failure(send(through, provider)))[0] == "AtCapacity"
            second.close()
            third.close()
            assert through.in_use("p") == 0

    run(main(), loop=loop)


def test_a_connection_being_opened_takes_a_place_and_a_failed_one_gives_it_back() -> None:
    async def main() -> None:
        held = asyncio.Event()
        loop = asyncio.get_running_loop()

        def resolve(host: str, port: int) -> list[str]:
            asyncio.run_coroutine_threadsafe(held.wait(), loop).result(5)
            return []

        async with scripted(KEEPS_ANSWERING) as upstream, transport(resolve=resolve) as through:
            base_url = f"http://up.example:{upstream.port}"
            provider = provider_at(upstream, base_url=base_url, max_in_flight=1)
            opening = asyncio.create_task(failure(send(through, provider)))
            await until(lambda: through.in_use("p") == 1)
            assert (await failure(send(through, provider)))[0] == "AtCapacity"
            held.set()
            assert await opening == ("ConnectError", "provider p: up.example has no address")
            assert through.in_use("p") == 0

    run(main())


@http1_only
@on_both_loops
@pytest.mark.parametrize("end", [Close(), Reset()])
def test_a_reused_connection_that_ends_under_the_request_is_replaced_by_a_new_one_once(
    end: Close | Reset, loop: LoopName
) -> None:
    async def main() -> None:
        stale: Script = [Expect(), Send(answer(b"one")), ExpectHead(), end]
        async with scripted(scripts=[stale, KEEPS_ANSWERING]) as upstream, transport() as through:
            provider = provider_at(upstream)
            assert await call(through, provider, b"1") == b"one"
            assert await call(through, provider, b"2") == b"ok"
            bodies = [[request.body for request in played.requests] for played in upstream.connections]
            assert bodies in ([[b"1", b"2"], [b"2"]], [[b"1", b""], [b"2"]])
            assert through.in_use("p") == 0

    run(main(), loop=loop)


@http1_only
@pytest.mark.parametrize(
    "ending",
    [
        [Send(b"H"), Close()],
        [Send(b"HTTP/1.1 100 Continue\r\n\r\n"), Close()],
        [Pause(0.1), Close()],
    ],
)
def test_a_request_is_not_sent_twice_when_a_byte_of_its_answer_came_or_the_server_had_time_to_run_it(
    ending: Script,
) -> None:
    async def main() -> None:
        script: Script = [Expect(), Send(answer(b"one")), Expect(), *ending]
        async with scripted(script) as upstream, transport(stale_within_s=0.05) as through:
            provider = provider_at(upstream)
            await call(through, provider)
            assert (await failure(call(through, provider)))[0] == "ConnectionLost"
            assert len(upstream.connections) == 1

    run(main())


def test_a_new_connection_that_ends_without_an_answer_is_not_tried_again() -> None:
    async def main() -> None:
        script: Script = [Expect(), Close()]
        async with scripted(script) as upstream, transport() as through:
            assert (await failure(call(through, provider_at(upstream))))[0] == "ConnectionLost"
            assert len(upstream.connections) == 1

    run(main())


@on_both_loops
def test_a_connection_closed_while_idle_is_forgotten(loop: LoopName) -> None:
    async def main() -> None:
        async with scripted([Expect(), Send(answer(b"one")), Close()]) as upstream, transport() as through:
            provider = provider_at(upstream)
            for _ in range(3):
                assert await call(through, provider) == b"one"
                await until(lambda: through.open_connections == 0)
            assert [len(played.requests) for played in upstream.connections] == [1, 1, 1]

    run(main(), loop=loop)


@on_both_loops
def test_an_end_that_the_loop_has_not_noticed_yet_is_noticed_when_the_connection_is_taken(loop: LoopName) -> None:
    async def main() -> None:
        async with scripted(KEEPS_ANSWERING) as upstream, transport(stale_within_s=-1.0) as through:
            provider = provider_at(upstream)
            await call(through, provider)
            # Both ends live on this loop: the end is in the kernel at once, and no turn of the loop has read it.
            for player in list(upstream._live):
                player._transport.abort()
            await asyncio.sleep(0)
            assert await call(through, provider) == b"ok"
            assert len(upstream.connections) == 2

    run(main(), loop=loop)


@http1_only
@on_both_loops
def test_an_idle_connection_is_closed_after_its_time(loop: LoopName) -> None:
    async def main() -> None:
        async with scripted(KEEPS_ANSWERING) as upstream, transport(max_idle_s=0.05) as through:
            await call(through, provider_at(upstream))
            assert through.open_connections == 1
            await until(lambda: through.open_connections == 0)
            assert await call(through, provider_at(upstream)) == b"ok"
            assert len(upstream.connections) == 2

    run(main(), loop=loop)


@http1_only
def test_a_changed_provider_closes_what_was_opened_for_the_old_one() -> None:
    async def main() -> None:
        streaming: Script = [Expect(), Send(answer(b"1")), Expect(), Send(chunked_head() + chunk(b"a")), Expect()]
        async with scripted(scripts=[streaming, KEEPS_ANSWERING]) as upstream, transport() as through:
            old = provider_at(upstream)
            await call(through, old)
            running = await send(through, old)
            await call(through, old)
            assert through.open_connections == 2
            changed = provider_at(upstream, api_key="new")
            assert await call(through, changed) == b"ok"
            await until(lambda: through.open_connections == 2)
            assert await running.receive(by=now() + 1) == b"a"
            assert upstream.requests[-1].header(b"authorization") == b"Bearer new"
            running.close()
            await until(lambda: through.open_connections == 1)
            assert len(upstream.connections) == 3

    run(main())


@http1_only
def test_an_answer_that_ends_after_the_provider_changed_does_not_leave_its_connection_behind() -> None:
    async def main() -> None:
        streaming: Script = [Expect(), Send(chunked_head()), Pause(0.05), Send(LAST_CHUNK), AwaitPeer()]
        async with scripted(scripts=[streaming, KEEPS_ANSWERING]) as upstream, transport() as through:
            running = await send(through, provider_at(upstream))
            await call(through, provider_at(upstream, api_key="new"))
            assert await running.read(by=now() + 1, limit=10) == b""
            await until(lambda: upstream.connections[0].ended.is_set())
            assert (through.open_connections, through.in_use("p")) == (1, 0)

    run(main())


@http1_only
def test_an_equal_provider_keeps_its_connections() -> None:
    async def main() -> None:
        async with scripted(KEEPS_ANSWERING) as upstream, transport() as through:
            for _ in range(5):
                await call(through, provider_at(upstream))
            assert len(upstream.connections) == 1

    run(main())


@http1_only
def test_a_rotated_key_is_used_on_the_open_connection() -> None:
    async def main() -> None:
        environ = {"KEY": "one"}
        async with scripted(KEEPS_ANSWERING) as upstream, transport(environ=environ) as through:
            provider = provider_at(upstream, api_key_env="KEY", auth="x-api-key")
            await call(through, provider)
            environ["KEY"] = "two"
            await call(through, provider)
            assert [request.header(b"x-api-key") for request in upstream.requests] == [b"one", b"two"]
            assert len(upstream.connections) == 1
            del environ["KEY"]
            assert (await failure(call(through, provider)))[0] == "CredentialMissing"
            assert through.in_use("p") == 0

    run(main())


@on_both_loops
@pytest.mark.parametrize(
    "spoil",
    [
        [Send(answer(b"own") + answer(b"foreign"))],
        [Send(answer(b"own")), Send(answer(b"foreign"))],
        [Send(answer(b"own")), Pause(0.0), Send(answer(b"foreign"))],
        [Send(chunked_head() + chunk(b"own") + LAST_CHUNK), Pause(0.001), Send(b"HTTP/1.1 200 OK\r\n")],
        [Send(b"HTTP/1.1 204 No\r\ncontent-length: 7\r\n\r\n"), Pause(0.0), Send(b"foreign")],
    ],
)
def test_bytes_past_an_answer_reach_no_other_call(spoil: Script, loop: LoopName) -> None:
    async def main() -> None:
        script: Script = [Expect(), *spoil, AwaitPeer()]
        async with scripted(script) as upstream, transport() as through:
            provider = provider_at(upstream)
            for _ in range(100):
                assert await call(through, provider) in (b"own", b"")
                await asyncio.sleep(0.002)
            assert [len(played.requests) for played in upstream.connections] == [1] * 100
            await until(lambda: upstream.open_connections == 0)

    run(main(), loop=loop)


def test_a_closed_transport_ends_what_runs_and_sends_nothing_more() -> None:
    async def main() -> None:
        async with (
            scripted([Expect(), Send(chunked_head() + chunk(b"a")), AwaitPeer()]) as upstream,
            transport() as through,
        ):
            provider = provider_at(upstream)
            response = await send(through, provider)
            assert await response.receive(by=now() + 1) == b"a"
            receiving = asyncio.create_task(failure(response.receive(by=now() + 5)))
            await asyncio.sleep(0)
            await through.close()
            assert (await receiving)[0] == "ConnectionLost"
            assert await failure(send(through, provider)) == ("ConnectError", "the transport is closed")

    run(main())
