"""What a prompt looks like, found by plain substrings: never kept, only the names of what was found."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from routing.core.document import Feature

NEEDLES: Final[dict[Feature, tuple[str, ...]]] = {
    "code": (
        "```",
        "func ",
        "\ndef ",
        " def ",
        "\tdef ",
        "\nclass ",
        "    class ",
        "\tclass ",
        "public class ",
        "function(",
        "() {",
        "=> {",
        "#include <",
        "\nimport ",
    ),
    "diff": ("diff --git", "\n@@ ", "\n--- a/"),
    "stack_trace": (
        "traceback",
        "stack trace",
        "stacktrace",
        "\n    at ",
        "\n\tat ",
        "exception in thread",
        "panicked at",
    ),
    "summarize": ("summarize", "summarise", "summary", "tl;dr"),
    "extract": ("extract", " parse ", "\nparse "),
    "translate": ("translate", "translation"),
    "security_review": ("security", "vulnerab", "exploit"),
}
"""Lower case; a text begins as a line does. `tool_agent` is not here: it says that tools are present.

Substrings, not patterns: the time is linear in the text whatever a caller sends.
"""


class FeatureScanner:
    """Looks for some features in the first bytes of a request's texts."""

    __slots__ = ("_budget", "_wanted")

    def __init__(self, features: frozenset[Feature], max_scan_bytes: int) -> None:
        self._wanted = tuple((feature, needles) for feature, needles in NEEDLES.items() if feature in features)
        self._budget = max_scan_bytes

    def scan(self, texts: Iterable[str]) -> frozenset[Feature]:
        """Features found before the byte budget is spent.

        `texts` in the order of what they tell: the newest user turn, older turns, the system text. A text is cut
        where the budget ends, never inside a character, and nothing after it is looked at.
        """
        left = self._budget
        wanted = self._wanted
        found: set[Feature] = set()
        for text in texts:
            if left <= 0 or not wanted:
                break
            head, size = _head(text, left)
            left = left - size if len(head) == len(text) else 0
            line = "\n" + head.lower()
            new = [feature for feature, needles in wanted if any(needle in line for needle in needles)]
            if new:
                found.update(new)
                wanted = tuple(pair for pair in wanted if pair[0] not in found)
        return frozenset(found)


@lru_cache(maxsize=256)
def scanner(features: frozenset[Feature], max_scan_bytes: int) -> FeatureScanner:
    """The scanner for a policy's settings, built once."""
    return FeatureScanner(features, max_scan_bytes)


def _head(text: str, limit: int) -> tuple[str, int]:
    """The longest beginning of at most `limit` UTF-8 bytes, and its size."""
    head = text[:limit]
    if head.isascii():
        return head, len(head)
    encoded = head.encode("utf-8", "surrogatepass")
    if len(encoded) <= limit:
        return head, len(encoded)
    end = limit
    while encoded[end] & 0xC0 == 0x80:
        end -= 1
    return encoded[:end].decode("utf-8", "surrogatepass"), end
