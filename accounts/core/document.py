"""Callers as the configuration file says them. Tokens are never in it."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerEntry:
    """One caller under `callers`. Field names and defaults are the file's."""

    project: str = ""
    environment: str = ""
    allow: tuple[str, ...] = ()
    """Group names; `*` for every group."""
    active: bool = True
    see_routing: bool = False
    """Answers to this caller name the serving target and the decision's mode."""
    tags: tuple[str, ...] = ()
    """For the `caller_tag` condition of score terms."""
    spend_ceiling: Mapping[str, object] = field(default_factory=dict)
    """Not served by this release: only an empty mapping is accepted."""
    limits: Mapping[str, object] = field(default_factory=dict)
    """Not served by this release: only an empty mapping is accepted."""
