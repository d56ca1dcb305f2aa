"""A token that is revoked is refused by every worker within two seconds; what runs goes on."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator

import pytest

from accounts import tokens
from accounts.models import Caller, Token
from tests.support.grounds import Ground, Grounds, hello
from tests.support.hostile import (
    Client,
    answer_of,
    children_of,
    connect,
    connected,
    head,
    post,
    server_sockets,
    sockets_of,
)
from tests.support.loops import run
from tests.support.relays import DONE, chat_event, sse, text
from tests.support.scripted import Close, Drip, Expect, Script, Send, scripted

pytestmark = pytest.mark.e2e

CHAT, MODELS = "/v1/chat/completions", "/v1/models"
WORKERS = 3
WITHIN_S = 2.0
EVENT = text("a word ")
END = chat_event(finish="stop") + DONE
STREAM: Script = [Expect(), Send(sse()), Drip(EVENT * 40, 0.1, len(EVENT)), Send(END), Close()]


@pytest.fixture(scope="module")
def crowd(grounds: Grounds) -> Iterator[Ground]:
    """Three workers that look for changes as often as they do by default."""
    ground = grounds.start("crowd", workers=WORKERS, PILOTAGE_POLL_SECONDS="0.5")
    yield ground
    ground.process.kill()


async def one_for_each_worker(ground: Ground) -> dict[int, Client]:
    """A connection to every worker, by its process id."""
    found: dict[int, Client] = {}
    for _ in range(200):
        client = await connect(ground.address)
        await client.send(head("GET", "/healthz", [("Host", "x")]))
        await answer_of(client)
        client.heard.clear()
        inode = server_sockets(ground.address[1])[client.port]
        pid = next(pid for pid in children_of(ground.pid) if inode in sockets_of(pid))
        if pid in found:
            client.close()
        else:
            found[pid] = client
        if len(found) == WORKERS:
            return found
    raise AssertionError(f"only {len(found)} workers were met")


async def status_of(client: Client, token: str) -> int:
    client.heard.clear()
    await client.send(head("GET", MODELS, [("Host", "x"), ("Authorization", f"Bearer {token}")]))
    return (await answer_of(client)).status


async def seconds_until(client: Client, token: str, status: int) -> float:
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.timeout(10):
        while await status_of(client, token) != status:  # noqa: ASYNC110 - the gateway tells nobody
            await asyncio.sleep(0.02)
    return loop.time() - began


def revoke(token: Token) -> None:
    assert tokens.revoke(token)


def shorten(token: Token) -> None:
    Token.objects.filter(pk=token.pk).update(expires_at="2020-01-01T00:00:00Z")


def retire(token: Token) -> None:
    Caller.objects.filter(pk=token.caller_id).update(active=False)


@pytest.mark.parametrize("end", [revoke, shorten, retire])
def test_every_worker_refuses_it_in_time(crowd: Ground, end: Callable[[Token], None]) -> None:
    def issue() -> tuple[Token, str]:
        with crowd.process.open_database():
            caller, _ = Caller.objects.get_or_create(name=f"leaver-{end.__name__}", defaults={"allow": ["*"]})
            return tokens.issue(caller)

    def end_it(token: Token) -> None:
        with crowd.process.open_database():
            end(token)

    async def main() -> None:
        token, secret = await asyncio.to_thread(issue)
        workers = await one_for_each_worker(crowd)
        async with contextlib.AsyncExitStack() as stack:
            for client in workers.values():
                stack.callback(client.close)
            await asyncio.gather(*(seconds_until(client, secret, 200) for client in workers.values()))
            await asyncio.to_thread(end_it, token)
            took = await asyncio.gather(*(seconds_until(client, secret, 401) for client in workers.values()))
            print(f"refused by {len(took)} workers within {max(took):.2f} s")
            assert max(took) < WITHIN_S
            assert [await status_of(client, crowd.token) for client in workers.values()] == [200] * WORKERS

    run(main(), within=60)


def test_a_running_stream_goes_on_and_the_next_request_on_its_connection_is_refused(crowd: Ground) -> None:
    def issue() -> tuple[Token, str]:
        with crowd.process.open_database():
            return tokens.issue(Caller.objects.get(name="tester"))

    def end_it(token: Token) -> None:
        with crowd.process.open_database():
            revoke(token)

    async def main() -> None:
        token, secret = await asyncio.to_thread(issue)
        async with scripted(STREAM) as upstream:
            group = await crowd.lead_to(upstream.base_url)
            await asyncio.sleep(1.0)  # until every worker has looked once more
            async with connected(crowd.address) as client, connected(crowd.address) as other:
                await client.send(post(CHAT, hello(group, stream=True), token=secret))
                await client.until(EVENT)
                await asyncio.to_thread(end_it, token)
                assert await seconds_until(other, secret, 401) < WITHIN_S
                answer = await answer_of(client)
                assert (answer.body, answer.whole) == (EVENT * 40 + END, True)
                client.heard.clear()
                await client.send(post(CHAT, hello(group), token=secret))
                assert (await answer_of(client)).status == 401

    run(main(), within=60)
