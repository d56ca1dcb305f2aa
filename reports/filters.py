"""What a report is about: a period of a zone and names, read from the address and kept in it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache, cached_property
from typing import Any, Final, Literal
from urllib.parse import urlencode
from zoneinfo import ZoneInfo, available_timezones

from django import forms
from django.conf import settings
from django.db.models import Q

from reports.core.rollup import HOUR, OUTCOMES, SLOT, Span, day_of, day_span, slot_of
from reports.rollups import report_zone

Period = Literal["today", "7d", "30d", "month", "custom"]
PERIODS: Final[Mapping[Period, str]] = {
    "today": "Today",
    "7d": "7 days",
    "30d": "30 days",
    "month": "This month",
    "custom": "From – to",
}
DEFAULT: Final[Period] = "7d"
NAMES: Final = ("group", "caller", "project", "provider", "model")
"""Columns that exchanges and their sums have alike."""
ODDITIES: Final[Mapping[str, tuple[str, Q]]] = {
    "failed": ("Failed", Q(outcome__in=("upstream_failed", "upstream_truncated", "internal_error", "aborted"))),
    "fell_back": ("With a fallback", Q(fell_back=True)),
    "cost_unknown": ("Cost not known", Q(cost_microdollars=None)),
    "estimated": ("Usage estimated or inconsistent", Q(usage_quality__in=("estimated", "inconsistent"))),
    "held": ("Under legal hold", Q(legal_hold=True)),
}
"""What a list of exchanges can be narrowed to."""
HOURLY_DAYS: Final = 2
"""Periods up to so many days are shown by hours."""
LONGEST_NAME: Final = 200


@dataclass(frozen=True, kw_only=True)  # without slots: what is computed once is kept
class Filters:
    period: Period
    first: date
    last: date
    """Days of the zone, both included."""
    zone: ZoneInfo
    now: datetime
    group: str = ""
    """Here and in the next four: a name, or empty for all."""
    caller: str = ""
    project: str = ""
    provider: str = ""
    model: str = ""
    baseline: str = ""
    """Of the savings: `provider/model`, or empty for the most expensive target of each group."""

    @cached_property
    def span(self) -> Span:
        """Until the end of the running quarter of an hour at most."""
        start, end = day_span(self.first, self.zone).start, day_span(self.last, self.zone).end
        return Span(start=start, end=max(start, min(end, slot_of(self.now) + SLOT)))

    @cached_property
    def before(self) -> Span:
        """As long a time, ending as far into its last day as this one: today until ten o'clock is compared with
        yesterday until ten o'clock, this month until the 12th with the last until the 12th."""
        if self.period == "month":
            last_of_before = self.first - timedelta(days=1)
            start = day_span(last_of_before.replace(day=1), self.zone).start
            limit = day_span(last_of_before, self.zone).end
        else:
            days = (self.last - self.first).days + 1
            start = day_span(self.first - timedelta(days=days), self.zone).start
            limit = self.span.start
        return Span(start=start, end=min(limit, start + (self.span.end - self.span.start)))

    @property
    def by_hours(self) -> bool:
        return (self.last - self.first).days < HOURLY_DAYS

    @cached_property
    def buckets(self) -> tuple[str, ...]:
        """Labels of the steps that charts over time have: hours or days of the zone."""
        if self.by_hours:
            return tuple(_hour_label(start, self) for start in _hours(self.span))
        return tuple(f"{self.first + timedelta(days=step):%m-%d}" for step in range((self.last - self.first).days + 1))

    @cached_property
    def _places(self) -> dict[datetime, int]:
        return {}

    def bucket_of(self, slot: datetime) -> int:
        """Place in `buckets` of a quarter of an hour within the span. Asked for many rows of each."""
        place = self._places.get(slot)
        if place is None:
            by_hours = self.by_hours
            place = int((slot - self.span.start) // HOUR) if by_hours else (day_of(slot, self.zone) - self.first).days
            self._places[slot] = place
        return place

    def bucket_of_day(self, day: date) -> int:
        """As `bucket_of`, for a day that is known as a whole: by hours it stands at its first."""
        if self.by_hours:
            return max(0, int((day_span(day, self.zone).start - self.span.start) // HOUR))
        return (day - self.first).days

    @property
    def names(self) -> dict[str, str]:
        return {name: value for name in NAMES if (value := getattr(self, name))}

    @property
    def words(self) -> str:
        """The period, for a person."""
        days = f"{self.first}" if self.first == self.last else f"{self.first} to {self.last}"
        return f"{days}, {self.zone.key}"

    def query(self, **changes: str) -> str:
        """The query string that gives these filters, with some of them changed; empty ones are left out."""
        said: dict[str, str] = {"period": self.period}
        if self.period == "custom":
            said |= {"from": self.first.isoformat(), "to": self.last.isoformat()}
        if self.zone != report_zone():
            said["zone"] = self.zone.key
        said |= self.names
        if self.baseline:
            said["baseline"] = self.baseline
        return urlencode({name: value for name, value in (said | changes).items() if value})


@cache
def _zones() -> frozenset[str]:
    """The operating system's and Python's: finding them takes a walk through their folders."""
    return frozenset(available_timezones())


def _hours(span: Span) -> Iterator[datetime]:
    hour = span.start
    while hour < span.end:
        yield hour
        hour += HOUR


def _hour_label(start: datetime, filters: Filters) -> str:
    local = start.astimezone(filters.zone)
    return f"{local:%H:%M}" if filters.first == filters.last else f"{local:%m-%d %H:%M}"


class FilterForm(forms.Form):
    """Reads filters. Give it `request.GET`; what is absent has its default."""

    def __init__(
        self,
        data: Mapping[str, Any],
        *,
        now: datetime,
        names: Mapping[str, list[str]] | None = None,
        baselines: Sequence[str] | None = None,
    ) -> None:
        """`names`: what can be chosen for each of `NAMES`; what was asked for is added to it. `baselines`: what savings
        can be measured against; `None` where the question does not arise."""
        super().__init__({"period": DEFAULT, "zone": report_zone().key, **dict(data.items())})
        self._now = now
        periods = forms.ChoiceField(choices=list(PERIODS.items()))
        self.fields["period"] = periods
        for name in ("from", "to"):
            widget = forms.DateInput(attrs={"type": "date"}, format="%Y-%m-%d")
            self.fields[name] = forms.DateField(required=False, widget=widget, input_formats=["%Y-%m-%d"])
        zones = forms.TextInput(attrs={"list": "report-zones", "autocomplete": "off", "spellcheck": "false"})
        self.fields["zone"] = forms.CharField(widget=zones, max_length=LONGEST_NAME)
        for name in NAMES:
            known = sorted({*((names or {}).get(name, ())), *((str(data[name]),) if data.get(name) else ())})
            choices = [("", f"All {name}s"), *((each, each) for each in known)]
            self.fields[name] = forms.CharField(
                required=False, max_length=LONGEST_NAME, widget=forms.Select(choices=choices)
            )
        against: forms.Widget = forms.HiddenInput()
        if baselines is not None:
            asked = [str(data["baseline"])] if data.get("baseline") and data["baseline"] not in baselines else []
            known = [(name, name) for name in (*baselines, *asked)]
            against = forms.Select(choices=[("", "Most expensive target of each group"), *known])
        self.fields["baseline"] = forms.CharField(required=False, max_length=2 * LONGEST_NAME, widget=against)

    @property
    def zones(self) -> list[str]:
        """To choose from while typing."""
        return sorted(name for name in _zones() if "/" in name and not name.startswith("Etc/"))

    def clean_zone(self) -> ZoneInfo:
        named = self.cleaned_data["zone"]
        if named not in _zones():
            raise forms.ValidationError(f"“{named}” is no time zone; one is called like Europe/Oslo or UTC.")
        return ZoneInfo(named)

    def clean(self) -> dict[str, Any]:
        said: dict[str, Any] = super().clean() or {}
        if said.get("period") == "custom":
            for name in ("from", "to"):
                if name not in self.errors and said.get(name) is None:
                    self.add_error(name, "A period from – to needs both days.")
            first, last = said.get("from"), said.get("to")
            most = settings.PILOTAGE.report_max_days
            if first and last and last < first:
                self.add_error("to", "It must not end before it begins.")
            elif first and last and (last - first).days >= most:
                self.add_error("to", f"At most {most:,} days can be shown at once (PILOTAGE_REPORT_MAX_DAYS).")
            elif first and last and not 1970 < first.year <= last.year < 9990:
                self.add_error("from", "Years from 1971 to 9989 can be shown.")
        return said

    @property
    def extra(self) -> dict[str, str]:
        """What a longer form asks for beside the filters, where it was said."""
        return {}

    def filters(self) -> Filters:
        """Only when the form is valid."""
        said = self.cleaned_data
        zone: ZoneInfo = said["zone"]
        today = day_of(self._now.astimezone(UTC), zone)
        first, last = {
            "today": (today, today),
            "7d": (today - timedelta(days=6), today),
            "30d": (today - timedelta(days=29), today),
            "month": (today.replace(day=1), today),
            "custom": (said.get("from") or today, said.get("to") or today),
        }[said["period"]]
        names = {name: said[name] for name in (*NAMES, "baseline")}
        return Filters(period=said["period"], first=first, last=last, zone=zone, now=self._now, **names)


class ExchangeForm(FilterForm):
    """Of the list of exchanges."""

    def __init__(self, data: Mapping[str, Any], *, now: datetime, names: Mapping[str, list[str]] | None = None) -> None:
        super().__init__(data, now=now, names=names)
        outcomes = [("", "All outcomes"), *((word, word.replace("_", " ")) for word in OUTCOMES)]
        self.fields["outcome"] = forms.ChoiceField(choices=outcomes, required=False)
        odd = [("", "All"), *((word, title) for word, (title, _) in ODDITIES.items())]
        self.fields["only"] = forms.ChoiceField(choices=odd, required=False)

    @property
    def extra(self) -> dict[str, str]:
        return {name: said for name in ("outcome", "only") if (said := self.cleaned_data[name])}
