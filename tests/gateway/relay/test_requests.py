"""What of a caller's request arrives at a provider, and what never gets that far."""

import asyncio
import json
import os
import re

import pytest

from gateway.relay.app import IDS_AT_ONCE, new_id
from routing.core.document import Dialect
from tests.support.loops import in_loop
from tests.support.relays import answering, completion, in_order, message, relaying, target_on
from tests.support.scripted import Received, scripted

CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
HI = {"model": "g", "messages": [{"role": "user", "content": "hi"}]}
ASK = {**HI, "max_tokens": 64}
CHAT_BODY = b'{"model":"g","messages":[{"role":"user","content":"hi"}]%s}'
MESSAGES_BODY = b'{"model":"g","max_tokens":64,"messages":[{"role":"user","content":"hi"}]%s}'


# Caps on the output.


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize(
    ("given", "cap"),
    [
        (b',"max_completion_tokens":10', b"10"),
        (b',"max_tokens":10', b"10"),
        (b',"max_completion_tokens":10,"max_tokens":20', b"10"),
        (b',"max_tokens":20,"max_completion_tokens":10', b"10"),
        (b',"max_tokens":20,"max_completion_tokens":null', b"20"),
    ],
)
@in_loop
async def test_a_target_that_takes_one_name_for_the_cap_gets_the_cap_that_counts_under_that_name(field, given, cap):
    async with (
        scripted(answering(completion())) as upstream,
        relaying(in_order(target_on(upstream, "a", output_token_field=field))) as bench,
    ):
        reply = await bench.post(CHAT, CHAT_BODY % given)
    assert reply.status == 200
    assert upstream.requests[0].body.replace(b'"a"', b'"g"') == CHAT_BODY % (b',"%s":%s' % (field.encode(), cap))
    assert bench.end.output_cap == int(cap)


@pytest.mark.parametrize("given", [b',"max_tokens":10', b',"max_completion_tokens":10,"max_tokens":20', b""])
@in_loop
async def test_a_target_that_says_nothing_of_caps_gets_what_the_caller_sent(given):
    async with scripted(answering(completion())) as upstream, relaying(in_order(target_on(upstream, "a"))) as bench:
        await bench.post(CHAT, CHAT_BODY % given)
    assert upstream.requests[0].body == (CHAT_BODY % given).replace(b'"g"', b'"a"')


@in_loop
async def test_no_cap_is_made_up():
    async with (
        scripted(answering(completion())) as upstream,
        relaying(in_order(target_on(upstream, "a", output_token_field="max_tokens"))) as bench,
    ):
        await bench.post(CHAT, HI)
    assert json.loads(upstream.requests[0].body) == {**HI, "model": "a"}
    assert bench.end.output_cap is None


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("cap", [b"0", b"-1", b'"10"', b"1e3", b"1.0", b"true", b"[1]"])
@in_loop
async def test_a_cap_that_is_no_whole_number_over_zero_is_refused_by_name(name, cap):
    async with scripted(answering(completion())) as upstream, relaying(in_order(target_on(upstream, "a"))) as bench:
        reply = await bench.post(CHAT, CHAT_BODY % (b',"%s":%s' % (name.encode(), cap)))
    assert (reply.status, reply.json()["error"]["param"], reply.json()["error"]["code"]) == (
        400,
        name,
        "invalid_request",
    )
    assert upstream.connections == []


@pytest.mark.parametrize("cap", [b"0", b"-1", b'"10"', b"1e3", b"null"])
@in_loop
async def test_messages_asks_for_a_cap_and_reads_it_the_same_way(cap):
    async with (
        scripted(answering(message())) as upstream,
        relaying(in_order(target_on(upstream, "a", dialect="anthropic"))) as bench,
    ):
        reply = await bench.post(MESSAGES, b'{"model":"g","max_tokens":%s,"messages":[{"role":"user"}]}' % cap)
    assert (reply.status, reply.json()["error"]["type"]) == (400, "invalid_request_error")
    assert "max_tokens" in reply.json()["error"]["message"]
    assert upstream.connections == []


@in_loop
async def test_a_cap_even_of_one_goes_only_to_targets_that_keep_it():
    async with (
        scripted(answering(completion("a"))) as a,
        scripted(answering(completion("b"))) as b,
        relaying(
            in_order(target_on(a, "a", honors_max_tokens=False), target_on(b, "b")),
            in_order(target_on(a, "a", honors_max_tokens=False), name="alone"),
        ) as bench,
    ):
        capped = await bench.post(CHAT, {**HI, "max_completion_tokens": 1})
        assert [(e.target, e.reason) for e in bench.end.exclusions] == [("a", "output_cap_not_honoured")]
        free = await bench.post(CHAT, HI)
        alone = await bench.post(CHAT, {**HI, "model": "alone", "max_completion_tokens": 1})
    assert (capped.json(), free.json()) == (completion("b"), completion("a"))
    assert (alone.status, alone.json()["error"]["code"]) == (400, "no_eligible_target")
    assert "cap on output tokens" in alone.json()["error"]["message"]


# Numbers, unknown fields, bytes.


@pytest.mark.parametrize(("path", "body"), [(CHAT, CHAT_BODY), (MESSAGES, MESSAGES_BODY)])
@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e400", b"-1e400"])
@pytest.mark.parametrize(
    "place",
    [
        b',"temperature":%s',
        b',"tools":[{"type":"function","name":"f","input_schema":{"properties":{"x":{"maximum":%s}}}}]',
    ],
)
@in_loop
async def test_numbers_that_are_none_are_refused_wherever_they_stand(path, body, number, place):
    async with (
        scripted(answering(completion())) as upstream,
        relaying(in_order(target_on(upstream, "a")), in_order(target_on(upstream, "b"), name="h")) as bench,
    ):
        reply = await bench.post(path, body % (place % number))
    assert (reply.status, reply.json()["error"]["type"]) == (400, "invalid_request_error")
    assert bench.end.error_code == "invalid_json"
    assert upstream.connections == []


UNKNOWN = (
    b' , "foo" : {"a":1, "b":[1.0, 1e2, -0.0]},\n  "seed":12345678901234567890,"top_p":1.0,'
    b'"metadata":{"z":"\\u00e9\\/","\\u0061":null}'
)


@pytest.mark.parametrize(
    ("path", "dialect", "body", "answer"),
    [(CHAT, "openai-chat", CHAT_BODY, completion()), (MESSAGES, "anthropic", MESSAGES_BODY, message())],
)
@in_loop
async def test_a_body_arrives_byte_for_byte_but_for_the_models_name(path, dialect: Dialect, body, answer):
    sent = (body % UNKNOWN).replace(b'"hi"', b'[{"type":"hologram","beam":{"w":1.0}},{"type":"text","text":"hi"}]')
    async with (
        scripted(answering(answer)) as upstream,
        relaying(in_order(target_on(upstream, "a", dialect=dialect, model="vendor/x-1"))) as bench,
    ):
        reply = await bench.post(path, sent)
    assert reply.status == 200
    assert upstream.requests[0].body == sent.replace(b'"g"', b'"vendor/x-1"')
    assert upstream.requests[0].header(b"content-length") == str(len(upstream.requests[0].body)).encode()


@in_loop
async def test_a_body_in_many_pieces_is_put_together():
    sent = CHAT_BODY % UNKNOWN
    async with scripted(answering(completion())) as upstream, relaying(in_order(target_on(upstream, "a"))) as bench:
        reply = await bench.call(CHAT, sent, pieces=len(sent)).answered()
    assert reply.status == 200
    assert upstream.requests[0].body == sent.replace(b'"g"', b'"a"')
    assert bench.end.request_bytes == len(sent)


def large(model: bytes, megabytes: int) -> bytes:
    """A body of many turns with an image of a megabyte each."""
    image = b'{"type":"image_url","image_url":{"url":"data:image/png;base64,%s"}}' % (b"QUJD" * 262_144)
    turn = b'{"role":"user","content":[{"type":"text","text":"\xc3\xa9 \\u00e9"},%s]}' % image
    return b'{"messages": [%s],\n"model" : "%s","seed":12345678901234567890}' % (b" , ".join([turn] * megabytes), model)


@in_loop
async def test_a_body_of_megabytes_arrives_byte_for_byte_but_for_the_models_name():
    async with (
        scripted(answering(completion())) as upstream,
        relaying(in_order(target_on(upstream, "a", input_modalities=frozenset({"text", "image"})))) as bench,
    ):
        reply = await bench.call(CHAT, large(b"g", 4), pieces=64).answered()
    assert reply.status == 200
    assert upstream.requests[0].body == large(b"a", 4)
    assert bench.end.image_count == 4


@in_loop
async def test_a_body_of_megabytes_is_read_in_steps_that_let_others_run():
    async with scripted(answering(completion())) as upstream, relaying(in_order(target_on(upstream, "a"))) as bench:
        turns: list[int] = []
        for megabytes in (0, 8):
            body = large(b"nobody", megabytes) if megabytes else json.dumps({**HI, "model": "nobody"}).encode()
            call = bench.call(CHAT, body)
            count = 0
            while not call.task.done():
                count += 1
                await asyncio.sleep(0)
            turns.append(count)
            assert (await call.answered()).status == 404
    assert turns[0] <= 3
    assert turns[1] >= 8


# Header fields.


def fields(request: Received) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in request.headers}


@in_loop
async def test_what_a_provider_sees_of_a_callers_header_fields():
    sent = [
        (b"host", b"evil.example"),
        (b"connection", b"keep-alive, X-Secret"),
        (b"x-secret", b"1"),
        (b"proxy-authorization", b"Basic eDp5"),
        (b"te", b"trailers"),
        (b"upgrade", b"websocket"),
        (b"x-api-key", b"plt_other"),
        (b"cookie", b"session=1"),
        (b"accept-encoding", b"br, gzip"),
        (b"openai-organization", b"org-mine"),
        (b"x-pilotage-target", b"b"),
        (b"user-agent", b"SDK/1.0"),
        (b"x-stainless-lang", b"python"),
        (b"x-unknown", b"kept as it is"),
    ]
    async with (
        scripted(answering(completion())) as upstream,
        relaying(
            in_order(target_on(upstream, "a", provider={"api_key": "sk-ours", "headers": (("x-team", "ml"),)}))
        ) as bench,
    ):
        reply = await bench.post(CHAT, HI, headers=[*sent, (b"x-team", b"callers")], query=b"beta=1&key=v")
    assert reply.status == 200
    request = upstream.requests[0]
    assert request.line == b"POST /v1/chat/completions HTTP/1.1"
    assert fields(request) == {
        "host": f"127.0.0.1:{upstream.port}",
        "authorization": "Bearer sk-ours",
        "accept-encoding": "identity",
        "content-type": "application/json",
        "content-length": str(len(request.body)),
        "user-agent": "SDK/1.0",
        "x-stainless-lang": "python",
        "x-unknown": "kept as it is",
        "x-team": "ml",
    }
    assert len(request.headers) == len(fields(request))


@in_loop
async def test_a_provider_without_a_credential_gets_none():
    async with scripted(answering(completion())) as upstream, relaying(in_order(target_on(upstream, "a"))) as bench:
        await bench.post(CHAT, HI, headers=[(b"x-api-key", b"anything")])
    assert not {"authorization", "x-api-key"} & set(fields(upstream.requests[0]))


@in_loop
async def test_messages_go_out_with_their_betas_and_a_version():
    async with (
        scripted(answering(message())) as upstream,
        relaying(
            in_order(target_on(upstream, "a", dialect="anthropic", provider={"api_key": "k", "auth": "x-api-key"}))
        ) as bench,
    ):
        await bench.post(MESSAGES, ASK, query=b"x=1&beta=true")
        betas = [(b"anthropic-beta", b"a-2025,b-2025"), (b"anthropic-beta", b"c-2025")]
        await bench.post(MESSAGES, ASK, headers=[(b"anthropic-version", b"2099-01-01"), *betas])
    first, second = upstream.requests
    assert (first.line, second.line) == (b"POST /v1/messages?beta=true HTTP/1.1", b"POST /v1/messages HTTP/1.1")
    assert (first.header(b"anthropic-version"), second.header(b"anthropic-version")) == (b"2023-06-01", b"2099-01-01")
    assert [field for field in second.headers if field[0] == b"anthropic-beta"] == betas
    assert (first.header(b"x-api-key"), first.header(b"authorization")) == (b"k", None)


@in_loop
async def test_a_client_sees_nothing_of_a_providers_account_or_servers():
    told = [
        ("set-cookie", "a=b"),
        ("server", "upstream/1"),
        ("via", "1.1 proxy"),
        ("openai-organization", "org-ours"),
        ("x-ratelimit-remaining-requests", "9"),
        ("anthropic-ratelimit-tokens-remaining", "9"),
        ("x-request-id", "theirs"),
        ("connection", "x-hop"),
        ("x-hop", "1"),
        ("openai-processing-ms", "12"),
    ]
    async with (
        scripted(answering(completion(), headers=told)) as upstream,
        relaying(in_order(target_on(upstream, "a"))) as bench,
    ):
        reply = await bench.post(CHAT, HI)
    assert {name: value for name, value in reply.headers if name != b"content-length"} == {
        b"content-type": b"application/json",
        b"openai-processing-ms": b"12",
        b"x-request-id": bench.end.id.encode(),
    }


@in_loop
async def test_every_answer_of_messages_has_the_request_id_under_both_names():
    async with (
        scripted(answering(message())) as upstream,
        relaying(in_order(target_on(upstream, "a", dialect="anthropic"))) as bench,
    ):
        reply = await bench.post(MESSAGES, ASK)
        refused = await bench.post(MESSAGES, {**ASK, "model": "nobody"})
    assert reply.header("request-id") == reply.header("x-request-id") == bench.kept.ends[0].id
    assert refused.header("request-id") == refused.header("x-request-id") == bench.kept.ends[1].id


def test_ids_are_told_apart_in_a_process_and_in_its_child() -> None:
    own = [new_id() for _ in range(2 * IDS_AT_ONCE + 1)]
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, new_id().encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with open(reading, encoding="ascii") as pipe:
        theirs = pipe.read()
    ids = [*own, theirs, new_id()]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch("req_[0-9a-f]{32}", id) for id in ids)
