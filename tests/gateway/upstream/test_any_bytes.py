"""Whatever a server sends: an answer or an `UpstreamError`, soon, and nothing left behind."""

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings

from gateway.upstream.errors import ResponseTimeout, UpstreamError
from tests.gateway.upstream.calling import call, now, provider_at, send, transport
from tests.support.loops import run
from tests.support.scripted import Close, Expect, ScriptedUpstream, Send, Step, answer, scripted

pieces = st.sampled_from(
    [
        b"HTTP/1.1 ",
        b"HTTP/1.0 ",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 204 No\r\n",
        b"HTTP/1.1 101 S\r\n",
        b"200",
        b" OK",
        b"\r\n",
        b"\r",
        b"\n",
        b"\r\n\r\n",
        b"content-length: ",
        b"content-length: 5\r\n",
        b"transfer-encoding: chunked\r\n",
        b"transfer-encoding: ",
        b"connection: close\r\n",
        b"connection: upgrade\r\nupgrade: x\r\n",
        b"0\r\n\r\n",
        b"5\r\nhello\r\n",
        b"hello",
        b"ffffffffffffffff\r\n",
        b": ",
        b"\0",
        b"x-a: b\r\n",
        b"x" * 70_000,
    ]
)
wires = st.lists(st.one_of(pieces, st.binary(max_size=20)), max_size=14)


async def play(wire: list[bytes], upstream: ScriptedUpstream) -> None:
    steps: list[Step] = [Send(piece) for piece in wire]
    upstream._scripts = [[Expect(), *steps, Close()]]
    async with transport() as through:
        provider = provider_at(upstream)
        started = now()
        try:
            response = await send(through, provider, within=2.0)
            body = await response.read(by=now() + 2, limit=1 << 20)
        except ResponseTimeout as error:
            raise AssertionError("it hung") from error
        except UpstreamError:
            pass
        else:
            assert 200 <= response.status <= 599
            assert body in b"".join(wire) or b"chunked" in b"".join(wire)
        assert now() - started < 1.5
        assert through.in_use("p") == 0
        upstream._scripts = [[Expect(), Send(answer(b"ok"))]]
        assert await call(through, provider) == b"ok"


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(wire=wires)
def test_any_bytes_give_an_answer_or_an_upstream_error_and_the_next_call_is_its_own(wire: list[bytes]) -> None:
    async def main() -> None:
        async with scripted([Close()]) as upstream:
            await play(wire, upstream)

    run(main())
