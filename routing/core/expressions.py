"""Score expressions: `0.45 * cost_score + 0.25 * clamp(latency_score, 0, 0.9)` read, checked and compiled once.

    sum     = product { ("+" | "-") product }
    product = factor { ("*" | "/") factor }
    factor  = { "-" } ( number | score | "(" sum ")" | ("min" | "max") "(" sum "," sum { "," sum } ")"
                      | "clamp" "(" sum "," sum "," sum ")" )

The text is parsed into the few node kinds below; what is handed to Python's compiler is written from those nodes
alone (float literals, tuple indices, operators), so nothing an operator wrote reaches it.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from types import MappingProxyType
from typing import Literal, assert_never

from routing.core.catalog import ColumnExpression, Expression
from routing.core.errors import ExpressionError

NAMES: tuple[str, ...] = (
    "cost_score",
    "latency_score",
    "ttfb_score",
    "throughput_score",
    "reliability_score",
    "complexity_score",
    "eval_quality_score",
    "load_score",
    "stream_integrity_score",
    "budget_score",
)
"""Every score, in the order of the tuple that an Expression takes."""

NOT_YET = frozenset({"cache_score", "headroom_score"})
"""Scores of the design that this release does not serve."""

MAX_CHARACTERS = 512
MAX_NODES = 64
MAX_DEPTH = 32
"""Of parentheses, function calls and minus signs in one another. Keeps the parser far from Python's recursion limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledExpression:
    evaluate: Expression
    over_columns: ColumnExpression | None
    """`None`: it names no score."""
    source: str
    """As written, or the weights written out."""
    names: frozenset[str]
    weights: Mapping[str, float] = field(default_factory=dict)
    """Coefficients of a plain weighted sum without a constant; empty when it is anything else."""


@lru_cache(maxsize=1024)
def compile_expression(text: str) -> CompiledExpression:
    """Raises ExpressionError and nothing else."""
    node = _Parser(text).parse()
    return CompiledExpression(
        evaluate=_callable(node),
        over_columns=_over_columns(node),
        source=text.strip(),
        names=frozenset(_names(node)),
        weights=_weights(node),
    )


def compile_weights(weights: Mapping[str, float]) -> CompiledExpression:
    """A weighted mean. `weights`: full score names to numbers from 0 to 2**53, not all zero; they are divided by their sum."""
    total = math.fsum(weights.values())
    shares = {name: weights[name] / total for name in NAMES if weights.get(name)}
    node: Node | None = None
    for name, weight in shares.items():
        product = Binary("*", Number(weight), Score(NAMES.index(name)))
        node = product if node is None else Binary("+", node, product)
    assert node is not None
    return CompiledExpression(
        evaluate=_callable(node),
        over_columns=_over_columns(node),
        source=" + ".join(f"{weight:.6g} * {name}" for name, weight in shares.items()),
        names=frozenset(shares),
        weights=MappingProxyType(shares),
    )


def score_name(word: str) -> str | None:
    """The score that a key of `weights` means: `latency`, `Latency_Score` and `latency_score` are one. `None`: no such."""
    name = word.strip().lower()
    for candidate in (name, f"{name}_score"):
        if candidate in NAMES or candidate in NOT_YET:
            return candidate
    return None


def nearest_score(word: str) -> str | None:
    return _nearest(word, NAMES)


def _nearest(word: str, words: tuple[str, ...]) -> str | None:
    return next(iter(get_close_matches(word, words, n=1)), None)


# The tree.


@dataclass(frozen=True, slots=True)
class Number:
    value: float


@dataclass(frozen=True, slots=True)
class Score:
    index: int
    """In NAMES."""


@dataclass(frozen=True, slots=True)
class Negative:
    of: "Node"


@dataclass(frozen=True, slots=True)
class Binary:
    operator: Literal["+", "-", "*", "/"]
    left: "Node"
    right: "Node"


@dataclass(frozen=True, slots=True)
class Extreme:
    """The smaller or the larger of two. Longer `min` and `max` lists, and `clamp`, are built from these."""

    which: Literal["min", "max"]
    left: "Node"
    right: "Node"


Node = Number | Score | Negative | Binary | Extreme


# Reading.

_TOKEN = re.compile(
    r"(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)|(?P<word>[A-Za-z_][A-Za-z0-9_]*)|(?P<sign>[-+*/(),])"
)
_SPACE = re.compile(r"[ \t\r\n]*")
_FUNCTIONS = ("min", "max", "clamp")


@dataclass(frozen=True, slots=True)
class _Token:
    kind: Literal["number", "word", "sign", "end"]
    text: str
    position: int
    """From 1."""


class _Parser:
    """Recursive descent. Constant parts are calculated while reading, so that `1 / (2 - 2)` is seen for what it is."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_CHARACTERS:
            raise ExpressionError(f"more than {MAX_CHARACTERS} characters", MAX_CHARACTERS + 1)
        self._tokens = iter(_tokens(text))
        self._token = next(self._tokens)
        self._nodes = 0
        self._depth = 0

    def parse(self) -> Node:
        if self._at_end():
            raise ExpressionError("nothing to calculate", self._token.position)
        node = self._sum()
        if not self._at_end():
            raise self._unexpected("an operator or the end")
        return node

    def _at_end(self) -> bool:
        return self._token.kind == "end"

    def _sum(self) -> Node:
        node = self._product()
        while self._token.text in ("+", "-"):
            sign = self._advance()
            operator: Literal["+", "-"] = "+" if sign.text == "+" else "-"
            right = self._product()
            self._count(sign)
            node = _binary(operator, node, right, sign.position)
        return node

    def _product(self) -> Node:
        node = self._factor()
        while self._token.text in ("*", "/"):
            sign = self._advance()
            operator: Literal["*", "/"] = "*" if sign.text == "*" else "/"
            start = self._token.position
            right = self._factor()
            self._count(sign)
            if operator == "/" and right == Number(0.0):
                raise ExpressionError("division by zero", start)
            node = _binary(operator, node, right, sign.position)
        return node

    def _factor(self) -> Node:
        token = self._token
        if token.text == "-":
            self._advance()
            self._enter(token)
            of = self._factor()
            self._depth -= 1
            self._count(token)
            return Number(-of.value) if isinstance(of, Number) else Negative(of)
        if token.text == "(":
            self._advance()
            self._enter(token)
            node = self._sum()
            self._depth -= 1
            self._expect(")")
            return node
        if token.kind == "number":
            self._advance()
            self._count(token)
            value = float(token.text)
            if not math.isfinite(value):
                raise ExpressionError(f"number too large: {token.text}", token.position)
            return Number(value)
        if token.kind == "word":
            self._advance()
            self._count(token)
            return self._call(token) if token.text in _FUNCTIONS or self._token.text == "(" else _score(token)
        raise self._unexpected("a number, a score or '('")

    def _call(self, function: _Token) -> Node:
        if function.text not in _FUNCTIONS:
            if function.text in NAMES:
                raise ExpressionError(f"'{function.text}' is a score, not a function", function.position)
            nearest = _nearest(function.text, _FUNCTIONS)
            raise ExpressionError(f"unknown function '{function.text}'", function.position, nearest)
        self._expect("(")
        self._enter(function)
        arguments = [self._sum()]
        while self._token.text == ",":
            self._advance()
            arguments.append(self._sum())
        self._depth -= 1
        self._expect(")")
        if function.text == "clamp":
            if len(arguments) != 3:
                raise ExpressionError(f"clamp takes 3 values, not {len(arguments)}", function.position)
            value, low, high = arguments
            if isinstance(low, Number) and isinstance(high, Number) and low.value > high.value:
                raise ExpressionError("clamp's lower limit is above its upper one", function.position)
            return _extreme("max", _extreme("min", value, high), low)
        if len(arguments) < 2:
            raise ExpressionError(f"{function.text} takes 2 or more values", function.position)
        node = arguments[0]
        for argument in arguments[1:]:
            node = _extreme("min" if function.text == "min" else "max", node, argument)
        return node

    def _advance(self) -> _Token:
        token = self._token
        self._token = next(self._tokens)
        return token

    def _expect(self, sign: str) -> None:
        if self._token.text != sign:
            raise self._unexpected(f"'{sign}'")
        self._advance()

    def _count(self, token: _Token) -> None:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise ExpressionError(f"more than {MAX_NODES} numbers, scores, operators and functions", token.position)

    def _enter(self, token: _Token) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ExpressionError(f"nested more than {MAX_DEPTH} deep", token.position)

    def _unexpected(self, wanted: str) -> ExpressionError:
        found = "the end" if self._at_end() else repr(self._token.text)
        return ExpressionError(f"expected {wanted}, found {found}", self._token.position)


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    at = _end_of_space(text, 0)
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ExpressionError(f"unexpected {text[at]!r}", at + 1)
        group = match.lastgroup
        kind: Literal["number", "word", "sign"] = (
            "number" if group == "number" else "word" if group == "word" else "sign"
        )
        tokens.append(_Token(kind, match.group(), at + 1))
        at = _end_of_space(text, match.end())
    tokens.append(_Token("end", "", len(text) + 1))
    return tokens


def _end_of_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _score(token: _Token) -> Score:
    if token.text in NOT_YET:
        raise ExpressionError(f"score '{token.text}' is not available in this release, used", token.position)
    try:
        return Score(NAMES.index(token.text))
    except ValueError:
        nearest = _nearest(token.text, NAMES + _FUNCTIONS)
        raise ExpressionError(f"unknown score '{token.text}'", token.position, nearest) from None


def _binary(operator: Literal["+", "-", "*", "/"], left: Node, right: Node, position: int) -> Node:
    if not (isinstance(left, Number) and isinstance(right, Number)):
        return Binary(operator, left, right)
    match operator:
        case "+":
            value = left.value + right.value
        case "-":
            value = left.value - right.value
        case "*":
            value = left.value * right.value
        case "/":
            value = left.value / right.value
        case _:
            assert_never(operator)
    if not math.isfinite(value):
        raise ExpressionError("the result is too large", position)
    return Number(value)


def _extreme(which: Literal["min", "max"], left: Node, right: Node) -> Node:
    if isinstance(left, Number) and isinstance(right, Number):
        return Number(min(left.value, right.value) if which == "min" else max(left.value, right.value))
    return Extreme(which, left, right)


# Compiling.


def _callable(node: Node) -> Expression:
    code = compile(f"lambda s: {_Writer('s[{}]').write(node)}", "<score expression>", "eval")
    function: Expression = eval(code, {"__builtins__": {}})  # noqa: S307 (its text is the writer's alone)
    return function


def _over_columns(node: Node) -> ColumnExpression | None:
    """One loop instead of a call for each candidate."""
    names = sorted(set(_names(node)), key=NAMES.index)
    if not names:
        return None
    rows = ", ".join(f"s{NAMES.index(name)}" for name in names)
    columns = ", ".join(f"c[{name!r}].values" for name in names)
    code = compile(
        f"lambda c: [{_Writer('s{}').write(node)} for {rows}, in zip({columns})]", "<score expression>", "eval"
    )
    function: ColumnExpression = eval(code, {"__builtins__": {}, "zip": zip})  # noqa: S307 (the same)
    return function


class _Writer:
    """Python source of a tree. Local names hold both sides of an Extreme: a comparison is faster than calling min()."""

    def __init__(self, score: str) -> None:
        """`score`: how a score is written, `{}` for its index."""
        self._score = score
        self._locals = 0

    def write(self, node: Node) -> str:
        match node:
            case Number(value):
                return f"({value!r})" if value < 0 else repr(value)
            case Score(index):
                return self._score.format(index)
            case Negative(of):
                return f"(-{self.write(of)})"
            case Binary(operator, left, right):
                return f"({self.write(left)} {operator} {self.write(right)})"
            case Extreme(which, left, right):
                a, b = f"v{self._locals}", f"v{self._locals + 1}"
                self._locals += 2
                sign = "<" if which == "min" else ">"
                return f"({b} if ({b} := {self.write(right)}) {sign} ({a} := {self.write(left)}) else {a})"
            case _:
                assert_never(node)


def _names(node: Node) -> list[str]:
    match node:
        case Number():
            return []
        case Score(index):
            return [NAMES[index]]
        case Negative(of):
            return _names(of)
        case Binary(_, left, right) | Extreme(_, left, right):
            return _names(left) + _names(right)
        case _:
            assert_never(node)


def _weights(node: Node) -> Mapping[str, float]:
    line = _linear(node)
    if line is None or line[0] != 0 or not all(map(math.isfinite, line[1].values())):
        return MappingProxyType({})
    return MappingProxyType({NAMES[index]: weight for index, weight in line[1].items()})


def _linear(node: Node) -> tuple[float, dict[int, float]] | None:
    """The node as constant + sum of coefficient x score. `None`: it is not of that form."""
    match node:
        case Number(value):
            return value, {}
        case Score(index):
            return 0.0, {index: 1.0}
        case Negative(of):
            line = _linear(of)
            return None if line is None else _scaled(line, -1.0)
        case Binary(operator, left, right):
            first, second = _linear(left), _linear(right)
            if first is None or second is None:
                return None
            if operator in ("+", "-"):
                constant, weights = second if operator == "+" else _scaled(second, -1.0)
                merged = dict(first[1])
                for index, weight in weights.items():
                    merged[index] = merged.get(index, 0.0) + weight
                return first[0] + constant, merged
            if not second[1] and (operator == "*" or second[0]):
                factor = second[0] if operator == "*" else 1 / second[0]
                return _scaled(first, factor)
            if not first[1] and operator == "*":
                return _scaled(second, first[0])
            return None
        case Extreme():
            return None
        case _:
            assert_never(node)


def _scaled(line: tuple[float, dict[int, float]], factor: float) -> tuple[float, dict[int, float]]:
    return line[0] * factor, {index: weight * factor for index, weight in line[1].items()}
