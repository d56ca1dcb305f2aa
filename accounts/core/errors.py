"""What accounts/core raises.

Exception
├── Unauthenticated       the presented secret opens nothing: 401
└── ValueError
    ├── BadDuration       a length of time that cannot be read
    └── NotIssuable       a token that may not be made as asked
"""

from typing import Literal

Reason = Literal["malformed", "unknown", "revoked", "expired", "inactive"]


class Unauthenticated(Exception):
    """`reason` is for our own log. A client is told no more than that its key is not valid."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason: Reason = reason


class BadDuration(ValueError):
    """The message says what is allowed."""


class NotIssuable(ValueError):
    """The message names what is wrong, for a person to read. `field` is the argument it is about."""

    def __init__(self, field: Literal["groups", "expires"], message: str) -> None:
        super().__init__(message)
        self.field = field
