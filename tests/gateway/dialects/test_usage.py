"""Usage as providers report it, in disjoint classes."""

from typing import Any

import pytest

from gateway.dialects.neutral import Usage
from gateway.dialects.usage import read_chat, read_messages


def chat(*reports: Any) -> Usage:
    usage = Usage()
    for reported in reports:
        read_chat(usage, reported)
    return usage


def messages(*reports: Any) -> Usage:
    usage = Usage()
    for number, reported in enumerate(reports):
        read_messages(usage, reported, final=number == len(reports) - 1)
    return usage


def test_cached_tokens_are_taken_out_of_a_chat_prompt_and_reasoning_is_not_added_again() -> None:
    reported = {
        "prompt_tokens": 10_000,
        "completion_tokens": 500,
        "total_tokens": 10_500,
        "prompt_tokens_details": {"cached_tokens": 8_000, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 300},
    }
    assert chat(reported) == Usage(
        input_tokens=2_000, cache_read_tokens=8_000, output_tokens=500, reasoning_tokens=300, quality="reported"
    )


def test_messages_input_classes_are_taken_as_they_are() -> None:
    reported = {
        "input_tokens": 2_000,
        "cache_read_input_tokens": 8_000,
        "cache_creation_input_tokens": 1_000,
        "cache_creation": {"ephemeral_5m_input_tokens": 400, "ephemeral_1h_input_tokens": 600},
        "output_tokens": 500,
    }
    assert messages(reported) == Usage(
        input_tokens=2_000,
        cache_read_tokens=8_000,
        cache_write_tokens=400,
        cache_write_1h_tokens=600,
        output_tokens=500,
        quality="reported",
    )


def test_an_explicit_zero_stays_zero() -> None:
    assert chat({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}) == Usage(
        input_tokens=0, output_tokens=0, quality="reported"
    )
    assert messages({"input_tokens": 0, "output_tokens": 0, "cache_read_input_tokens": 0}) == Usage(
        input_tokens=0, output_tokens=0, cache_read_tokens=0, quality="reported"
    )


@pytest.mark.parametrize("reported", [None, {}, {"prompt_tokens": None}, {"prompt_tokens_details": None}])
def test_absent_usage_is_missing(reported: Any) -> None:
    assert chat(reported) == Usage(quality="missing")
    assert messages(reported) == Usage(quality="missing")


def test_usage_with_a_half_missing_is_missing() -> None:
    assert chat({"completion_tokens": 3}) == Usage(output_tokens=3, quality="missing")
    assert messages({"input_tokens": 3}) == Usage(input_tokens=3, quality="missing")


@pytest.mark.parametrize("odd", [-1, "5", 5.0, 10**18, True, [], {}])
def test_a_value_that_is_no_count_is_left_out_and_flagged(odd: Any) -> None:
    assert chat({"prompt_tokens": odd, "completion_tokens": 2}) == Usage(output_tokens=2, quality="inconsistent")
    assert chat({"prompt_tokens": 5, "completion_tokens": odd}) == Usage(input_tokens=5, quality="inconsistent")
    assert messages({"input_tokens": 5, "output_tokens": odd}) == Usage(input_tokens=5, quality="inconsistent")
    assert messages({"input_tokens": odd, "output_tokens": 5, "cache_read_input_tokens": odd}) == Usage(
        output_tokens=5, quality="inconsistent"
    )
    assert messages({"input_tokens": 1, "output_tokens": 5, "cache_creation_input_tokens": odd}) == Usage(
        input_tokens=1, output_tokens=5, quality="inconsistent"
    )


@pytest.mark.parametrize("odd", ["5", 5, [1], True])
def test_usage_that_is_no_object_is_flagged(odd: Any) -> None:
    assert chat(odd) == Usage(quality="inconsistent")
    assert messages(odd) == Usage(quality="inconsistent")


def test_numbers_that_contradict_each_other_are_flagged() -> None:
    more_cached = {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 6}}
    assert chat(more_cached) == Usage(output_tokens=2, quality="inconsistent")
    wrong_total = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 8}
    assert chat(wrong_total) == Usage(input_tokens=5, output_tokens=2, quality="inconsistent")
    more_reasoning = {"prompt_tokens": 5, "completion_tokens": 2, "completion_tokens_details": {"reasoning_tokens": 3}}
    assert chat(more_reasoning) == Usage(input_tokens=5, output_tokens=2, quality="inconsistent")
    more_written = {
        "input_tokens": 1,
        "output_tokens": 1,
        "cache_creation_input_tokens": 5,
        "cache_creation": {"ephemeral_1h_input_tokens": 6},
    }
    assert messages(more_written) == Usage(input_tokens=1, output_tokens=1, quality="inconsistent")


def test_the_last_report_counts_never_the_sum() -> None:
    first = {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}
    last = {"prompt_tokens": 5, "completion_tokens": 9, "total_tokens": 14}
    assert chat(first, last) == chat(last)
    start = {"input_tokens": 200, "cache_read_input_tokens": 1_000, "output_tokens": 1}
    end = {"input_tokens": 200, "cache_read_input_tokens": 1_000, "output_tokens": 30}
    assert messages(start, end) == messages(end)
    assert messages(start, {"output_tokens": 30}) == messages(end)


def test_a_good_report_after_an_odd_one_is_good() -> None:
    good = {"prompt_tokens": 5, "completion_tokens": 2}
    assert chat({"prompt_tokens": "?"}, good) == chat(good)


def test_the_output_of_a_messages_start_is_a_placeholder() -> None:
    usage = Usage()
    read_messages(usage, {"input_tokens": 7, "output_tokens": 1}, final=False)
    assert usage == Usage(input_tokens=7, quality="missing")


def test_cache_writes_keep_their_lifetimes_when_the_end_gives_only_their_sum() -> None:
    start = {
        "input_tokens": 1,
        "cache_creation_input_tokens": 100,
        "cache_creation": {"ephemeral_5m_input_tokens": 30, "ephemeral_1h_input_tokens": 70},
    }
    end = {"cache_creation_input_tokens": 100, "output_tokens": 4}
    assert messages(start, end) == Usage(
        input_tokens=1, cache_write_tokens=30, cache_write_1h_tokens=70, output_tokens=4, quality="reported"
    )
