import time

import pytest

from routing.core.features import NEEDLES, scanner

ALL = frozenset(NEEDLES)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Fix this:\n```python\nprint(1)\n```", {"code"}),
        ("func main() {}", {"code"}),
        ("class Foo:\n    def bar(self): ...", {"code"}),
        ("def f(x): return x", {"code"}),
        ("diff --git a/x b/x\n@@ -1 +1 @@", {"diff"}),
        ("Traceback (most recent call last):", {"stack_trace"}),
        ("java.lang.Error: no\n\tat Main.run(Main.java:3)", {"stack_trace"}),
        ("Please SUMMARISE the minutes", {"summarize"}),
        ("a summary, please", {"summarize"}),
        ("Extract all dates", {"extract"}),
        ("please parse this log", {"extract"}),
        ("Translate into French", {"translate"}),
        ("any vulnerability here?", {"security_review"}),
        ("We flew first class to a world class hotel with sparse rooms", set()),
        ("", set()),
    ],
)
def test_a_text_shows_these_features(text: str, found: set[str]) -> None:
    assert scanner(ALL, 16_384).scan([text]) == found


def test_only_features_that_the_policy_lists_are_looked_for() -> None:
    assert scanner(frozenset({"translate"}), 16_384).scan(["```code``` to translate and summarize"]) == {"translate"}


def test_texts_are_scanned_in_the_order_given_until_the_budget_is_spent() -> None:
    texts = ["x" * 10, "translate", "summary"]
    found = [scanner(ALL, budget).scan(texts) for budget in (0, 10, 18, 19, 25, 26)]
    assert found == [set(), set(), set(), {"translate"}, {"translate"}, {"translate", "summarize"}]


def test_nothing_after_a_cut_text_is_looked_at() -> None:
    assert scanner(ALL, 12).scan(["é" * 7, "summary"]) == set()


def test_no_character_is_cut() -> None:
    for text, size in (("aé", 3), ("a€", 4), ("a😀", 5)):
        for budget in range(1, size + 8):
            expected = {"translate"} if budget >= size + len("translate") else set()
            assert scanner(ALL, budget).scan([text, "translate"]) == expected
    assert scanner(ALL, 16).scan(["translate é" + "é" * 20]) == {"translate"}


def test_a_lone_surrogate_is_read_as_any_character() -> None:
    assert scanner(ALL, 100).scan(["\ud800 translate \udfff"]) == {"translate"}
    assert scanner(ALL, 4).scan(["\ud800\ud800"]) == set()


def test_a_scanner_is_built_once_for_its_settings() -> None:
    assert scanner(frozenset({"code"}), 100) is scanner(frozenset({"code"}), 100)
    assert scanner(frozenset({"code"}), 100) is not scanner(frozenset({"code"}), 101)


@pytest.mark.parametrize("text", ["\n" * 65_536, " " * 65_536, "a" * 65_536, "\n    " * 13_107, "def " * 16_384])
def test_no_text_takes_more_than_linear_time(text: str) -> None:
    scan = scanner(ALL, 65_536).scan
    started = time.thread_time()
    scan([text])
    assert time.thread_time() - started < 0.1


def test_a_large_text_costs_only_its_beginning() -> None:
    text = "é" * 20_000_000
    started = time.thread_time()
    scanner(ALL, 1_024).scan([text])
    assert time.thread_time() - started < 0.01
