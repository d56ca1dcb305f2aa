"""Whatever stands where a token belongs: 401, fast, by the same rule on every path, and without the database."""

import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import pytest

from accounts.core.secret import ALPHABET, with_checksum
from bench.machine import cpu_seconds
from tests.support.grounds import Ground, Grounds, hello
from tests.support.hostile import answer_of, ask, connected, head, post
from tests.support.loops import run

pytestmark = pytest.mark.e2e

POSTED = ("/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens")
READ = ("/v1/models", "/v1/models/nowhere")
LONGEST = 40_000


@pytest.fixture(scope="module")
def bereft(grounds: Grounds) -> Iterator[Ground]:
    """A gateway whose database is gone: who asks it anything fails."""
    first = grounds.start("bereft")
    kept = first.process.data / "last_good"
    first.process.until(lambda: len(list(kept.iterdir())) == 2, what="both files")
    assert first.process.stop() == 0
    gone = first.process.data / "pilotage.sqlite3"
    again = grounds.again(first, DATABASE_URL=f"sqlite:///{gone.parent}/gone/pilotage.sqlite3")
    assert "the database does not answer" in again.process.output()
    yield again
    again.process.kill()


def odd_values(seed: int) -> Iterator[bytes]:
    """Bytes that a header field may hold, and that are no token of anybody."""
    chance = random.Random(seed)
    token = with_checksum("".join(chance.choices(ALPHABET, k=32))).encode()
    allowed = bytes([9, *range(32, 127), *range(128, 256)])

    def noise(size: int) -> bytes:
        return bytes(chance.choices(allowed, k=size))

    yield from (
        b"", b" ", b"\t", b"Bearer", b"Bearer ", b"bearer\t" + token, b"Basic " + token, b"Bearer Bearer " + token,
        b"Bearer null", b"Bearer undefined", b"Bearer " + token + b"," + token, b"Bearer " + token + b" x",
        b"Bearer plt_", b"Bearer '" + token + b"'", b'Bearer "' + token + b'"', b"Bearer " + b"plt_" * 10,
        b"Bearer ' OR 1=1 --", b"Bearer ${jndi:ldap://127.0.0.1/x}", b"Bearer ../../etc/passwd", b"Digest a=b",
        b"Bearer " + "пароль".encode(), b"Bearer " + b"\xff\xfe" * 21, b"Bearer " + b"a" * LONGEST, b"a" * LONGEST,
    )  # fmt: skip
    while True:
        match chance.randrange(6):
            case 0:
                yield noise(chance.randrange(200))
            case 1:
                yield b"Bearer " + noise(chance.randrange(200))
            case 2:  # as long as a token
                yield b"Bearer " + noise(len(token))
            case 3:  # one character is another
                at = chance.randrange(len(token))
                yield b"Bearer " + token[:at] + noise(1) + token[at + 1 :]
            case 4:  # well-formed, and nobody's
                yield b"Bearer " + with_checksum("".join(chance.choices(ALPHABET, k=32))).encode()
            case _:
                yield chance.choice([b"BEARER", b"beaRER", b"Token", b"Negotiate"]) + b" " * chance.randrange(9) + token


def refused(path: str, value: bytes, *, name: bytes = b"Authorization") -> bytes:
    body = b'{"model":"nowhere"}' if path in POSTED else b""
    method = b"POST" if path in POSTED else b"GET"
    return b"%s %s HTTP/1.1\r\nHost: x\r\n%s: %s\r\nContent-Length: %d\r\n\r\n%s" % (
        method, path.encode(), name, value, len(body), body,
    )  # fmt: skip


async def tried(ground: Ground, values: list[bytes]) -> list[float]:
    """Every value on one path after the other, on one connection. Seconds that each answer took."""
    took = []
    paths = [*POSTED, *READ]
    async with connected(ground.address) as client:
        for number, value in enumerate(values):
            client.heard.clear()
            began = time.perf_counter()
            await client.send(
                refused(paths[number % len(paths)], value, name=(b"Authorization", b"x-api-key")[number % 2])
            )
            answer = await answer_of(client)
            took.append(time.perf_counter() - began)
            code = answer.json["error"].get("code")
            assert answer.status == 401, (value, answer)
            assert code in ("missing_api_key", "invalid_api_key", None), (value, answer)
            assert answer.header("content-type") == "application/json"
    return took


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    p99_s: float
    """99th percentile of the time that an answer took."""
    cpu_s: float
    """Of the gateway, for each."""


async def cost_of(ground: Ground, values: list[bytes]) -> Cost:
    before = cpu_seconds(ground.pid)
    took = await tried(ground, values)
    return Cost(p99_s=statistics.quantiles(took, n=100)[98], cpu_s=(cpu_seconds(ground.pid) - before) / len(values))


async def judged(ground: Ground, count: int) -> Cost:
    """What odd values cost; three times the CPU of plain wrong ones at most."""
    plain = await cost_of(ground, [b"Bearer plt_" + b"0" * 38] * count)
    odd = await cost_of(ground, list(islice(odd_values(1), count)))
    print(
        f"{count} values: 99 % answered in {odd.p99_s * 1000:.2f} ms, plain ones in {plain.p99_s * 1000:.2f} ms;"
        f" {odd.cpu_s * 1e6:.0f} us of CPU each, plain ones {plain.cpu_s * 1e6:.0f} us"
    )
    assert odd.cpu_s < 3 * plain.cpu_s
    assert "Traceback" not in ground.process.output()
    return odd


def test_no_odd_value_is_let_in_or_costs_much(bereft: Ground) -> None:
    run(judged(bereft, 1_000), within=60)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_ten_thousand_odd_values(bereft: Ground) -> None:
    assert run(judged(bereft, 10_000), within=500).p99_s < 0.005


def test_a_good_token_is_let_in_without_the_database(bereft: Ground) -> None:
    async def main() -> None:
        listed = await ask(bereft.address, head("GET", "/v1/models", [("Authorization", f"Bearer {bereft.token}")]))
        assert [model["id"] for model in listed.json["data"]] == ["nowhere"]
        tried = await ask(bereft.address, post(POSTED[0], hello("nowhere"), token=bereft.token))
        assert tried.status == 502

    run(main())


@pytest.mark.parametrize("path", [*POSTED, *READ])
def test_every_path_reads_a_token_in_the_same_forms(bereft: Ground, path: str) -> None:
    good = bereft.token.encode()
    wrong = with_checksum("0" * 32).encode()

    async def status(*fields: tuple[bytes, bytes]) -> int:
        lines = b"".join(b"%s: %s\r\n" % field for field in fields)
        sent = refused(path, b"x", name=b"x-unused").replace(b"x-unused: x\r\n", lines)
        return (await ask(bereft.address, sent)).status

    async def main() -> None:
        let_in = 200 if path in READ else 400  # without messages
        for fields in (
            [(b"Authorization", b"Bearer " + good)],
            [(b"authorization", b"bearer " + good)],
            [(b"AUTHORIZATION", b"BEARER   " + good + b"  ")],
            [(b"x-api-key", good)],
            [(b"X-Api-Key", b" " + good)],
            [(b"Authorization", b"Basic eDp5"), (b"x-api-key", good)],
        ):
            assert await status(*fields) == let_in, fields
        for fields in (
            [],
            [(b"Authorization", good)],
            [(b"Cookie", b"token=" + good)],
            [(b"api-key", good)],
            [(b"Proxy-Authorization", b"Bearer " + good)],
            [(b"x-authorization", b"Bearer " + good)],
            [(b"Authorization", b"Bearer " + wrong), (b"Authorization", b"Bearer " + good)],
            [(b"x-api-key", wrong), (b"x-api-key", good)],
        ):
            assert await status(*fields) == 401, fields
        queried = refused(f"{path}?api_key={bereft.token}&access_token={bereft.token}&key={bereft.token}", b"")
        if path in POSTED:
            queried = queried.replace(b"GET", b"POST")
        assert (await ask(bereft.address, queried)).status == 401
        # Which of two counts is the dialect's.
        both = await status((b"Authorization", b"Bearer " + good), (b"x-api-key", wrong))
        assert both == (401 if path.startswith("/v1/messages") else let_in)

    run(main())
