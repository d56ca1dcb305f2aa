"""What real clients send is accepted, passed on unchanged, and kept in its conversation."""

import json
from collections import defaultdict
from typing import Any

import pytest

from gateway.dialects import anthropic_messages, openai_chat
from gateway.dialects.conversation import explicit_id, prefix
from gateway.dialects.neutral import Call
from gateway.dialects.shape import shape_of
from tests.support.captures import Capture, captures
from tests.support.documents import some_group, some_target

REQUESTS = [each for each in captures() if each.content is not None]
TARGET = some_target("up")


def decode(capture: Capture) -> Call:
    if capture.endpoint == "chat":
        return openai_chat.decode(capture.body)
    if capture.endpoint == "count_tokens":
        return anthropic_messages.decode_count(capture.body)
    return anthropic_messages.decode(capture.body)


def pairs(body: bytes) -> Any:
    """Members with their order."""
    return json.loads(body, object_pairs_hook=lambda members: ("object", members))


def test_there_are_captures_of_every_endpoint() -> None:
    counted: dict[str, int] = defaultdict(int)
    for capture in captures():
        counted[capture.endpoint] += 1
    assert counted == {"chat": 37, "messages": 46, "count_tokens": 1, "models": 3, "root": 9}


@pytest.mark.parametrize("capture", REQUESTS, ids=lambda capture: capture.name)
def test_a_body_goes_up_with_its_values_and_their_order(capture: Capture) -> None:
    call = decode(capture)
    dialect = openai_chat if capture.endpoint == "chat" else anthropic_messages
    assert capture.content is not None
    expected = {**capture.content, "model": "up"}
    if capture.endpoint == "chat" and capture.content.get("stream"):
        expected["stream_options"] = {**capture.content.get("stream_options", {}), "include_usage": True}
    elif capture.endpoint == "chat":
        expected.pop("stream_options", None)
    assert pairs(dialect.upstream_body(call, TARGET)) == pairs(json.dumps(expected).encode())


@pytest.mark.parametrize("capture", REQUESTS, ids=lambda capture: capture.name)
def test_its_shape_is_known(capture: Capture) -> None:
    call = decode(capture)
    shape = shape_of(call, headers=capture.lower_headers, caller="ann", group=some_group())
    content = capture.content
    assert content is not None
    assert shape.request_bytes == len(capture.body)
    assert shape.tool_count == len(content.get("tools", []))
    assert 0 < shape.text_bytes < len(capture.body)
    assert shape.conversation_key is not None
    assert not shape.hosted_tools


def keys_of(folder: str, *, named: bool) -> dict[str, set[bytes | None]]:
    """The keys of a folder's conversations, by explicit id or, where that is left out, by how each begins."""
    keys: dict[str, set[bytes | None]] = defaultdict(set)
    for capture in REQUESTS:
        if capture.folder != folder:
            continue
        call = decode(capture)
        headers = capture.lower_headers if named else {}
        if not named:
            call.content.pop("metadata", None)
        conversation = explicit_id(call, headers, None) or f"{call.dialect} {b' '.join(prefix(call))[-2_000:]!r}"
        keys[conversation].add(shape_of(call, headers=headers, caller="ann", group=some_group()).conversation_key)
    return keys


@pytest.mark.parametrize("folder", sorted({capture.folder for capture in REQUESTS}))
@pytest.mark.parametrize("named", [True, False])
def test_a_conversation_has_one_key_and_no_two_share_it(folder: str, named: bool) -> None:
    keys = keys_of(folder, named=named)
    assert all(len(found) == 1 for found in keys.values())
    assert len(set.union(*keys.values())) == len(keys)


@pytest.mark.parametrize(
    ("folder", "first", "later"),
    [
        ("claude-code", "002", ["003", "005"]),
        ("claude-code/compact", "002", ["003", "005"]),
        ("claude-code/subagent", "002", ["004"]),
        ("claude-code/tui", "003", ["004", "005"]),
        ("cline", "001", ["002"]),
        ("continue/anthropic", "001", ["002", "003"]),
        ("langchain", "001", ["002"]),
        ("langchain", "007", ["008"]),
        ("opencode", "002", ["003", "004"]),
        ("opencode/anthropic", "002", ["003", "004"]),
        ("pi", "001", ["002", "003"]),
        ("pi/anthropic", "001", ["002", "003"]),
        ("pydantic-ai", "001", ["002", "003"]),
        ("pydantic-ai", "011", ["012", "013"]),
        ("qwen-code", "001", ["002", "003"]),
        ("vercel-ai", "006", ["007"]),
        ("vercel-ai", "016", ["017"]),
        ("aider", "001", ["002"]),
    ],
)
def test_later_turns_of_a_conversation_begin_as_its_first_did(folder: str, first: str, later: list[str]) -> None:
    """Without any id that the client gives: cache marks move from turn to turn."""
    begins = {
        capture.name.rpartition("/")[2][:3]: list(prefix(decode(capture)))
        for capture in REQUESTS
        if capture.folder == folder
    }
    assert [number for number in later if begins[number] != begins[first]] == []


def test_a_subagent_shares_its_sessions_id_and_not_its_beginning() -> None:
    own = [capture for capture in REQUESTS if capture.folder == "claude-code/subagent"]
    assert len({explicit_id(decode(capture), capture.lower_headers, None) for capture in own}) == 1
    assert len({tuple(prefix(decode(capture))) for capture in own}) == 2


def test_the_session_in_the_metadata_is_the_one_in_the_header() -> None:
    for capture in REQUESTS:
        if capture.folder.startswith("claude-code"):
            call = decode(capture)
            assert explicit_id(call, {}, None) == explicit_id(call, capture.lower_headers, None) is not None
