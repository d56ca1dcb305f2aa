"""The page for operators names everything that a decision can say."""

from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

from routing.core import document
from routing.core.decision import AffinityOutcome, Mode
from routing.core.eligibility import REASONS
from routing.core.expressions import NAMES
from routing.core.features import NEEDLES

PAGE = (Path(__file__).parents[2] / "docs" / "routing.md").read_text(encoding="utf-8")

KEYS = [
    field.name
    for block in (
        document.DynamicScore,
        document.Affinity,
        document.HardFilters,
        document.Signals,
        document.ScoreThresholds,
        document.When,
        document.ScoreTerm,
    )
    for field in fields(block)
]


@pytest.mark.parametrize(
    "word",
    sorted({*REASONS, *NAMES, *NEEDLES, *get_args(Mode), *get_args(AffinityOutcome), *KEYS, "panic", "not_finite"}),
)
def test_the_page_names_it(word: str) -> None:
    assert f"`{word}`" in PAGE or f"`{word}:" in PAGE
