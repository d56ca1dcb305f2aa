"""What exchanges cost, to the micro-dollar; odd usage; what is not billed."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.neutral import Usage
from gateway.dialects.usage import read_chat, read_messages
from reports.core.cost import LIMIT, Bill, Line, Prices, Tokens, arithmetic, bill, bill_aborted, cost, half_even
from reports.core.record import EndRecord
from tests.reports.records import an_attempt, an_end, an_intent


def reported(usage: Usage, **said: Any) -> EndRecord:
    """The record of a whole answer with this usage."""
    return an_end(
        **{
            "input_tokens": usage.input_tokens,
            "cache_read_tokens": usage.cache_read_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
            "cache_write_1h_tokens": usage.cache_write_1h_tokens,
            "output_tokens": usage.output_tokens,
            "reasoning_tokens": usage.reasoning_tokens,
            "usage_quality": usage.quality,
            **said,
        }
    )


def test_cached_tokens_of_chat_are_part_of_the_prompt_and_reasoning_is_part_of_the_output():
    usage = Usage()
    read_chat(
        usage,
        {
            "prompt_tokens": 10_000,
            "completion_tokens": 500,
            "prompt_tokens_details": {"cached_tokens": 8_000},
            "completion_tokens_details": {"reasoning_tokens": 400},
        },
    )
    found = bill(reported(usage, cached_input_price=500_000))
    assert found == Bill(
        tokens=Tokens(input=2_000, cache_read=8_000, output=500, reasoning=400),
        quality="reported",
        prices=Prices(input=2_000_000, cache_read=500_000, output=8_000_000),
        microdollars=12_000,
    )


def test_the_classes_of_messages_are_disjoint_and_each_has_its_price():
    usage = Usage()
    read_messages(
        usage,
        {
            "input_tokens": 2_000,
            "cache_read_input_tokens": 8_000,
            "cache_creation_input_tokens": 1_000,
            "output_tokens": 500,
        },
        final=True,
    )
    found = bill(reported(usage, cached_input_price=200_000, cache_write_price=2_500_000))
    assert (found.microdollars, found.quality, found.tokens.all_input) == (12_100, "reported", 11_000)


def test_an_hour_in_the_cache_has_a_price_of_its_own_and_none_else_will_do():
    usage = Usage()
    read_messages(
        usage,
        {
            "input_tokens": 0,
            "output_tokens": 0,
            "cache_creation_input_tokens": 300,
            "cache_creation": {"ephemeral_5m_input_tokens": 100, "ephemeral_1h_input_tokens": 200},
        },
        final=True,
    )
    known = bill(reported(usage, cache_write_price=2_500_000, cache_write_1h_price=4_000_000))
    unknown = bill(reported(usage, cache_write_price=2_500_000))
    assert (known.microdollars, known.flags) == (1_050, ())
    assert (unknown.microdollars, unknown.flags) == (None, ("no_cache_write_1h_price",))


def test_what_is_read_from_a_cache_without_a_price_counts_as_input():
    found = bill(an_end(input_tokens=1, cache_read_tokens=999, output_tokens=0))
    assert (found.microdollars, found.flags) == (2_000, ("cache_read_at_input_price",))


@pytest.mark.parametrize(
    ("said", "flags"),
    [
        ({"input_price": None}, ("no_input_price",)),
        ({"output_price": None}, ("no_output_price",)),
        ({"input_price": None, "output_price": None}, ("no_input_price", "no_output_price")),
        ({"input_price": None, "cache_read_tokens": 5}, ("no_input_price", "no_cache_read_price")),
        ({"cache_write_tokens": 5}, ("no_cache_write_5m_price",)),
        ({"input_price": -1}, ("no_input_price",)),
        ({"input_price": LIMIT + 1}, ("no_input_price",)),
    ],
)
def test_a_price_that_is_needed_and_unknown_makes_the_cost_unknown_never_zero(said, flags):
    found = bill(an_end(**said))
    assert (found.microdollars, found.flags) == (None, flags)


def test_a_class_without_tokens_needs_no_price_and_free_is_free():
    assert bill(an_end(output_tokens=0, output_price=None)).microdollars == 2_000
    assert bill(an_end(input_price=0, output_price=0)).microdollars == 0


NOTHING = (None, None, None)


@pytest.mark.parametrize(
    ("usage", "expected", "quality"),
    [
        (None, NOTHING, "estimated"),
        ({}, NOTHING, "estimated"),
        ({"prompt_tokens": None, "completion_tokens": None}, NOTHING, "estimated"),
        ({"prompt_tokens": 0, "completion_tokens": 0}, (0, None, 0), "reported"),
        ({"prompt_tokens": -5, "completion_tokens": 3}, (None, None, 3), "inconsistent"),
        ({"prompt_tokens": "7", "completion_tokens": 3}, (None, None, 3), "inconsistent"),
        ({"prompt_tokens": 10**18, "completion_tokens": 3}, (None, None, 3), "inconsistent"),
        (
            {"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 9}},
            (None, None, 3),
            "inconsistent",
        ),
        ({"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 9}, (5, None, 3), "inconsistent"),
    ],
)
def test_odd_usage_is_estimated_and_flagged_and_a_zero_that_was_sent_stays_zero(usage, expected, quality):
    read = Usage()
    read_chat(read, usage)
    input, cached, output = expected
    found = bill(reported(read, input_tokens_estimated=70))
    tokens = Tokens(input=70 if input is None else input, cache_read=cached, output=output or 0)
    assert (found.tokens, found.quality) == (tokens, quality)
    assert found.microdollars == (70 if input is None else input) * 2 + (output or 0) * 8


@pytest.mark.parametrize("field", ["input_tokens", "cache_read_tokens", "cache_write_tokens", "output_tokens"])
@pytest.mark.parametrize("value", [-1, -(10**30), LIMIT + 1, 10**30])
def test_a_count_that_cannot_be_one_never_reaches_the_cost(field, value):
    found = bill(an_end(**{field: value}))
    assert found.quality == "inconsistent"
    assert found.microdollars in (2_000, 2_800)


def test_more_reasoning_than_output_is_no_reasoning():
    found = bill(an_end(reasoning_tokens=101))
    assert (found.tokens.reasoning, found.tokens.output, found.quality) == (None, 100, "inconsistent")


def test_an_estimate_of_the_input_leaves_out_what_the_cache_is_known_to_have_given():
    found = bill(an_end(input_tokens=None, cache_read_tokens=400, cached_input_price=0, usage_quality="missing"))
    assert (found.tokens.input, found.quality, found.microdollars) == (600, "estimated", 2_000)


@pytest.mark.parametrize(
    "said",
    [
        {"attempts": [], "outcome": "refused", "status": 429},
        {"attempts": [an_attempt(outcome="server_error", status=500)], "outcome": "upstream_failed"},
        {"attempts": [an_attempt(outcome="timeout", status=None)], "outcome": "upstream_failed"},
        {"attempts": [an_attempt(outcome="server_error", status=200)], "outcome": "upstream_failed"},
        {"attempts": [an_attempt(outcome="client_cancelled", status=None)], "outcome": "client_cancelled"},
    ],
)
def test_what_no_provider_accepted_costs_nothing(said):
    found = bill(an_end(input_tokens=None, output_tokens=None, usage_quality="missing", **said))
    assert (found.tokens, found.quality, found.microdollars, found.flags) == (Tokens(), "none", 0, ())


def test_counting_tokens_costs_nothing():
    assert bill(an_end(endpoint="count_tokens", attempts=[])).microdollars == 0


def test_who_leaves_before_the_first_byte_of_an_accepted_request_pays_for_its_input():
    found = bill(
        an_end(
            outcome="client_cancelled",
            attempts=[an_attempt(outcome="client_cancelled")],
            input_tokens=None,
            output_tokens=None,
            usage_quality="missing",
        )
    )
    assert (found.tokens, found.quality, found.microdollars) == (Tokens(input=1_000, output=0), "estimated", 2_000)


def test_of_a_dead_process_the_input_counts():
    assert bill_aborted(an_intent()) == Bill(
        tokens=Tokens(input=1_000), quality="estimated", prices=Prices(input=2_000_000), microdollars=2_000
    )
    assert bill_aborted(an_intent(input_price=None)).microdollars is None
    assert bill_aborted(an_intent(input_tokens_estimated=-1)).microdollars == 0


def test_the_arithmetic_can_be_followed():
    tokens = Tokens(input=3, cache_read=2, cache_write_1h=1, output=0)
    assert arithmetic(tokens, Prices(input=2_000_000, cache_read=500_000)) == [
        Line(token_class="input", tokens=3, price=2_000_000, picodollars=6_000_000),
        Line(token_class="cache_read", tokens=2, price=500_000, picodollars=1_000_000),
        Line(token_class="cache_write_1h", tokens=1, price=None, picodollars=None),
    ]


@pytest.mark.parametrize(
    ("picodollars", "microdollars"),
    [(0, 0), (499_999, 0), (500_000, 0), (500_001, 1), (1_499_999, 1), (1_500_000, 2), (2_500_000, 2), (2_500_001, 3)],
)
def test_a_half_goes_to_the_even_neighbour(picodollars, microdollars):
    assert half_even(picodollars) == microdollars


def test_rounding_happens_once_after_the_classes_are_added_up():
    prices = Prices(input=400_000, cache_read=400_000, output=400_000)
    assert cost(Tokens(input=1, cache_read=1, output=1), prices) == (1, ())


counts = st.none() | st.integers(-(10**20), 10**20) | st.integers(0, LIMIT)


@given(
    st.lists(counts, min_size=11, max_size=11), st.sampled_from(["reported", "estimated", "inconsistent", "missing"])
)
def test_whatever_the_numbers_a_bill_fits_into_the_tables_and_is_never_negative(numbers, quality):
    names = [
        "input_tokens",
        "cache_read_tokens",
        "cache_write_tokens",
        "cache_write_1h_tokens",
        "output_tokens",
        "reasoning_tokens",
        "input_price",
        "output_price",
        "cached_input_price",
        "cache_write_price",
        "cache_write_1h_price",
    ]
    found = bill(an_end(**dict(zip(names, numbers, strict=True)), usage_quality=quality))
    tokens = found.tokens
    classes = (tokens.input, tokens.cache_read, tokens.cache_write_5m, tokens.cache_write_1h, tokens.output)
    assert all(count is None or 0 <= count <= LIMIT for count in classes)
    assert found.microdollars is None or 0 <= found.microdollars < 2**63
    assert (found.microdollars is None) == any(flag.startswith("no_") for flag in found.flags)
