"""Which conversation a request belongs to."""

import json
from typing import Any

import pytest

from gateway.dialects import anthropic_messages, openai_chat
from gateway.dialects.conversation import explicit_id, key_of
from routing.core.catalog import AffinityPolicy

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Hello?"}
ANSWER = {"role": "assistant", "content": "Yes?"}
MARK = {"cache_control": {"type": "ephemeral"}}


def chat_key(
    *messages: Any, headers: dict[bytes, bytes] | None = None, caller: str = "ann", **members: Any
) -> bytes | None:
    call = openai_chat.decode(json.dumps({"model": "g", "messages": messages, **members}).encode())
    return key_of(call, headers=headers or {}, caller=caller, group="g", policy=AffinityPolicy())


def messages_key(*messages: Any, headers: dict[bytes, bytes] | None = None, **members: Any) -> bytes | None:
    content = {"model": "g", "max_tokens": 1, "messages": messages, **members}
    call = anthropic_messages.decode(json.dumps(content).encode())
    return key_of(call, headers=headers or {}, caller="ann", group="g", policy=AffinityPolicy())


def test_later_turns_keep_the_key_of_the_first() -> None:
    first = chat_key(SYSTEM, USER)
    assert first is not None
    assert chat_key(SYSTEM, USER, ANSWER, {"role": "user", "content": "More."}) == first
    assert chat_key(SYSTEM, USER, ANSWER, {"role": "user", "content": "More."}, tools=[{}], temperature=1) == first


def test_another_beginning_caller_or_cache_key_is_another_conversation() -> None:
    keys = {
        chat_key(SYSTEM, USER),
        chat_key(USER),
        chat_key(SYSTEM, {"role": "user", "content": "Hello!"}),
        chat_key(SYSTEM, USER, USER),
        chat_key(SYSTEM, {"role": "user", "content": ["Hello?", ""]}),
        chat_key(SYSTEM, USER, caller="bob"),
        chat_key(SYSTEM, USER, prompt_cache_key="k"),
        chat_key({"role": "user", "content": "Be brief."}, USER),
        messages_key(USER, system="Be brief."),
    }
    assert len(keys) == 9
    assert None not in keys


def test_spellings_that_mean_the_same_have_one_key() -> None:
    plain = chat_key(SYSTEM, USER)
    assert chat_key({"role": "developer", "content": "Be brief."}, USER) == plain
    assert chat_key(SYSTEM, {"role": "user", "content": [{"type": "text", "text": "Hello?"}]}) == plain
    assert chat_key(SYSTEM, {"role": "user", "content": [{"type": "input_text", "text": "Hello?", **MARK}]}) == plain
    assert chat_key(SYSTEM, {**USER, "id": "msg_1"}) == plain
    native = messages_key(USER, system="Be brief.")
    assert messages_key(USER, system=[{"type": "text", "text": "Be brief.", **MARK}]) == native
    assert messages_key(USER) == messages_key(USER, system="") == messages_key(USER, system=[])


def test_cache_marks_and_ids_of_parts_do_not_count_at_any_depth() -> None:
    def key(inner: dict[str, Any], outer: dict[str, Any], url: str = "u") -> bytes | None:
        result = {"type": "tool_result", "content": [{"type": "image", "source": {"url": url}, **inner}], **outer}
        return messages_key({"role": "user", "content": [result]})

    assert key({}, {}) == key(MARK, {**MARK, "id": "i_1"})
    assert key({}, {}) != key({}, {}, url="other")


def test_the_billing_header_of_claude_code_does_not_count() -> None:
    def key(version: str) -> bytes | None:
        header = {"type": "text", "text": f"x-anthropic-billing-header: cc_version={version};"}
        return messages_key(USER, system=[header, {"type": "text", "text": "You are."}])

    assert key("1") == key("2") == messages_key(USER, system="You are.")


def test_system_messages_before_the_first_answer_belong_to_the_beginning() -> None:
    note = {"role": "system", "content": "Note."}
    assert messages_key(USER, note, ANSWER, USER) == messages_key(USER, note)
    assert messages_key(USER, note) != messages_key(USER)


def test_a_greeting_by_the_model_is_no_conversation_by_itself() -> None:
    greeting = {"role": "assistant", "content": "How can I help?"}
    first = chat_key(SYSTEM, greeting, USER)
    assert chat_key(SYSTEM, greeting, USER, ANSWER, USER) == first
    assert chat_key(SYSTEM, greeting, {"role": "user", "content": "Other."}) != first


SESSION = {b"x-session-id": b"s1"}


def test_an_explicit_id_replaces_the_beginning() -> None:
    assert chat_key(USER, headers=SESSION) == chat_key(SYSTEM, ANSWER, headers=SESSION, prompt_cache_key="k")
    assert chat_key(USER, headers=SESSION) != chat_key(USER)
    assert chat_key(USER, headers=SESSION) != chat_key(USER, headers=SESSION, caller="bob")


def the_id(headers: dict[bytes, bytes], metadata: Any = None, session_header: str | None = None) -> str | None:
    body = json.dumps({"model": "g", "messages": [USER], "metadata": metadata}).encode()
    return explicit_id(openai_chat.decode(body), headers, session_header)


def test_ids_count_in_a_fixed_order() -> None:
    names = [
        b"x-mine",
        b"x-claude-code-session-id",
        b"x-session-affinity",
        b"x-session-id",
        b"session-id",
        b"session_id",
        b"thread-id",
    ]
    headers = {name: name for name in reversed(names)}
    for name in names:
        assert the_id(headers, {"user_id": '{"session_id":"m"}'}, "x-mine") == name.decode()
        del headers[name]
    assert the_id(headers, {"user_id": '{"session_id":"m"}'}, "x-mine") == "m"
    assert the_id({b"x-mine": b"1"}) is None


@pytest.mark.parametrize("bad", [b"", b"x" * 257, b"a\x00b", b"a\tb", b"\x80"])
def test_an_id_that_is_none_gives_way_to_the_next(bad: bytes) -> None:
    assert the_id({b"x-session-id": bad}) is None
    assert the_id({b"x-session-id": bad, b"thread-id": b"t"}) == "t"
    assert the_id({b"x-mine": bad, b"thread-id": b"t"}, session_header="x-mine") == "t"


def test_an_id_may_have_256_characters() -> None:
    assert the_id({b"x-session-id": b"x" * 256}) == "x" * 256


@pytest.mark.parametrize(
    ("user_id", "expected"),
    [
        ('{"device_id":"d","account_uuid":"","session_id":"680d1e9f-93ae"}', "680d1e9f-93ae"),
        ("user_d76e_account__session_680d1e9f-93ae", "680d1e9f-93ae"),
        ("user_d76e_account_a_session_b_session_680d", "680d"),
        ('{"session_id":7}', None),
        ('{"session_id":""}', None),
        ('{"device_id":"d"}', None),
        ("{broken", None),
        ("user_d76e", None),
        ("user_d76e_session_", None),
        ("_session_" + "x" * 257, None),
        (7, None),
        (None, None),
    ],
)
def test_a_session_inside_the_users_id_is_found(user_id: Any, expected: str | None) -> None:
    assert the_id({}, {"user_id": user_id}) == expected
    assert the_id({}, [user_id]) is None


def test_a_beginning_of_many_megabytes_counts_up_to_a_bound() -> None:
    def turn(*texts: str) -> bytes | None:
        return chat_key({"role": "user", "content": [{"type": "text", "text": text} for text in texts]})

    long = "x" * 3 * 1024 * 1024
    assert turn(long, "a") != turn(long, "b")
    assert turn(long, long, "a") == turn(long, long, "b")
    assert turn(long, long + "a") != turn(long, long + "b")

    def turns(*texts: str) -> bytes | None:
        return chat_key(*({"role": "user", "content": text} for text in texts))

    assert turns(long, "a") != turns(long, "b")
    assert turns(long, long, "a") == turns(long, long, "b")
