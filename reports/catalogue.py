"""All reports by name, and how one is made: for the pages, the exports and whoever makes them on a schedule."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from reports import report_decisions, report_odd, report_performance, report_reliability, report_savings, report_usage
from reports.filters import Filters
from reports.queries import Scope, scope
from reports.tables import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    title: str
    icon: str
    """Of the sidebar."""
    build: Callable[[Filters, Scope], Report]
    right: str = "reports.view_dailyrollup"
    """What one must be allowed to see it."""


REPORTS: Final[Mapping[str, Entry]] = {
    "usage": Entry(title="Usage", icon="bar_chart", build=report_usage.usage),
    "cost": Entry(title="Cost", icon="payments", build=report_usage.cost),
    "savings": Entry(title="Savings", icon="savings", build=report_savings.savings),
    "performance": Entry(title="Performance", icon="speed", build=report_performance.performance),
    "decisions": Entry(title="Routing decisions", icon="alt_route", build=report_decisions.decisions),
    "reliability": Entry(title="Reliability", icon="health_and_safety", build=report_reliability.reliability),
    "odd": Entry(title="Expensive and odd", icon="troubleshoot", build=report_odd.odd, right="reports.view_exchange"),
}
"""All are made of sums, but for the last, which looks at a bounded number of exchanges."""


def build(slug: str, filters: Filters) -> Report:
    """Raises `KeyError` for a name that is not in `REPORTS`."""
    return REPORTS[slug].build(filters, scope(filters))
