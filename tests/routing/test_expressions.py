"""Score expressions."""

import ast
import contextlib
import math
import timeit

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from routing.core.decision import Column
from routing.core.errors import ExpressionError
from routing.core.expressions import (
    MAX_NODES,
    NAMES,
    CompiledExpression,
    compile_expression,
    compile_weights,
    score_name,
)

SCORES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05)
"""In the order of NAMES."""


def value(text: str) -> float:
    return compile_expression(text).evaluate(SCORES)


def outcome(text: str) -> CompiledExpression | ExpressionError:
    try:
        return compile_expression(text)
    except ExpressionError as error:
        return error


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", 1.0),
        (" .5 ", 0.5),
        ("2.", 2.0),
        ("1.5e-1", 0.15),
        ("cost_score", 0.9),
        ("budget_score", 0.05),
        ("1 - 2 - 3", -4.0),
        ("8 / 4 / 2", 1.0),
        ("2 + 3 * 4", 14.0),
        ("(2 + 3) * 4", 20.0),
        ("-2 * -3", 6.0),
        ("--cost_score", 0.9),
        ("1 - -latency_score", 1.8),
        ("-(latency_score - cost_score)", 0.9 - 0.8),
        ("min(cost_score, latency_score, 0.85)", 0.8),
        ("max(cost_score, latency_score)", 0.9),
        ("max(0.1, 0.2, 0.3)", 0.3),
        ("clamp(cost_score, 0, 0.5)", 0.5),
        ("clamp(0.1, 0.2, 0.5)", 0.2),
        ("clamp(latency_score, load_score, cost_score)", 0.8),
        ("min(max(ttfb_score, 0.75), 1) / (1 + reliability_score)", 0.75 / 1.5),
        ("cost_score\n\t+ latency_score", 0.9 + 0.8),
    ],
)
def test_an_expression_is_calculated_as_school_teaches(text: str, expected: float) -> None:
    assert value(text) == expected


def test_the_seeds_expression_is_a_plain_weighted_sum() -> None:
    text = "0.45 * cost_score + 0.25 * latency_score + 0.20 * throughput_score + 0.10 * reliability_score"
    compiled = compile_expression(text)
    assert (compiled.source, compiled.names, dict(compiled.weights)) == (
        text,
        frozenset({"cost_score", "latency_score", "throughput_score", "reliability_score"}),
        {"cost_score": 0.45, "latency_score": 0.25, "throughput_score": 0.2, "reliability_score": 0.1},
    )
    assert compiled.evaluate(SCORES) == 0.45 * 0.9 + 0.25 * 0.8 + 0.20 * 0.6 + 0.10 * 0.5


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        ("cost_score", {"cost_score": 1.0}),
        ("-cost_score + 2 * (cost_score + load_score / 4)", {"cost_score": 1.0, "load_score": 0.5}),
        ("cost_score - load_score * 3", {"cost_score": 1.0, "load_score": -3.0}),
        ("cost_score + 1", {}),
        ("cost_score * load_score", {}),
        ("1 / cost_score", {}),
        ("min(cost_score, load_score)", {}),
        ("0.5", {}),
        ("1e308 * cost_score * 10", {}),
    ],
)
def test_coefficients_are_given_for_a_sum_without_a_constant_only(text: str, weights: dict[str, float]) -> None:
    assert dict(compile_expression(text).weights) == weights


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0.45 * latencey_score", "unknown score 'latencey_score' at 8; did you mean 'latency_score'?"),
        ("zzz", "unknown score 'zzz' at 1"),
        ("1 + cache_score", "score 'cache_score' is not available in this release, used at 5"),
        ("headroom_score", "score 'headroom_score' is not available in this release, used at 1"),
        ("", "nothing to calculate at 1"),
        ("  ", "nothing to calculate at 3"),
        ("1 +", "expected a number, a score or '(', found the end at 4"),
        ("1 2", "expected an operator or the end, found '2' at 3"),
        ("1 + * 2", "expected a number, a score or '(', found '*' at 5"),
        ("+1", "expected a number, a score or '(', found '+' at 1"),
        ("(1", "expected ')', found the end at 3"),
        ("1)", "expected an operator or the end, found ')' at 2"),
        ("2 ** 3", "expected a number, a score or '(', found '*' at 4"),
        ("2 // 3", "expected a number, a score or '(', found '/' at 4"),
        ("cost_score.real", "unexpected '.' at 11"),
        ("__import__('os')", 'unexpected "\'" at 12'),
        ("__import__(1)", "unknown function '__import__' at 1"),
        ("mim(1, 2)", "unknown function 'mim' at 1; did you mean 'min'?"),
        ("min + 1", "expected '(', found '+' at 5"),
        ("cost_score(1)", "'cost_score' is a score, not a function at 1"),
        ("min(cost_score)", "min takes 2 or more values at 1"),
        ("clamp(1, 2)", "clamp takes 3 values, not 2 at 1"),
        ("clamp(cost_score, 1, 0)", "clamp's lower limit is above its upper one at 1"),
        ("cost_score / 0", "division by zero at 14"),
        ("cost_score / (1 - 1)", "division by zero at 14"),
        ("cost_score / -0.0", "division by zero at 14"),
        ("1 / min(0, 1)", "division by zero at 5"),
        ("1e999", "number too large: 1e999 at 1"),
        ("1e308 * 10", "the result is too large at 7"),
        ("cost_score; 1", "unexpected ';' at 11"),
        ("cost_score × 2", "unexpected '×' at 12"),
        ("٣ * cost_score", "unexpected '٣' at 1"),
        ("(" * 33 + "1" + ")" * 33, "nested more than 32 deep at 33"),
        ("-" * 33 + "1", "nested more than 32 deep at 33"),
        ("1" * 513, "more than 512 characters at 513"),
        ("1" + " + 1" * 32, "more than 64 numbers, scores, operators and functions at 127"),
    ],
)
def test_a_wrong_expression_is_refused_with_its_place(text: str, message: str) -> None:
    assert str(outcome(text)) == message


def test_the_longest_and_deepest_expression_allowed_is_calculated() -> None:
    widest = "1" + " + 1" * ((MAX_NODES - 1) // 2)
    assert value(widest) == 32.0
    assert value("min(" * 31 + "cost_score" + ", 1)" * 31) == 0.9
    assert value("min(" + "1," * 61 + "load_score)") == 0.2
    assert value("(" * 32 + "1" + ")" * 32) == 1.0


def test_division_by_a_score_of_zero_is_left_to_the_caller() -> None:
    zeros = (0.0,) * len(NAMES)
    with pytest.raises(ZeroDivisionError):
        compile_expression("1 / cost_score").evaluate(zeros)
    ones = (1.0,) * len(NAMES)
    assert math.isinf(compile_expression("1e308 * cost_score * 10").evaluate(ones))


def test_weights_become_shares_of_their_sum() -> None:
    compiled = compile_weights({"latency_score": 1.0, "cost_score": 3.0, "load_score": 0.0})
    assert (compiled.source, compiled.names, dict(compiled.weights)) == (
        "0.75 * cost_score + 0.25 * latency_score",
        frozenset({"cost_score", "latency_score"}),
        {"cost_score": 0.75, "latency_score": 0.25},
    )
    assert compiled.evaluate(SCORES) == 0.75 * 0.9 + 0.25 * 0.8


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("latency", "latency_score"),
        ("Latency_Score", "latency_score"),
        (" eval_quality ", "eval_quality_score"),
        ("cache", "cache_score"),
        ("speed", None),
    ],
)
def test_a_weight_may_be_named_without_score_and_in_any_case(word: str, name: str | None) -> None:
    assert score_name(word) == name


def test_one_evaluation_is_cheap() -> None:
    """0.1 us here; the bound only catches another order of magnitude on a busy machine."""
    evaluate = compile_expression(
        "0.45 * cost_score + 0.25 * latency_score + 0.20 * throughput_score + 0.10 * reliability_score"
    ).evaluate
    best = min(timeit.repeat(lambda: evaluate(SCORES), number=10_000, repeat=5)) / 10_000
    assert best < 2e-6


WORDS = [*NAMES, "min", "max", "clamp", "cache_score", "eval", "lambda", "s", "v0", "__class__"]
PIECES = st.sampled_from([*WORDS, *"+-*/(),.;:=[]{}'\"\\ \n", "0", "1", "0.5", "1e308", "1e-320", "999", "**", ":="])


@settings(max_examples=400, deadline=None)
@given(st.one_of(st.text(max_size=80), st.lists(PIECES, max_size=60).map("".join)))
def test_any_text_gives_a_closure_or_an_expression_error(text: str) -> None:
    compiled = outcome(text)
    if isinstance(compiled, ExpressionError):
        assert 1 <= compiled.position <= len(text) + 1
        return
    assert compiled.names <= set(NAMES)
    try:
        assert isinstance(compiled.evaluate(SCORES), float)
    except ZeroDivisionError:
        assert "/" in text


def trees() -> st.SearchStrategy[str]:
    leaves = st.one_of(
        st.sampled_from(NAMES), st.floats(min_value=0, max_value=100, allow_nan=False).map(lambda x: repr(abs(x)))
    )
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
            st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda t: f"{t[0]}{t[1]}{t[2]}"),
            inner.map(lambda t: f"-{t}"),
            st.tuples(st.sampled_from(["min", "max"]), inner, inner).map(lambda t: f"{t[0]}({t[1]}, {t[2]})"),
            st.tuples(inner, inner, inner).map(lambda t: f"clamp({t[0]}, {t[1]}, {t[2]})"),
        ),
        max_leaves=8,
    )


def clamp(x: float, low: float, high: float) -> float:
    return max(low, min(x, high))


FUNCTIONS = {"min": min, "max": max, "clamp": clamp}


def overflows(text: str) -> bool:
    """Whether Python, too, comes to something that is not finite in a part without scores."""
    for node in ast.walk(ast.parse(text, mode="eval")):
        if isinstance(node, ast.expr) and not {each.id for each in ast.walk(node) if isinstance(each, ast.Name)} & {
            *NAMES
        }:
            with contextlib.suppress(ZeroDivisionError, TypeError):  # the latter: a name of a function
                if not math.isfinite(eval(ast.unparse(node), {"__builtins__": {}}, FUNCTIONS)):
                    return True
    return False


@settings(max_examples=300, deadline=None)
@example("(1.0 / 2.225073858507203e-309)", (0.0,) * len(NAMES))
@given(trees(), st.tuples(*(st.floats(min_value=0, max_value=1) for _ in NAMES)))
def test_it_agrees_with_pythons_arithmetic(text: str, scores: tuple[float, ...]) -> None:
    compiled = outcome(text)
    if isinstance(compiled, ExpressionError):
        expected_to_fail = ["division by zero", "clamp's lower limit is above its upper one"]
        if overflows(text):
            expected_to_fail.append("the result is too large")
        assert compiled.message in expected_to_fail
        return
    names = {**FUNCTIONS, **dict(zip(NAMES, scores, strict=True))}
    try:
        expected = eval(text, {"__builtins__": {}}, names)
    except ZeroDivisionError:
        with pytest.raises(ZeroDivisionError):
            compiled.evaluate(scores)
        return
    if compiled.over_columns is not None:
        columns = {name: Column([], [0.5, score], []) for name, score in zip(NAMES, scores, strict=True)}
        with contextlib.suppress(ZeroDivisionError):  # of the row of halves
            rows = compiled.over_columns(columns)
            assert repr(rows) == repr([compiled.evaluate((0.5,) * len(NAMES)), compiled.evaluate(scores)])
    assert (compiled.over_columns is None) == (not compiled.names)
    assert compiled.evaluate(scores) == pytest.approx(expected, nan_ok=True, rel=1e-12, abs=1e-12)
    if compiled.weights:
        total = math.fsum(weight * scores[NAMES.index(name)] for name, weight in compiled.weights.items())
        assert total == pytest.approx(expected, rel=1e-9, abs=1e-9)
