"""Lengths of time."""

from datetime import timedelta

import pytest

from accounts.core.duration import parse_duration
from accounts.core.errors import BadDuration


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1m", timedelta(minutes=1)),
        ("12h", timedelta(hours=12)),
        (" 30D ", timedelta(days=30)),
        ("2w", timedelta(weeks=2)),
        ("5200w", timedelta(weeks=5200)),
    ],
)
def test_a_number_and_a_unit_are_read(text: str, expected: object) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize("text", ["", "30", "d", "0d", "-1d", "1.5h", "1y", "5201w", "999999999w", "1 d", "٣d", "1d1h"])
def test_anything_else_says_what_is_allowed(text: str) -> None:
    with pytest.raises(BadDuration, match="expected a whole number and m, h, d or w, from 1m to 5200w: 30d"):
        parse_duration(text)
