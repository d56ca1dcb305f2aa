"""Messages requests, token counts, answers and errors."""

import json

import pytest

from gateway.dialects import anthropic_messages
from gateway.dialects.neutral import Answer, BadRequest, MalformedAnswer, Usage
from gateway.dialects.registry import BY_NAME
from tests.support.documents import some_target

REQUEST = b'{"model":"g","max_tokens":64,"messages":[{"role":"user","content":"hi"}],"stream":true}'


def test_a_request_is_decoded() -> None:
    call = anthropic_messages.decode(REQUEST)
    assert (call.dialect, call.model, call.stream, call.body) == ("anthropic", "g", True, REQUEST)
    assert call.content == json.loads(REQUEST)
    assert list(anthropic_messages.decoding(REQUEST)) == [call]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (REQUEST.replace(b'"model":"g",', b""), "model"),
        (REQUEST.replace(b'"hi"}]', b'"hi"},7]'), "messages"),
        (REQUEST.replace(b"true", b'"yes"'), "stream"),
        (REQUEST.replace(b'"max_tokens":64,', b""), "max_tokens"),
        (REQUEST.replace(b"64", b"null"), "max_tokens"),
        (REQUEST.replace(b"64", b"0"), "max_tokens"),
        (REQUEST.replace(b"64", b"-1"), "max_tokens"),
        (REQUEST.replace(b"64", b'"10"'), "max_tokens"),
        (REQUEST.replace(b"64", b"1e3"), "max_tokens"),
    ],
)
def test_a_body_that_no_target_can_serve_names_its_field(body: bytes, param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        anthropic_messages.decode(body)
    assert caught.value.param == param


def test_a_count_needs_no_cap_and_is_no_stream() -> None:
    body = REQUEST.replace(b'"max_tokens":64,', b"")
    call = anthropic_messages.decode_count(body)
    assert (call.model, call.stream) == ("g", False)
    assert list(anthropic_messages.decoding_count(body)) == [call]
    with pytest.raises(BadRequest) as caught:
        anthropic_messages.decode_count(REQUEST.replace(b"64", b"0"))
    assert caught.value.param == "max_tokens"


def test_only_the_model_changes_on_the_way_up() -> None:
    body = (
        b'{ "max_tokens": 64, "top_k":12345678901234567890, "model":"g", "temperature":1.0, "foo":{"model":"x"},'
        b'"system":[{"type":"text","text":"a","cache_control":{"type":"ephemeral","ttl":"1h"}}],'
        b'"messages":[{"role":"assistant","content":[{"type":"thinking","thinking":"","signature":"c2ln"},'
        b'{"type":"redacted_thinking","data":"b3BhcXVl"}]},{"role":"system","content":"x"}] }'
    )
    target = some_target("up", renames_developer_role=True, drops_stream_options=True, output_token_field="max_tokens")
    assert anthropic_messages.upstream_body(anthropic_messages.decode(body), target) == body.replace(b'"g"', b'"up"')


def test_an_answer_gives_its_usage_and_the_size_of_what_was_generated() -> None:
    body = {
        "type": "message",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
            {"type": "text", "text": "é"},
            {"type": "tool_use", "name": "f", "input": {"x": 1}},
            {"type": "hologram", "x": 1},
        ],
        "usage": {"input_tokens": 5, "output_tokens": 2},
    }
    usage = Usage(input_tokens=5, output_tokens=2, quality="reported")
    assert anthropic_messages.read_answer(json.dumps(body).encode()) == Answer(usage=usage, output_bytes=2 + 2 + 7)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"null",
        b"{}",
        b'{"type":"message"}',
        b'{"type":"message","content":"x"}',
        b'{"content":[]}',
        b'{"type":"error","error":{"type":"overloaded_error","message":"x"}}',
        b'{"error":{"message":"x"}}',
    ],
)
def test_what_is_no_message_is_malformed(body: bytes) -> None:
    with pytest.raises(MalformedAnswer):
        anthropic_messages.read_answer(body)


def test_a_message_without_content_is_an_answer() -> None:
    assert anthropic_messages.read_answer(b'{"type":"message","content":[]}') == Answer(usage=Usage(), output_bytes=0)


def test_a_count_is_read() -> None:
    assert anthropic_messages.read_count(b'{"input_tokens":14,"new":1}') == 14
    for bad in (b"", b"{}", b"14", b'{"input_tokens":"14"}', b'{"input_tokens":-1}', b'{"error":{}}'):
        with pytest.raises(MalformedAnswer):
            anthropic_messages.read_count(bad)


@pytest.mark.parametrize(
    ("status", "given", "shown"),
    [
        (401, "authentication_error", "authentication_error"),
        (503, "overloaded_error", "overloaded_error"),
        (413, "request_too_large", "request_too_large"),
        (429, "insufficient_quota", "rate_limit_error"),
        (529, "server_error", "overloaded_error"),
        (502, "upstream_error", "api_error"),
        (418, "teapot", "api_error"),
    ],
)
def test_errors_are_in_the_dialects_words(status: int, given: str, shown: str) -> None:
    body = anthropic_messages.error(
        status=status, type=given, code="some_code", message="No.", param="model", request_id="r1"
    )
    assert json.loads(body) == {"type": "error", "error": {"type": shown, "message": "No."}, "request_id": "r1"}


@pytest.mark.parametrize(
    ("code", "shown"), [("upstream_stream_truncated", "api_error"), ("upstream_overloaded", "overloaded_error")]
)
def test_an_error_inside_a_stream_is_one_event(code: str, shown: str) -> None:
    event = anthropic_messages.error_event(code=code, message="Cut\n.", request_id="r1")
    name, data, *rest = event.split(b"\n")
    assert (name, rest) == (b"event: error", [b"", b""])
    assert json.loads(data.removeprefix(b"data: ")) == {
        "type": "error",
        "error": {"type": shown, "message": "Cut\n."},
        "request_id": "r1",
    }


def test_the_model_shown_can_be_the_groups() -> None:
    answer = b'{"id":"1", "model": "up", "content":[]}'
    assert anthropic_messages.answer_with_model(answer, "g") == b'{"id":"1", "model": "g", "content":[]}'
    start = b'event: message_start\ndata: {"type":"message_start","message":{"id":"1","model":"up"}}\n\n'
    assert anthropic_messages.event_with_model(start, "g") == start.replace(b'"up"', b'"g"')
    delta = b'event: content_block_delta\ndata: {"type":"content_block_delta","model":"up"}\n\n'
    assert anthropic_messages.event_with_model(delta, "g") == delta


def test_the_dialects_are_found_by_name() -> None:
    assert {name: module.PATH for name, module in BY_NAME.items()} == {
        "openai-chat": "/chat/completions",
        "anthropic": "/messages",
    }
    assert {name: module.NAME for name, module in BY_NAME.items()} == {name: name for name in BY_NAME}
