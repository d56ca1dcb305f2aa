"""What routing/core raises.

Exception
├── ValueError
│   ├── ExpressionError       a score expression that cannot be read
│   └── ConfigurationError    a Document that cannot become a Catalog
└── ArithmeticError
    └── NotANumber            (catalog.py) an expression without a finite value
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong in a configuration, for a person to read."""

    path: str
    """`models.chat.targets[1].weight`; empty: the whole."""
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class ExpressionError(ValueError):
    """`unknown score 'latencey_score' at 8; did you mean 'latency_score'?`"""

    def __init__(self, message: str, position: int, suggestion: str | None = None) -> None:
        super().__init__(message, position, suggestion)
        self.message = message
        self.position = position
        """Column as people count: the first character is 1."""
        self.suggestion = suggestion

    def __str__(self) -> str:
        hint = f"; did you mean '{self.suggestion}'?" if self.suggestion else ""
        return f"{self.message} at {self.position}{hint}"


class ConfigurationError(ValueError):
    """Everything that is wrong with a configuration, at least one Problem."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__(tuple(problems))
        self.problems = tuple(problems)

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))
