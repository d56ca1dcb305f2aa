"""What outlives the raw rows: sums by quarter of an hour and by day, decision buckets by day, and how far each has come."""

from django.db import models
from django.db.models import F, Q
from django.utils import timezone

from reports.core.rollup import DIMENSIONS


class Summed(models.Model):
    """Sums over the exchanges of one combination of names. Names are empty where there is none, as of a refused request.

    Rows of several generations add up: a later one holds what arrived after the raw rows of the earlier had gone.
    """

    generation = models.SmallIntegerField(default=0)
    group = models.CharField(blank=True)
    caller = models.CharField(blank=True)
    project = models.CharField(blank=True)
    environment = models.CharField(blank=True)
    provider = models.CharField(blank=True, help_text="That served, or was tried last.")
    model = models.CharField(blank=True)
    strategy = models.CharField(blank=True)

    requests = models.BigIntegerField()
    streamed = models.BigIntegerField()
    success = models.BigIntegerField()
    refused = models.BigIntegerField()
    upstream_failed = models.BigIntegerField()
    upstream_truncated = models.BigIntegerField()
    client_cancelled = models.BigIntegerField()
    internal_error = models.BigIntegerField()
    aborted = models.BigIntegerField()
    attempts = models.BigIntegerField()
    fallbacks = models.BigIntegerField(help_text="Exchanges in which more than one target was tried.")

    cost_microdollars = models.BigIntegerField()
    cost_unknown = models.BigIntegerField(help_text="Exchanges whose cost is not in the sum, because it is not known.")
    input_tokens = models.BigIntegerField(help_text="Not cached. The first five counts are disjoint.")
    cache_read_tokens = models.BigIntegerField()
    cache_write_5m_tokens = models.BigIntegerField()
    cache_write_1h_tokens = models.BigIntegerField()
    output_tokens = models.BigIntegerField()
    reasoning_tokens = models.BigIntegerField(help_text="Part of the output tokens.")
    images = models.BigIntegerField()
    request_bytes = models.BigIntegerField()
    response_bytes = models.BigIntegerField()

    usage_reported = models.BigIntegerField()
    usage_estimated = models.BigIntegerField()
    usage_inconsistent = models.BigIntegerField()
    usage_none = models.BigIntegerField(help_text="No provider accepted anything.")
    prompt_cache_read = models.BigIntegerField()
    prompt_cache_written = models.BigIntegerField()
    affinity_hit = models.BigIntegerField()
    affinity_miss = models.BigIntegerField()
    affinity_expired = models.BigIntegerField()
    affinity_evicted = models.BigIntegerField()
    affinity_ineligible = models.BigIntegerField()
    affinity_disabled = models.BigIntegerField()

    duration_us = models.BigIntegerField(help_text="Microseconds in all; with the count of the histogram, the mean.")
    first_content_us = models.BigIntegerField()
    queued_us = models.BigIntegerField()
    duration = models.BinaryField(help_text="reports.core.latency.Histogram of milliseconds, as are the next two.")
    first_content = models.BinaryField()
    queued = models.BinaryField()

    class Meta:
        abstract = True


class SlotRollup(Summed):
    """A quarter of an hour of UTC: the days and hours of every zone are whole numbers of them."""

    slot = models.DateTimeField(help_text="Its start.")

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=["slot", "generation", *DIMENSIONS], name="reports_slotrollup_one_row"),
        )

    def __str__(self) -> str:
        return f"{self.slot:%Y-%m-%dT%H:%MZ} {self.group}"


class DailyRollup(Summed):
    """A day of the zone that was the installation's when it was summed."""

    zone = models.CharField()
    day = models.DateField()

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=["zone", "day", "generation", *DIMENSIONS], name="reports_dailyrollup_one_row"
            ),
        )

    def __str__(self) -> str:
        return f"{self.day} {self.group}"


class DecisionBucket(models.Model):
    """How often a day's decisions fell into one bucket of one dimension: see `reports.core.buckets.DIMENSIONS`."""

    zone = models.CharField()
    day = models.DateField()
    generation = models.SmallIntegerField(default=0)
    group = models.CharField(blank=True)
    dimension = models.CharField()
    bucket = models.CharField()
    target = models.CharField(blank=True)
    provider = models.CharField(blank=True)
    model = models.CharField(blank=True)
    count = models.BigIntegerField()

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=["zone", "day", "generation", "dimension", "group", "bucket", "target", "provider", "model"],
                name="reports_decisionbucket_one_row",
            ),
        )

    def __str__(self) -> str:
        return f"{self.day} {self.group} {self.dimension} {self.bucket}"


class Rolled(models.Model):
    """How far one period has been summed, and which raw rows may be gone."""

    version = models.BigIntegerField(default=0, help_text="One more with every replacement and every reason for one.")
    generation = models.SmallIntegerField(default=0, help_text="The one that is replaced. Earlier ones are final.")
    sealed_through = models.BigIntegerField(default=0, help_text="The last exchange that earlier generations hold.")
    rolled_at = models.DateTimeField(null=True)

    class Meta:
        abstract = True


class RolledHour(Rolled):
    """An hour of UTC, of which the slots were summed."""

    hour = models.DateTimeField(unique=True)

    def __str__(self) -> str:
        return f"{self.hour:%Y-%m-%dT%HZ}"


class RolledDay(Rolled):
    """A day of a zone, of which the daily rows and the buckets were summed. Kept for ever: it says what is gone."""

    zone = models.CharField()
    day = models.DateField()
    stale = models.BooleanField(default=True, help_text="One of its hours was summed again since.")
    slots_sealed_through = models.BigIntegerField(default=0, help_text="The last slot that earlier generations hold.")
    detail_gone = models.BooleanField(default=False, help_text="None of its detail is left, nor of the next two.")
    attempts_gone = models.BooleanField(default=False)
    exchanges_gone = models.BooleanField(default=False)
    slots_gone = models.BooleanField(default=False, help_text="Slots of it were deleted.")

    class Meta:
        constraints = (models.UniqueConstraint(fields=["zone", "day"], name="reports_rolledday_one_row"),)

    def __str__(self) -> str:
        return f"{self.day} {self.zone}"


class LegalHold(models.Model):
    """Exchanges that match all that is filled in are kept with their detail, whatever their age, until it is released."""

    caller = models.CharField(blank=True, help_text="A caller's name.")
    project = models.CharField(blank=True)
    group = models.CharField(blank=True, help_text="A model group's name.")
    request_id = models.CharField(blank=True, help_text="The x-request-id of one exchange.")
    started_from = models.DateTimeField("from", null=True, blank=True, help_text="Exchanges that began then or later.")
    started_before = models.DateTimeField("to", null=True, blank=True, help_text="Exchanges that began before.")
    reason = models.CharField(help_text="Shown wherever something is kept because of it.")
    created_by = models.CharField(blank=True, editable=False)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    released_at = models.DateTimeField(null=True, blank=True, help_text="Filled in: it holds nothing any more.")

    class Meta:
        ordering = ("-created_at", "-pk")
        constraints = (
            models.CheckConstraint(
                condition=~Q(caller="", project="", group="", request_id="", started_from=None, started_before=None),
                name="reports_legalhold_names_something",
                violation_error_message="Say what is to be kept: a caller, project, group, request id or a time.",
            ),
            models.CheckConstraint(
                condition=Q(started_from=None) | Q(started_before=None) | Q(started_from__lt=F("started_before")),
                name="reports_legalhold_begins_before_its_end",
                violation_error_message="It must begin before it ends.",
            ),
        )

    def __str__(self) -> str:
        return f"{self.names()}: {self.reason}"

    def names(self) -> str:
        """What it keeps, in words."""
        said = [
            f"{field} {value}"
            for field in ("caller", "project", "group", "request_id")
            if (value := getattr(self, field))
        ]
        if self.started_from is not None:
            said.append(f"from {timezone.localtime(self.started_from):%Y-%m-%d %H:%M}")
        if self.started_before is not None:
            said.append(f"to {timezone.localtime(self.started_before):%Y-%m-%d %H:%M}")
        return ", ".join(said).replace("request_id ", "")
