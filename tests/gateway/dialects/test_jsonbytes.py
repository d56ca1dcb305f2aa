"""Reading a body strictly and changing single members of it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.jsonbytes import (
    STEP_BYTES,
    join,
    object_in_steps,
    object_of,
    split,
    with_inner,
    with_model,
    with_model_shown,
    with_values,
)
from gateway.dialects.neutral import BadRequest


@pytest.mark.parametrize(
    ("body", "meaning"),
    [
        (b'{"a":NaN}', "invalid character"),
        (b'{"a":-Infinity}', "invalid"),
        (b'{"tools":[{"x":1e400}]}', "not finite"),
        (b'{"a":' + b"1" * 5_000 + b"}", "too many digits"),
        (b'{"a":"\xff"}', "UTF-8"),
        (b'{"a":"\x01"}', "invalid character"),
        (rb'{"a":"\ud800"}', "surrogate"),
        (rb'{"a":"\ud800\u0041"}', "surrogate"),
        (rb'{"a":"\udc00 "}', "surrogate"),
        (b'{"a":1', "ends too early"),
        (b"", "ends too early"),
        (b'{"a":1}x', "trailing"),
        (b"[" * 100_000, "nested"),
        (b'{"a":' * 100_000, "nested"),
        (b"<html>", "invalid character"),
    ],
)
def test_what_is_not_json_is_refused_with_its_fault(body: bytes, meaning: str) -> None:
    for read in (object_of, lambda body: list(object_in_steps(body))):
        with pytest.raises(BadRequest, match=meaning) as caught:
            read(body)
        assert caught.value.code == "invalid_json"


@pytest.mark.parametrize("body", [b"null", b"[]", b'"a"', b"1"])
def test_only_an_object_is_a_request(body: bytes) -> None:
    with pytest.raises(BadRequest, match="must be a JSON object"):
        object_of(body)


def test_big_integers_and_pairs_of_surrogates_pass() -> None:
    body = rb'{"seed":12345678901234567890123,"a":"\ud83d\ude00","b":1.0,"c":"\u0000"}'
    assert object_of(body) == {"seed": 12345678901234567890123, "a": "😀", "b": 1.0, "c": "\0"}


def test_a_large_body_is_read_in_steps_to_the_same_object() -> None:
    part = {"type": "text", "text": "x" * 10_000, "é": [1, {"a": None}]}
    content: dict[str, Any] = {
        "model": "g",
        "messages": [{"role": "user", "content": [part] * 300}, {"role": "user", "content": ""}],
    }
    content["deep"] = {"a": {"b": {"c": {"d": ["y" * 1_000] * 1_500}}}}
    body = json.dumps(content).encode()
    *pauses, last = object_in_steps(b" " + body + b"\n")
    assert last == content
    assert len(pauses) >= len(body) // STEP_BYTES


KEYS = st.sampled_from(["model", "messages", "stream", "é", "", 'q"uote', "back\\", "a"])
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.text(max_size=6)
    | st.sampled_from(["model", '"model"', '"model":"x"', "}"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
SPACE = st.sampled_from(["", "", " ", "\n\t", "\r\n  "])


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """An object with a model somewhere, keys twice, white space anywhere, escapes in keys."""
    members = draw(st.lists(st.tuples(KEYS, VALUES), max_size=5))
    members.insert(draw(st.integers(0, len(members))), ("model", draw(st.text(max_size=5))))
    written = []
    for key, value in members:
        spelled = json.dumps(key, ensure_ascii=draw(st.booleans()))
        if draw(st.integers(0, 5)) == 0:
            spelled = '"' + "".join(f"\\u{ord(letter):04x}" for letter in key) + '"'
        gap = [draw(SPACE) for _ in range(4)]
        written.append(
            f"{gap[0]}{spelled}{gap[1]}:{gap[2]}{json.dumps(value, ensure_ascii=draw(st.booleans()))}{gap[3]}"
        )
    return (draw(SPACE) + "{" + ",".join(written) + "}" + draw(SPACE)).encode()


def pairs(body: bytes) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = json.loads(body, object_pairs_hook=lambda pairs: pairs)
    return found


@given(bodies())
def test_only_the_model_changes_whatever_the_body_looks_like(body: bytes) -> None:
    changed = with_model(body, b'"new"')
    expected = {**json.loads(body), "model": "new"}
    assert json.loads(changed) == expected
    assert [key for key, _ in pairs(changed) if key == "model"] == ["model"], (
        "no second model is left for another parser"
    )
    assert json.loads(with_values(body, {"model": b'"new"'})) == expected
    assert list(json.loads(changed)) == list(json.loads(body))


@given(bodies())
def test_members_can_be_replaced_and_added_at_once(body: bytes) -> None:
    expected = {**json.loads(body), "a": 1, "model": "new", "new": [2]}
    assert json.loads(with_values(body, {"a": b"1", "model": b'"new"', "new": b"[2]"})) == expected
    added = json.loads(with_model(body, b'"new"', b',"other":[2]'))
    assert added == {**json.loads(body), "model": "new", "other": [2]}
    assert json.loads(join(split(body))) == json.loads(body)


def test_the_bytes_around_a_changed_value_stay() -> None:
    body = b'\n{ "a" : 1.0 ,\t"model" :"g" , "n":12345678901234567890, "b" : { "model":"x" } } '
    changed = body.replace(b'"g"', b'"other"')
    assert with_values(body, {"model": b'"other"'}) == changed
    assert with_model(body, b'"other"') == changed
    long = body.replace(b"1.0", b'"' + b"y" * 20_000 + b'"')
    assert with_model(long, b'"other"', b',"z":1') == long.replace(b'"g"', b'"other"').replace(b"} } ", b'} ,"z":1} ')


@pytest.mark.parametrize(
    "body",
    [
        rb'{"mod\u0065l":"dear","model":"g"}',
        rb'{"model":"dear","mod\u0065l":"g"}',
        b'{"model":"dear","model":"g"}',
        b'{"model":{"model":"dear"},"model":"g"}',
    ],
)
def test_a_second_spelling_of_the_model_does_not_get_past_us(body: bytes) -> None:
    assert with_model(body, b'"new"') == b'{"model":"new"}'


def test_a_key_that_ends_in_the_word_is_another_key() -> None:
    body = rb'{"x\"model":"a","model":"g"}'
    assert with_model(body, b'"new"') == rb'{"x\"model":"a","model":"new"}'


def test_an_empty_object_takes_members() -> None:
    assert with_values(b"{ }", {"a": b"1", "b": b"2"}) == b'{ "a":1,"b":2}'


def test_the_shown_model_is_changed_only_where_there_is_one() -> None:
    assert with_model_shown(b'{"id":1,"model":"up"}', "g") == b'{"id":1,"model":"g"}'
    assert with_model_shown(b'{"id":1}', "g") == b'{"id":1}'
    assert with_model_shown(b"[DONE]", "g") == b"[DONE]"
    assert with_inner(b'{"m":{"model":"up"}}', "m", lambda m: with_model_shown(m, "g")) == b'{"m":{"model":"g"}}'
