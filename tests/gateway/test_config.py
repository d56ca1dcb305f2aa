"""The configuration file: what is taken, what is refused and how, and that writing and reading agree."""

import string
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounts.core.document import CallerEntry
from gateway import strict_yaml
from gateway.config import Configuration, dump, load
from gateway.differences import differences
from routing.core import document
from routing.core.errors import ConfigurationError
from tests.support.documents import declared_group, declared_provider, declared_target, some_document

HERE = Path(__file__).parent / "configuration"

PROVIDERS = b"""
providers:
  baseten: {base_url: https://a.example/v1, dialect: openai-chat, models: {gpt-oss-120b: {model: openai/gpt-oss-120b}}}
  minimax: {base_url: https://b.example/v1, dialect: openai-chat, models: {m3: {model: MiniMax-M3}}}
  openai: {base_url: https://c.example/v1, dialect: openai-chat, models: {gpt-5.4-nano: {model: gpt-5.4-nano}}}
"""


def problems_of(text: bytes | str) -> list[str]:
    with pytest.raises(ConfigurationError) as refused:
        load(text.encode() if isinstance(text, str) else text)
    return [str(problem) for problem in refused.value.problems]


def test_one_report_names_everything_that_is_wrong_with_a_file() -> None:
    wanted = (HERE / "wrong.txt").read_text().splitlines()
    assert problems_of((HERE / "wrong.yaml").read_bytes()) == wanted
    assert len(wanted) > 40
    assert "secret-value" not in "".join(wanted)


def test_the_example_group_is_taken_as_it_stands_once_its_providers_exist() -> None:
    taken = load((HERE / "group.yaml").read_bytes() + PROVIDERS)
    group = taken.document.models["adaptive-agent"]
    policy = group.routing_policy.dynamic_score
    assert [(target.provider, target.model_ref, target.weight) for target in group.targets] == [
        ("baseten", "gpt-oss-120b", Decimal(60)),
        ("minimax", "m3", Decimal(25)),
        ("openai", "gpt-5.4-nano", Decimal(5)),
    ]
    assert [term.name for term in policy.score_terms] == ["cheapest_fast_enough", "complex_quality_floor"]
    assert policy.thresholds == document.ScoreThresholds(
        max_error_rate=0.03, max_timeout_rate=0.02, max_p95_latency_ms=10_000
    )
    assert policy.signals.prompt_features.features == (
        *("code", "diff", "stack_trace", "summarize", "extract", "security_review", "tool_agent"),
    )


def test_the_example_group_without_its_providers_names_each_missing_one() -> None:
    assert problems_of((HERE / "group.yaml").read_bytes()) == [
        f"models.adaptive-agent.targets[{number}].provider: unknown provider '{name}' (line {line})"
        for number, name, line in ((0, "baseten", 5), (1, "minimax", 9), (2, "openai", 13))
    ]


def test_the_annotated_example_is_good_and_shows_every_key() -> None:
    text = Path("config.example.yaml").read_bytes()
    assert load(text).document.models
    uncommented = "\n".join(
        line.replace("# ", "", 1) if line.lstrip().startswith("# ") and ":" in line else line
        for line in text.decode().splitlines()
    )
    missing = [
        f"{kind.__name__}.{name}"
        for kind in KINDS
        for name in kind.__dataclass_fields__
        if name != "overrides" and f"{name}:" not in uncommented
    ]
    assert missing == []


KINDS: tuple[Any, ...] = (
    *(document.Provider, document.Timeouts, document.ResponseLimits, document.Model, document.ToolSupport),
    *(document.Reasoning, document.Validation, document.Group, document.Target, document.Attempts, document.CoolDown),
    *(document.HealthThresholds, document.Probe, document.DynamicScore, document.Affinity, document.HardFilters),
    *(document.Signals, document.PromptFeatures, document.When, document.ScoreTerm, document.EvaluationMetadata),
    *(document.ScoreThresholds, CallerEntry),
)


def test_every_key_is_documented() -> None:
    text = Path("docs/configuration.md").read_text()
    assert [
        f"{kind.__name__}.{name}"
        for kind in KINDS
        for name in kind.__dataclass_fields__
        if name != "overrides" and f"`{name}`" not in text
    ] == []


def test_small_weights_and_zero_survive_writing_and_reading() -> None:
    weights = [Decimal("0.004"), Decimal("0.001"), Decimal(995), Decimal(0)]
    wanted = some_document(declared_group([declared_target(weight=weight) for weight in weights]))
    text = dump(wanted, {})
    assert [line.strip() for line in text.splitlines() if "weight" in line] == [
        *("weight: 0.004", "weight: 0.001", "weight: 995", "weight: 0"),
    ]
    assert load(text.encode()).document == wanted


def test_a_written_file_has_sorted_names_and_the_documented_order_of_keys() -> None:
    wanted = some_document(
        models={
            "b": declared_group(description="B", attempts=document.Attempts(max=2)),
            "a": declared_group(
                [declared_target(weight=Decimal("0.5"), reasoning=None, tags=("x", "y, z"))], strategy="weighted"
            ),
        },
        providers={
            "house": declared_provider(
                {"small": document.Model(model="yes", context_tokens=1)}, headers={"b": "1", "a": "off"}
            )
        },
    )
    callers = {"z": CallerEntry(allow=("*",)), "c": CallerEntry(project="p", allow=("a",), active=False)}
    assert (
        dump(wanted, callers)
        == """\
version: 1
providers:
  house:
    base_url: http://127.0.0.1:9001/v1
    dialect: openai-chat
    headers:
      a: 'off'
      b: '1'
    models:
      small:
        model: 'yes'
        context_tokens: 1
models:
  a:
    strategy: weighted
    targets:
      - provider: house
        model_ref: small
        weight: 0.5
        tags: [x, 'y, z']
        reasoning: null
  b:
    description: B
    strategy: dynamic_score
    attempts:
      max: 2
    targets:
      - provider: house
        model_ref: small
callers:
  c:
    project: p
    allow: [a]
    active: false
  z:
    allow: ['*']
"""
    )
    assert load(dump(wanted, callers).encode()) == Configuration(document=wanted, callers=callers)


def test_a_literal_key_is_read_and_never_written() -> None:
    taken = load(b"providers: {house: {base_url: 'http://[::1]:9001/v1', dialect: openai-chat, api_key: sk-literal}}")
    assert taken.document.providers["house"].api_key == "sk-literal"
    assert "sk-literal" not in dump(taken.document, {}) + repr(taken)


def test_an_empty_file_is_refused_because_it_would_remove_everything() -> None:
    told = ["the file is empty; `providers: {}` says that nothing is configured"]
    assert problems_of(b"") == told
    assert problems_of(b"# nothing\n---\n") == told
    assert load(b"providers: {}").document == document.Document()


def test_callers_name_groups_that_exist() -> None:
    text = "models: {}\ncallers:\n  a: {allow: ['*']}\n  b: {allow: [chat]}\n"
    assert problems_of(text) == ["callers.b.allow[0]: unknown group 'chat' (line 4)"]


def test_an_alias_bomb_is_refused_by_its_first_anchor() -> None:
    bomb = "a0: &a0 [lol]\n" + "".join(
        f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 10)
    )
    assert problems_of(bomb)[0] == "a0: anchors and aliases ('a0') are not taken; write the value out (line 1)"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: [1\nb: 2", "line 2, column 2: while parsing a flow sequence, did not find expected ',' or ']'"),
        ("a: 1\n---\nb: 2\n", "line 2: a second document begins here; the file holds one"),
        ("a: !!python/name:os.system x", "a: tags (words that begin with '!') are not taken (line 1)"),
        ("a: {b: 1, b: 2}", "a.b: given again in line 1 (line 1)"),
        ("a: {<<: {b: 1}}", "a['<<']: merge keys are not taken; write the keys out (line 1)"),
        ("1: a", "1: a key must be text; put it in quotes (line 1)"),
        ("true: a", "true: a key must be text; put it in quotes (line 1)"),
        ("? [a]\n: b", "line 1: a key must be text"),
        ("[" * 40, "line 1: nested deeper than 32"),
        ("a: " * 3, "line 1, column 5: mapping values are not allowed in this context"),
        (
            "a: \x07",
            'unacceptable character #x0007: control characters are not allowed in "<unicode string>", position 3',
        ),
        ("#" * (4 * 1024 * 1024 + 1), "the file is larger than 4,194,304 bytes"),
    ],
)
def test_what_is_not_plain_data_is_refused_with_its_place(text: str, told: str) -> None:
    parsed = strict_yaml.parse(text.encode())
    shown = [
        f"{problem} (line {parsed.lines[problem.path]})" if problem.path else str(problem)
        for problem in parsed.problems
    ]
    assert told in shown


def test_bytes_that_are_not_utf8_are_refused_with_their_line() -> None:
    assert problems_of(b"a: 1\nb: \xff\n") == ["line 2: the file is not UTF-8"]


def test_words_mean_what_yaml_1_2_says() -> None:
    text = (
        "[on, off, yes, no, y, 010, 0x1f, 1_000, 12:30:00, 2026-11-01, ~, null, true, False, 7, -7, 0.5, 1e3, .5, '']"
    )
    assert strict_yaml.parse(text.encode()).data == [
        *("on", "off", "yes", "no", "y", "010", "0x1f", "1_000", "12:30:00", "2026-11-01", None, None, True, False),
        *(7, -7, Decimal("0.5"), Decimal(1000), Decimal("0.5"), ""),
    ]


def test_numbers_that_cannot_be_kept_are_refused() -> None:
    def weight(text: str) -> list[str]:
        group = f"chat: {{strategy: static, targets: [{{provider: house, model: m, weight: {text}}}]}}"
        return problems_of(
            f"providers: {{house: {{base_url: http://127.0.0.1/v1, dialect: openai-chat}}}}\nmodels: {{{group}}}"
        )

    place = "models.chat.targets[0].weight"
    assert weight("0.1234567890123456789") == [f"{place}: has more digits than can be kept; 15 always can (line 2)"]
    assert weight(".inf") == [f"{place}: must be a finite number (line 2)"]
    assert weight("1e300") == [f"{place}: must not be beyond 9,007,199,254,740,992 (line 2)"]
    assert weight("9" * 5000) == [f"{place}: must be a number, not text (line 2)"]


_WORDS = st.text(
    st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from("\n\t\x85\u2028:#'\"{}[],&*!|>%@`-? ")
)
_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _WORDS
    | st.sampled_from(
        ["yes", "no", "null", "1e5", "010", "0o7", "1:30", "2026-11-01", "=", "<<", ".5", "+1", "~", "True"]
    )
)
_KEYS = st.text(string.ascii_letters + string.digits + "._-", min_size=1, max_size=8)


@given(
    st.dictionaries(
        _KEYS,
        st.recursive(_LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=3)),
        max_size=4,
    )
)
def test_whatever_is_written_is_read_back_equal(data: dict[str, Any]) -> None:
    parsed = strict_yaml.parse(strict_yaml.dump(data).encode())
    assert parsed.problems == []
    assert _floats(parsed.data) == _floats(data)


def _floats(data: object) -> object:
    match data:
        case dict():
            return {key: _floats(value) for key, value in data.items()}
        case list():
            return [_floats(value) for value in data]
        case bool() | None | str():
            return data
        case _:
            return float(str(data))


@given(st.binary(max_size=200) | st.text(string.printable, max_size=200).map(str.encode))
def test_no_text_makes_the_parser_raise(text: bytes) -> None:
    strict_yaml.parse(text)


def test_differences_name_targets_and_terms_and_not_their_places() -> None:
    def said(*targets: dict[str, Any], **fields: Any) -> dict[str, Any]:
        return {"models": {"chat": {"strategy": "weighted", "targets": list(targets), **fields}}}

    old = said({"provider": "a", "model_ref": "m", "weight": 1}, {"provider": "b", "model": "n/1", "tags": ["x"]})
    new = said(
        {"provider": "c", "model_ref": "m"},
        {"provider": "b", "model": "n/1", "tags": ["x", "y"]},
        {"provider": "a", "model_ref": "m"},
        description="new",
    )
    assert differences(old, new) == [
        "+ models.chat.description: new",
        "- models.chat.targets[a/m].weight: 1",
        '~ models.chat.targets[b/n/1].tags: ["x"] -> ["x", "y"]',
        "+ models.chat.targets[c/m].provider: c",
        "+ models.chat.targets[c/m].model_ref: m",
        "~ models.chat.targets: order a/m, b/n/1 -> c/m, b/n/1, a/m",
    ]
    assert differences(old, old) == []
    assert differences({}, {}) == []
