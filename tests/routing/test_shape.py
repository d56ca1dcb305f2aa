from typing import Any

import pytest

from routing.core.shape import complexity, complexity_bucket, shape_with_complexity


def of(**fields: Any) -> float:
    given = {"input_tokens": 0, "tool_count": 0, "image_count": 0, "output_cap": None, "prompt_features": 0}
    return complexity(**{**given, **fields})


@pytest.mark.parametrize(
    ("fields", "score"),
    [
        ({}, 0.0),
        ({"input_tokens": 800}, 0.0),
        ({"input_tokens": 801}, 0.15),
        ({"input_tokens": 3_000}, 0.15),
        ({"input_tokens": 3_001}, 0.30),
        ({"input_tokens": 12_000}, 0.30),
        ({"input_tokens": 12_001}, 0.50),
        ({"tool_count": 1}, 0.08),
        ({"tool_count": 3}, 0.24),
        ({"tool_count": 28}, 0.24),
        ({"image_count": 1}, 0.10),
        ({"image_count": 9}, 0.20),
        ({"output_cap": 4_096}, 0.0),
        ({"output_cap": 4_097}, 0.15),
        ({"prompt_features": 2}, 0.10),
        # 0.50 + 0.24 + 0.20 + 0.15 + 0.40 = 1.49
        ({"input_tokens": 99_999, "tool_count": 9, "image_count": 9, "output_cap": 8_192, "prompt_features": 8}, 1.0),
    ],
    ids=str,
)
def test_complexity_adds_up_what_a_request_asks_for(fields: dict[str, Any], score: float) -> None:
    assert of(**fields) == score


def test_a_sum_on_the_border_of_a_bucket_is_in_the_upper_one() -> None:
    # 0.15 + 0.08 + 0.10 = 0.33; in floats the sum is 0.32999999999999996.
    assert complexity_bucket(of(input_tokens=900, tool_count=1, image_count=1)) == "standard"
    # 0.50 + 0.16 = 0.66
    assert complexity_bucket(of(input_tokens=12_001, tool_count=2)) == "complex"
    assert [complexity_bucket(score) for score in (0.0, 0.32, 0.33, 0.65, 0.66, 1.0)] == [
        "simple",
        "simple",
        "standard",
        "standard",
        "complex",
        "complex",
    ]


def test_a_shape_estimates_its_tokens_and_reserves_its_output() -> None:
    made = [
        shape_with_complexity(dialect="openai-chat", text_bytes=4_001, media_tokens=1_100),
        shape_with_complexity(dialect="anthropic", text_bytes=4_000),
        shape_with_complexity(dialect="anthropic", output_cap=50),
    ]
    assert [(shape.input_tokens, shape.reserved_output) for shape in made] == [(2_101, 0), (1_000, 1_024), (0, 50)]


def test_a_shape_carries_its_complexity() -> None:
    shape = shape_with_complexity(
        dialect="openai-chat", text_bytes=12_004, tool_count=1, prompt_features=frozenset({"code", "diff"})
    )
    # 3,001 tokens 0.30 + one tool 0.08 + two features 0.10
    assert (shape.complexity_score, shape.complexity) == (0.48, "standard")
