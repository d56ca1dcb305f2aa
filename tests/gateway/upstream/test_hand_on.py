"""A body given to a function as it comes, piece after piece."""

import asyncio

import pytest

from gateway.upstream.client import UpstreamResponse
from tests.gateway.upstream.calling import call, failure, http1_only, now, provider_at, send, transport, until
from tests.support.loops import LoopName, on_both_loops, run
from tests.support.scripted import (
    LAST_CHUNK,
    Await,
    AwaitPeer,
    Close,
    Expect,
    ExpectHead,
    Flood,
    Pause,
    Repeat,
    Script,
    Send,
    StartReading,
    StopReading,
    answer,
    chunk,
    chunked_head,
    scripted,
)


def coming(pieces: int, pause_s: float = 0.01) -> Script:
    """So many pieces of a chunked body, each after a pause."""
    return [
        Expect(),
        Send(chunked_head()),
        *[each for _ in range(pieces) for each in (Pause(pause_s), Send(chunk(b"x")))],
    ]


class Taker:
    """Takes what comes until it has so many bytes."""

    def __init__(self, *, bytes_wanted: int = 1 << 30, within: float = 5.0) -> None:
        self.pieces: list[bytes] = []
        self._wanted = bytes_wanted
        self._within = within

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    def __call__(self, piece: bytes) -> float:
        self.pieces.append(piece)
        if not piece or len(self.body) >= self._wanted:
            return 0.0
        return now() + self._within


@on_both_loops
@pytest.mark.parametrize(
    "wire",
    [
        chunked_head() + chunk(b"ab") + chunk(b"c") + LAST_CHUNK,
        answer(b"abc"),
        b"HTTP/1.1 200 OK\r\n\r\nabc",
    ],
)
def test_all_of_a_body_is_handed_on_and_then_its_end(wire: bytes, loop: LoopName) -> None:
    async def main() -> None:
        sent = [Send(wire[at : at + 1]) for at in range(len(wire))]
        script: Script = [Expect(), *(each for one in sent for each in (one, Pause(0.001))), Close()]
        async with scripted(script) as upstream, transport() as through:
            response = await send(through, provider_at(upstream))
            taker = Taker()
            await response.hand_on(taker, by=now() + 5)
            assert (taker.body, taker.pieces.count(b""), taker.pieces[-1]) == (b"abc", 1, b"")
            assert await response.receive(by=now() + 1) == b""
            assert through.in_use("p") == 0

    run(main(), loop=loop)


@on_both_loops
def test_what_comes_behind_enough_is_there_for_the_next_reader(loop: LoopName) -> None:
    async def main() -> None:
        more = asyncio.Event()
        begin: Script = [Send(chunked_head() + chunk(b"a")), Pause(0.02), Send(chunk(b"b"))]
        rest: Script = [Await(more), Send(chunk(b"c") + chunk(b"d") + LAST_CHUNK), AwaitPeer()]
        async with scripted([Expect(), *begin, *rest]) as upstream, transport() as through:
            response = await send(through, provider_at(upstream))
            first = Taker(bytes_wanted=2)
            await response.hand_on(first, by=now() + 5)
            more.set()
            await asyncio.sleep(0.05)
            second = Taker(bytes_wanted=2)
            await response.hand_on(second, by=now() + 5)
            assert (first.body, second.body) == (b"ab", b"cd")
            assert await response.receive(by=now() + 5) == b""

    run(main(), loop=loop)


@http1_only
@on_both_loops
def test_a_piece_is_taken_in_the_turn_in_which_it_comes(loop: LoopName) -> None:
    """Nobody is woken for it: the reader's task does not run between the first piece and the end."""

    async def main() -> None:
        script: Script = [*coming(5), Pause(0.01), Send(LAST_CHUNK), AwaitPeer()]
        async with scripted(script) as upstream, transport() as through:
            response = await send(through, provider_at(upstream))
            by: list[asyncio.Task[None] | None] = []
            taker = Taker()

            def take(piece: bytes) -> float:
                by.append(asyncio.current_task())
                return taker(piece)

            await response.hand_on(take, by=now() + 5)
            assert (taker.body, by[1:-1]) == (b"xxxxx", [None] * (len(by) - 2))

    run(main(), loop=loop)


@on_both_loops
def test_each_piece_sets_the_time_for_the_next(loop: LoopName) -> None:
    async def main() -> None:
        async with scripted([*coming(10, 0.1), AwaitPeer()]) as upstream, transport() as through:
            response = await send(through, provider_at(upstream))
            taker = Taker(within=0.8)
            began = now()
            assert (await failure(response.hand_on(taker, by=now() + 0.8)))[0] == "ResponseTimeout"
            assert now() - began >= 0.9 + 0.8 - 0.1
            assert taker.body == b"x" * 10
            # A timeout ends nothing.
            assert (await failure(response.receive(by=now() + 0.05)))[0] == "ResponseTimeout"
            response.close()

    run(main(), loop=loop)


@on_both_loops
def test_a_limit_that_does_not_move_holds_however_much_comes(loop: LoopName) -> None:
    async def main() -> None:
        flood: Script = [Expect(), Send(chunked_head()), Repeat([Send(chunk(b"x" * 50_000)), Pause(0.0)])]
        async with scripted(flood) as upstream, transport() as through:
            response = await send(through, provider_at(upstream))
            by = now() + 0.3
            assert (await failure(response.hand_on(lambda piece: by, by=by)))[0] == "ResponseTimeout"
            assert now() >= by - 0.002
            response.close()

    run(main(), loop=loop)


@on_both_loops
def test_a_sooner_limit_for_the_next_piece_holds(loop: LoopName) -> None:
    async def main() -> None:
        async with scripted([*coming(1, 0.05), AwaitPeer()]) as upstream, transport() as through:
            response = await send(through, provider_at(upstream))
            async with asyncio.timeout(10):
                error = await failure(response.hand_on(Taker(within=0.1), by=now() + 60))
            assert error[0] == "ResponseTimeout"
            response.close()

    run(main(), loop=loop)


@on_both_loops
@pytest.mark.parametrize("pieces", [0, 1, 3])
def test_an_early_end_is_raised_behind_what_came_before_it(pieces: int, loop: LoopName) -> None:
    async def main() -> None:
        async with scripted([*coming(pieces), Pause(0.01), Close()]) as upstream, transport() as through:
            response = await send(through, provider_at(upstream))
            taker = Taker()
            assert (await failure(response.hand_on(taker, by=now() + 5)))[0] == "ConnectionLost"
            assert (taker.body, b"" in taker.pieces, through.in_use("p")) == (b"x" * pieces, False, 0)

    run(main(), loop=loop)


@on_both_loops
def test_what_the_taker_raises_ends_the_exchange_and_reaches_who_waits(loop: LoopName) -> None:
    async def main() -> None:
        def take(piece: bytes) -> float:
            raise LookupError("a defect")

        async with scripted([*coming(1), AwaitPeer()]) as upstream, transport() as through:
            response: UpstreamResponse = await send(through, provider_at(upstream))
            assert await failure(response.hand_on(take, by=now() + 5)) == ("LookupError", "a defect")
            response.close()
            await until(lambda: through.in_use("p") == 0 and through.open_connections == 0)

    run(main(), loop=loop)


@on_both_loops
def test_nothing_is_handed_to_who_was_cancelled(loop: LoopName) -> None:
    async def main() -> None:
        flood: Script = [Expect(), Send(chunked_head() + chunk(b"x" * 1000)), Flood(chunk(b"x" * 1000), 1 << 30)]
        async with scripted(flood) as upstream, transport() as through:
            response = await send(through, provider_at(upstream))
            taker = Taker()
            handing = asyncio.create_task(response.hand_on(taker, by=now() + 5))
            await until(lambda: len(taker.pieces) > 3, within=5)
            handing.cancel()
            taken = len(taker.pieces)
            await asyncio.gather(handing, return_exceptions=True)
            assert handing.cancelled()
            await asyncio.sleep(0.02)
            assert len(taker.pieces) == taken
            response.close()
            await until(lambda: through.open_connections == 0)

    run(main(), loop=loop)


@http1_only
@on_both_loops
def test_the_connection_serves_again(loop: LoopName) -> None:
    async def main() -> None:
        script: Script = [*coming(1), Pause(0.01), Send(LAST_CHUNK), Expect(), Send(answer(b"again"))]
        async with scripted(script) as upstream, transport() as through:
            provider = provider_at(upstream)
            response = await send(through, provider)
            taker = Taker()
            await response.hand_on(taker, by=now() + 5)
            assert await call(through, provider) == b"again"
            assert (taker.body, len(upstream.connections)) == (b"x", 1)

    run(main(), loop=loop)


@http1_only
@on_both_loops
def test_the_rest_of_the_request_that_goes_out_meanwhile_shortens_no_limit(loop: LoopName) -> None:
    """The server answers before it has taken the request, and takes more of it while the answer runs."""

    async def main() -> None:
        drip: Script = [each for _ in range(10) for each in (Pause(0.1), Send(chunk(b"x")))]
        script: Script = [ExpectHead(), StopReading(), Send(chunked_head()), *drip, StartReading(), *drip]
        async with scripted([*script, Send(LAST_CHUNK), AwaitPeer()]) as upstream, transport() as through:
            response = await send(through, provider_at(upstream), b"x" * 20_000_000)
            taker = Taker(within=0.8)
            await response.hand_on(taker, by=now() + 0.8)
            assert taker.body == b"x" * 20

    run(main(), loop=loop)
