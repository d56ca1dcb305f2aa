"""Every error that a client may get: its status, its form in each dialect, and what it must not tell."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from accounts.core.directory import Caller, Directory, Token
from accounts.core.secret import digest_of, with_checksum
from gateway.upstream.client import UpstreamResponse
from tests.support.asgi import Reply
from tests.support.loops import in_loop
from tests.support.relays import PEPPER, Bench, answering, completion, in_order, relaying, target_on
from tests.support.scripted import AwaitPeer, Expect, ScriptedUpstream, scripted

CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
ENDPOINTS = [CHAT, MESSAGES, COUNT]
KEY = "sk-providers-own-key"
OTHER = with_checksum("Z" * 32)
"""A well-formed token that nobody was given."""

Sending = Callable[["Scene", str, bool], Awaitable[Reply]]


@dataclass(slots=True)
class Scene:
    bench: Bench
    upstream: ScriptedUpstream

    async def post(self, path: str, body: bytes | dict[str, Any], **how: Any) -> Reply:
        return await self.bench.post(path, body, **how)


def body(path: str, stream: bool, **more: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"model": "g", "messages": [{"role": "user", "content": "hi"}], **more}
    if path == MESSAGES:
        made["max_tokens"] = 64
    if stream:
        made["stream"] = True
    return made


@contextlib.asynccontextmanager
async def scene(**settings: Any) -> AsyncIterator[Scene]:
    """One group `g` that speaks both dialects, `closed` that the caller may not use, both on a provider that fails."""
    failing = answering({"error": {"message": f"crash at http://10.9.8.7 with {KEY}"}}, status=500)
    async with scripted(failing) as upstream:
        targets = [
            target_on(upstream, "chat", provider={"api_key": KEY}),
            target_on(upstream, "messages", dialect="anthropic", provider={"api_key": KEY}),
        ]
        async with relaying(in_order(*targets), in_order(*targets, name="closed"), **settings) as bench:
            allow_only(bench, "g")
            yield Scene(bench, upstream)


def allow_only(bench: Bench, *groups: str) -> None:
    directory = bench.snapshot.directory
    assert directory is not None
    [token] = directory.tokens.values()
    caller = Caller(name="alice", project="product", allow=frozenset(groups))
    narrowed = Token(caller=caller, shown=token.shown, digest=token.digest)
    bench.snapshot.directory = Directory(version=2, tokens={token.digest: narrowed})


async def _missing_key(at: Scene, path: str, stream: bool) -> Reply:
    return await at.post(path, body(path, stream), anonymous=True)


async def _wrong_key(at: Scene, path: str, stream: bool) -> Reply:
    headers = [(b"authorization", b"Bearer " + OTHER.encode())]
    return await at.post(path, body(path, stream), anonymous=True, headers=headers)


async def _forbidden_group(at: Scene, path: str, stream: bool) -> Reply:
    return await at.post(path, body(path, stream, model="closed"))


async def _unknown_group(at: Scene, path: str, stream: bool) -> Reply:
    return await at.post(path, body(path, stream, model="nobody"))


async def _bad_json(at: Scene, path: str, stream: bool) -> Reply:
    return await at.post(path, msgspec.json.encode(body(path, stream))[:-1])


async def _missing_messages(at: Scene, path: str, stream: bool) -> Reply:
    return await at.post(path, {k: v for k, v in body(path, stream).items() if k != "messages"})


async def _too_large(at: Scene, path: str, stream: bool) -> Reply:
    return await at.post(path, body(path, stream, padding="x" * 20_000))


async def _too_large_without_a_length(at: Scene, path: str, stream: bool) -> Reply:
    raw = msgspec.json.encode(body(path, stream, padding="x" * 20_000))
    chunked = [(b"transfer-encoding", b"chunked")]
    return await at.bench.call(path, raw, headers=chunked, pieces=8).answered()


async def _compressed(at: Scene, path: str, stream: bool) -> Reply:
    return await at.post(path, b"\x1f\x8b", headers=[(b"content-encoding", b"gzip")])


async def _all_targets_down(at: Scene, path: str, stream: bool) -> Reply:
    return await at.post(path, body(path, stream))


async def _internal(at: Scene, path: str, stream: bool) -> Reply:
    at.bench.relay.transport = Exploding()
    return await at.post(path, body(path, stream))


async def _overloaded(at: Scene, path: str, stream: bool) -> Reply:
    at.bench.relay.admission.max_in_flight = 0
    return await at.post(path, body(path, stream))


async def _not_ready(at: Scene, path: str, stream: bool) -> Reply:
    at.bench.snapshot.catalog = None
    return await at.post(path, body(path, stream))


class Exploding:
    """A transport with a defect."""

    async def send(self, request: object, *, connect_by: float, respond_by: float) -> Any:
        raise RuntimeError(f"secret {KEY} at http://10.9.8.7")

    async def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Expected:
    send: Sending
    status: int
    type: str
    code: str
    param: str | None = None


TABLE = {
    "missing key": Expected(_missing_key, 401, "authentication_error", "missing_api_key"),
    "wrong key": Expected(_wrong_key, 401, "authentication_error", "invalid_api_key"),
    "forbidden group": Expected(_forbidden_group, 403, "permission_error", "model_not_allowed", "model"),
    "unknown group": Expected(_unknown_group, 404, "not_found_error", "model_not_found", "model"),
    "bad JSON": Expected(_bad_json, 400, "invalid_request_error", "invalid_json"),
    "missing messages": Expected(_missing_messages, 400, "invalid_request_error", "invalid_request", "messages"),
    "too large": Expected(_too_large, 413, "request_too_large", "request_too_large"),
    "too large, no length": Expected(_too_large_without_a_length, 413, "request_too_large", "request_too_large"),
    "compressed": Expected(_compressed, 415, "invalid_request_error", "unsupported_content_encoding"),
    "all targets down": Expected(_all_targets_down, 500, "api_error", "upstream_server_error"),
    "internal exception": Expected(_internal, 500, "api_error", "internal_error"),
    "overloaded": Expected(_overloaded, 503, "overloaded_error", "overloaded"),
    "not ready": Expected(_not_ready, 503, "api_error", "not_ready"),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("what", "path"),
    [(what, path) for what in TABLE for path in ENDPOINTS if (what, path) != ("all targets down", COUNT)],
)
@in_loop
async def test_an_error_has_its_dialects_form_and_tells_nothing_of_ours(what, path, stream, caplog):
    expected = TABLE[what]
    async with scene(max_request_bytes=10_000) as at:
        reply = await expected.send(at, path, stream)
    assert (reply.status, reply.header("content-type"), reply.complete) == (expected.status, "application/json", True)
    assert reply.header("content-length") == str(len(reply.body))
    id = reply.header("x-request-id")
    error = reply.json()["error"]
    text = error.pop("message")
    if path == CHAT:
        assert reply.json() == {"error": {"message": text, **error}}
        assert error == {"type": expected.type, "param": expected.param, "code": expected.code}
    else:
        assert reply.json() == {"type": "error", "error": {"type": expected.type, "message": text}, "request_id": id}
        assert reply.header("request-id") == id
    everything = repr(reply.headers) + reply.text
    for secret in (KEY[:6], at.bench.secret[:8], OTHER[:8], "10.9.8.7", str(at.upstream.port), "Traceback", ".py"):
        assert secret not in everything, secret
    if what not in ("all targets down", "internal exception"):
        assert at.upstream.connections == []
    if what == "internal exception":
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        assert id is not None
        assert id in caplog.text
    assert (at.bench.end.id, at.bench.end.status, at.bench.end.error_code) == (id, expected.status, expected.code)
    assert len(at.bench.kept.ends) == 1


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ([(b"authorization", b"Bearer %(token)s")], 0),
        ([(b"authorization", b"bearer   %(token)s ")], 0),
        ([(b"x-api-key", b"%(token)s")], 0),
        ([(b"authorization", b"%(token)s")], 401),
        ([(b"authorization", b"Basic %(token)s")], 401),
        ([(b"authorization", b"Bearer ")], 401),
        ([(b"authorization", b"Bearer \xff\xfe\x00")], 401),
        ([(b"authorization", b"Bearer " + b"x" * 9_000)], 401),
        ([(b"x-api-key", b"%(token)sx")], 401),
        ([(b"cookie", b"token=%(token)s")], 401),
    ],
)
@in_loop
async def test_one_extractor_reads_the_token_on_every_endpoint(path, sent, status):
    async with scene() as at:
        token = at.bench.secret.encode()
        headers = [(name, value.replace(b"%(token)s", token)) for name, value in sent]
        reply = await at.post(path, body(path, False, model="nobody"), anonymous=True, headers=headers)
    assert reply.status == (status or 404)


@pytest.mark.parametrize(("path", "wins"), [(CHAT, "authorization"), (MESSAGES, "x-api-key"), (COUNT, "x-api-key")])
@in_loop
async def test_of_two_credentials_the_dialects_own_counts(path, wins):
    async with scene() as at:
        for good in ("authorization", "x-api-key"):
            keys = {name: at.bench.secret if name == good else OTHER for name in ("authorization", "x-api-key")}
            headers = [
                (b"authorization", b"Bearer " + keys["authorization"].encode()),
                (b"x-api-key", keys["x-api-key"].encode()),
            ]
            reply = await at.post(path, body(path, False, model="nobody"), anonymous=True, headers=headers)
            assert reply.status == (404 if good == wins else 401)


@pytest.mark.parametrize("change", ["revoked", "expired", "inactive", "unknown"])
@in_loop
async def test_every_kind_of_bad_token_gets_the_same_answer(change):
    async with scene(wall=lambda: 1_000.0) as at:
        digest = digest_of(at.bench.secret.encode(), PEPPER)
        caller = Caller(name="alice", allow=frozenset({"*"}), active=change != "inactive")
        token = Token(
            caller=caller,
            shown="plt_",
            digest=digest,
            revoked=change == "revoked",
            expires_at=1_000.0 if change == "expired" else None,
        )
        tokens = {} if change == "unknown" else {digest: token}
        at.bench.snapshot.directory = Directory(version=3, tokens=tokens)
        reply = await at.post(CHAT, body(CHAT, False))
    assert (reply.status, reply.json()["error"]["code"]) == (401, "invalid_api_key")
    assert reply.json()["error"]["message"] == "The token is unknown, expired, revoked or its caller inactive."


@in_loop
async def test_a_token_may_be_narrower_than_its_caller():
    async with scene() as at:
        digest = digest_of(at.bench.secret.encode(), PEPPER)
        caller = Caller(name="alice", allow=frozenset({"*"}))
        token = Token(caller=caller, shown="plt_", digest=digest, groups=frozenset({"closed"}))
        at.bench.snapshot.directory = Directory(version=3, tokens={digest: token})
        reply = await at.post(CHAT, body(CHAT, False))
    assert (reply.status, reply.json()["error"]["code"]) == (403, "model_not_allowed")


@in_loop
async def test_a_body_that_says_it_is_too_large_is_not_read_at_all():
    async with scene(max_request_bytes=10) as at:
        call = at.bench.call(CHAT, body(CHAT, False), pieces=20)
        whole = call.unread
        reply = await call.answered()
    assert (reply.status, call.unread) == (413, whole)


@in_loop
async def test_the_token_is_read_before_the_body():
    async with scene() as at:
        call = at.bench.call(CHAT, body(CHAT, False), pieces=20, anonymous=True)
        whole = call.unread
        reply = await call.answered()
    assert (reply.status, call.unread) == (401, whole)


@in_loop
async def test_a_process_at_its_bound_refuses_at_once_and_serves_again_when_there_is_room():
    async with (
        scripted(scripts=[[Expect(), AwaitPeer()], answering(completion("b"))]) as upstream,
        relaying(in_order(target_on(upstream, "a")), max_in_flight=1) as bench,
    ):
        held = bench.call(CHAT, body(CHAT, False))
        while not upstream.requests:  # noqa: ASYNC110 - a script tells nobody
            await asyncio.sleep(0.002)
        refused = await bench.post(CHAT, body(CHAT, False))
        listed = await bench.call("/v1/models", method="GET").answered()
        held.hang_up()
        await held.answered()
        served = await bench.post(CHAT, body(CHAT, False))
    assert (refused.status, refused.header("retry-after"), refused.json()["error"]["code"]) == (503, "1", "overloaded")
    assert (listed.status, served.status) == (200, 200)


@in_loop
async def test_a_defect_after_the_head_is_out_ends_the_stream_with_an_error_event(caplog):
    class Breaking(UpstreamResponse):
        status = 200
        complete_by_eof = False

        def __init__(self) -> None:
            self.headers = []
            self.pieces = [b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n']

        async def receive(self, *, by: float) -> bytes:
            return self.pieces.pop()

        async def read(self, *, by: float, limit: int) -> bytes:
            raise NotImplementedError

        def close(self) -> None:
            pass

    class Odd(Exploding):
        async def send(self, request: object, *, connect_by: float, respond_by: float) -> Any:
            return Breaking()

    async with scene() as at:
        at.bench.relay.transport = Odd()
        reply = await at.post(CHAT, body(CHAT, True))
    assert (reply.status, reply.complete) == (200, True)
    last = reply.body.split(b"\n\n")[-2].removeprefix(b"data: ")
    assert msgspec.json.decode(last)["error"]["code"] == "internal_error"
    assert (at.bench.end.outcome, at.bench.end.status) == ("internal_error", 200)


@in_loop
async def test_the_record_says_why_a_token_was_refused_and_the_client_is_not_told():
    async with scripted(answering(completion())) as upstream, relaying(in_order(target_on(upstream, "a"))) as bench:
        reply = await bench.call(
            CHAT, {"model": "g", "messages": []}, headers=[(b"authorization", b"Bearer sk-other")], anonymous=True
        ).answered()
    assert (reply.status, bench.end.error_code, bench.end.error_detail) == (401, "invalid_api_key", "malformed")
    assert "malformed" not in reply.text
