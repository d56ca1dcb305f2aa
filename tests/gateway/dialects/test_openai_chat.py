"""Chat requests, answers and errors."""

import json
from typing import Any

import pytest

from gateway.dialects import openai_chat
from gateway.dialects.neutral import Answer, BadRequest, MalformedAnswer, Usage
from tests.support.documents import some_target

MESSAGES = '"messages":[{"role":"user","content":"hi"}]'


def sent(body: str | bytes, **declared: Any) -> str:
    """What goes upstream to a target called `up`."""
    raw = body.encode() if isinstance(body, str) else body
    return openai_chat.upstream_body(openai_chat.decode(raw), some_target("up", **declared)).decode()


def test_a_request_is_decoded() -> None:
    body = b'{"model":"g","messages":[{"role":"user","content":"hi"}],"stream":true,"foo":{"a":1}}'
    call = openai_chat.decode(body)
    assert (call.dialect, call.model, call.stream, call.body) == ("openai-chat", "g", True, body)
    assert call.content == json.loads(body)
    assert list(openai_chat.decoding(body)) == [call]


@pytest.mark.parametrize("stream", ['"stream":false,', '"stream":null,', ""])
def test_a_stream_is_only_what_says_true(stream: str) -> None:
    assert openai_chat.decode(f'{{{stream}"model":"g",{MESSAGES}}}'.encode()).stream is False


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (f"{{{MESSAGES}}}", "model"),
        (f'{{"model":null,{MESSAGES}}}', "model"),
        (f'{{"model":7,{MESSAGES}}}', "model"),
        (f'{{"model":"",{MESSAGES}}}', "model"),
        ('{"model":"g"}', "messages"),
        ('{"model":"g","messages":null}', "messages"),
        ('{"model":"g","messages":[]}', "messages"),
        ('{"model":"g","messages":{}}', "messages"),
        ('{"model":"g","messages":"hi"}', "messages"),
        ('{"model":"g","messages":["hi"]}', "messages"),
        (f'{{"model":"g",{MESSAGES},"stream":"true"}}', "stream"),
        (f'{{"model":"g",{MESSAGES},"stream":1}}', "stream"),
        ("null", None),
        ("[]", None),
    ],
)
def test_a_body_that_no_target_can_serve_names_its_field(body: str, param: str | None) -> None:
    with pytest.raises(BadRequest) as caught:
        openai_chat.decode(body.encode())
    assert caught.value.param == param


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("cap", ["0", "-1", '"10"', "1e3", "10.0", "true", "[]"])
def test_a_cap_that_is_no_whole_number_over_zero_is_refused(name: str, cap: str) -> None:
    with pytest.raises(BadRequest) as caught:
        openai_chat.decode(f'{{"model":"g",{MESSAGES},"{name}":{cap}}}'.encode())
    assert caught.value.param == name


def test_unknown_fields_parts_and_numbers_arrive_as_they_were_written() -> None:
    body = (
        '{ "seed": 12345678901234567890, "top_p":1.0,\n "model" : "g", "foo":{"a":1,"model":"x"},'
        '"messages":[{"role":"user","content":[{"type":"hologram","data":"\\u00e9"}]}]}\n'
    )
    assert sent(body) == body.replace('"model" : "g"', '"model" : "up"')


def test_usage_is_asked_for_in_every_stream() -> None:
    start = '{"model":"g","stream":true,' + MESSAGES
    up = start.replace('"g"', '"up"')
    assert sent(start + "}") == up + ',"stream_options":{"include_usage":true}}'
    assert sent(start + ',"stream_options":null}') == up + ',"stream_options":{"include_usage":true}}'
    off = ',"stream_options":{"include_usage": false}}'
    assert sent(start + off) == up + ',"stream_options":{"include_usage": true}}'
    on = ',"stream_options":{ "include_usage":true }}'
    assert sent(start + on) == up + on
    other = ',"stream_options":{"include_obfuscation": false}}'
    assert sent(start + other) == up + ',"stream_options":{"include_obfuscation": false,"include_usage":true}}'
    assert sent(start + ',"stream_options":{}}') == up + ',"stream_options":{"include_usage":true}}'


def test_stream_options_stay_away_from_targets_without_them_and_from_unary_requests() -> None:
    start = '{"model":"g","stream":true,' + MESSAGES
    plain = start.replace('"g"', '"up"') + "}"
    assert sent(start + ',"stream_options":{"include_usage":true}}', drops_stream_options=True) == plain
    assert sent(start + "}", drops_stream_options=True) == plain
    unary = f'{{"model":"g","stream_options":{{"include_usage":true}},"stream":false,{MESSAGES}}}'
    assert sent(unary) == f'{{"model":"up","stream":false,{MESSAGES}}}'
    assert sent(f'{{"model":"g","stream_options":null,{MESSAGES}}}') == f'{{"model":"up",{MESSAGES}}}'


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ("", False),
        (',"stream_options":null', False),
        (',"stream_options":{"include_usage":false}', False),
        (',"stream_options":{"include_obfuscation":false}', False),
        (',"stream_options":{"include_usage":true}', True),
    ],
)
def test_the_usage_chunk_is_the_callers_only_when_asked_for(options: str, wanted: bool) -> None:
    call = openai_chat.decode(f'{{"model":"g","stream":true,{MESSAGES}{options}}}'.encode())
    assert openai_chat.wants_usage_chunk(call) is wanted


@pytest.mark.parametrize(
    ("given", "field", "expected"),
    [
        ('"max_completion_tokens":10', "max_tokens", '"max_tokens":10'),
        ('"max_tokens":10', "max_tokens", '"max_tokens":10'),
        ('"max_tokens":10', "max_completion_tokens", '"max_completion_tokens":10'),
        ('"max_tokens":10,"max_completion_tokens":20', "max_tokens", '"max_tokens":20'),
        ('"max_completion_tokens":20,"max_tokens":10', "max_completion_tokens", '"max_completion_tokens":20'),
        ('"max_tokens":10,"max_completion_tokens":10', "max_tokens", '"max_tokens":10'),
        ('"max_tokens":10,"max_completion_tokens":null', "max_completion_tokens", '"max_completion_tokens":10'),
        ('"max_tokens":null,"max_completion_tokens":5', "max_tokens", '"max_tokens":5'),
        ('"max_tokens":null', "max_completion_tokens", '"max_tokens":null'),
        ('"max_tokens":10,"max_completion_tokens":20', None, '"max_tokens":10,"max_completion_tokens":20'),
        ('"top_p":1.0', "max_tokens", '"top_p":1.0'),
    ],
)
def test_a_target_gets_the_cap_under_the_one_name_that_it_takes(given: str, field: str | None, expected: str) -> None:
    body = f'{{"model":"g",{given},{MESSAGES},"z":1}}'
    assert sent(body, output_token_field=field) == f'{{"model":"up",{expected},{MESSAGES},"z":1}}'


def test_the_developer_role_becomes_system_where_it_is_not_known() -> None:
    body = (
        '{"model":"g","messages":[ {"role":"developer","content":"a"}, '
        '{ "content":1.0, "role" : "developer" } , {"role":"user","content":"developer"}],"stream":true}'
    )
    changed = (
        '{"model":"up","messages":[{"role":"system","content":"a"},'
        '{ "content":1.0, "role" : "system" },{"role":"user","content":"developer"}],"stream":true}'
    )
    assert sent(body, renames_developer_role=True, drops_stream_options=True) == changed
    assert sent(body, drops_stream_options=True) == body.replace('"g"', '"up"')


def test_everything_that_a_target_declares_is_applied_at_once() -> None:
    body = (
        '{"stream":true,"max_completion_tokens":5,"stream_options":{},"mod\\u0065l":"x","model":"g",'
        '"messages":[{"role":"developer","content":"a"}]}'
    )
    out = sent(body, renames_developer_role=True, drops_stream_options=True, output_token_field="max_tokens")
    assert out == '{"stream":true,"max_tokens":5,"model":"up","messages":[{"role":"system","content":"a"}]}'


def test_an_answer_gives_its_usage_and_the_size_of_what_was_generated() -> None:
    body = {
        "object": "chat.completion",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "é日", "reasoning_content": "abc"}},
            {"message": {"content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}], "new": 1}},
        ],
        "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
    }
    usage = Usage(input_tokens=5, output_tokens=2, quality="reported")
    assert openai_chat.read_answer(json.dumps(body).encode()) == Answer(usage=usage, output_bytes=5 + 3 + 2)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>busy</html>",
        b"null",
        b"[]",
        b"{}",
        b'{"choices":[]}',
        b'{"choices":null}',
        b'{"choices":{}}',
        b'{"error":{"message":"boom"}}',
        b'{"error":{"message":"boom"},"choices":[{"message":{"content":"x"}}]}',
        b'{"choices":[{"message":{"content":"x"}}]',
    ],
)
def test_what_is_no_completion_is_malformed(body: bytes) -> None:
    with pytest.raises(MalformedAnswer):
        openai_chat.read_answer(body)


def test_half_a_surrogate_pair_from_a_provider_is_no_fault() -> None:
    answer = openai_chat.read_answer(rb'{"choices":[{"message":{"content":"\ud83d"}}]}')
    assert answer == Answer(usage=Usage(), output_bytes=3)


def test_errors_are_in_the_dialects_words() -> None:
    body = openai_chat.error(
        status=404, type="not_found_error", code="model_not_found", message="No.", param="model", request_id="r1"
    )
    assert json.loads(body) == {
        "error": {"message": "No.", "type": "not_found_error", "param": "model", "code": "model_not_found"}
    }
    event = openai_chat.error_event(code="upstream_stream_truncated", message="Cut\n.", request_id="r1")
    assert event.startswith(b"data: {")
    assert event.endswith(b"}\n\n")
    assert json.loads(event[6:]) == {
        "error": {
            "message": "Cut\n.",
            "type": "upstream_error",
            "param": None,
            "code": "upstream_stream_truncated",
        }
    }
    assert openai_chat.keepalive() == b": keepalive\n\n"


def test_the_model_shown_can_be_the_groups() -> None:
    answer = b'{"id":"1", "model": "up", "choices":[{"model":"up"}]}'
    assert openai_chat.answer_with_model(answer, "g") == b'{"id":"1", "model": "g", "choices":[{"model":"up"}]}'
    event = b'data: {"id":"1","model":"up","choices":[]}\n\n'
    assert openai_chat.event_with_model(event, "g") == b'data: {"id":"1","model":"g","choices":[]}\n\n'
    for other in (b"data: [DONE]\n\n", b": note\n\n", b'data: {"id":"1"}\n\n'):
        assert openai_chat.event_with_model(other, "g") == other
