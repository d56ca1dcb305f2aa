"""The dialects that the gateway speaks, by name."""

from collections.abc import Mapping
from typing import Final

from gateway.dialects import anthropic_messages, openai_chat
from gateway.dialects.neutral import DialectModule
from routing.core.document import Dialect

_CHAT: Final[DialectModule] = openai_chat
_MESSAGES: Final[DialectModule] = anthropic_messages

BY_NAME: Final[Mapping[Dialect, DialectModule]] = {module.NAME: module for module in (_CHAT, _MESSAGES)}
