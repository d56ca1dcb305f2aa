"""Reports that are made by the clock: what was ordered, every time it was made, and the files that came of it."""

from datetime import datetime
from zoneinfo import ZoneInfo, available_timezones

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator, validate_email
from django.db import models
from django.db.models import Q
from django.utils import timezone

from reports.core.schedule import PERIODS, WEEKDAYS, Every, Period, Schedule

LONGEST_NAME = 100
ERROR_LENGTH = 1000
"""What is kept of an error's text."""


def plain_line(text: str) -> None:
    """It becomes the subject of a mail, which is one line."""
    if any(not character.isprintable() for character in text):
        raise ValidationError("It must be one line without control characters.")


def known_zone(text: str) -> None:
    if text not in available_timezones():
        raise ValidationError(f"“{text}” is no time zone; one is called like Europe/Oslo or UTC.")


def our_zone() -> str:
    return settings.TIME_ZONE


class ReportDefinition(models.Model):
    name = models.CharField(
        max_length=LONGEST_NAME, validators=[plain_line], help_text="The subject of its mails, with the days behind it."
    )
    active = models.BooleanField(default=True, help_text="Off: it is made by hand only.")
    report = models.CharField(max_length=40)
    period = models.CharField(max_length=20, choices=list(PERIODS.items()), default="yesterday")
    zone = models.CharField(
        max_length=64,
        default=our_zone,
        validators=[known_zone],
        help_text="Where its days begin and its clock hangs, such as Europe/Oslo.",
    )
    group = models.CharField("model group", blank=True, max_length=200, help_text="Only this one. Empty: all of them.")
    caller = models.CharField(blank=True, max_length=200)
    project = models.CharField(blank=True, max_length=200)
    provider = models.CharField(blank=True, max_length=200)
    model = models.CharField("provider’s model", blank=True, max_length=200)
    baseline = models.CharField(
        blank=True,
        max_length=400,
        help_text="Of savings: the provider/model that everything is compared with. Empty: the most expensive of each group.",
    )
    every = models.CharField(
        max_length=5,
        choices=[("hour", "Hour"), ("day", "Day"), ("week", "Week"), ("month", "Month")],
        default="day",
    )
    minute = models.SmallIntegerField(default=5, validators=[MinValueValidator(0), MaxValueValidator(59)])
    hour = models.SmallIntegerField(
        default=6, validators=[MinValueValidator(0), MaxValueValidator(23)], help_text="Not for hourly ones."
    )
    weekday = models.SmallIntegerField(default=0, choices=list(enumerate(WEEKDAYS)), help_text="Of weekly ones only.")
    day = models.SmallIntegerField(
        "day of the month",
        default=1,
        validators=[MinValueValidator(1), MaxValueValidator(31)],
        help_text="Of monthly ones only. A shorter month has it on its last day.",
    )
    csv = models.BooleanField("CSV", default=True)
    json = models.BooleanField("JSON", default=False)
    html = models.BooleanField("HTML", default=True)
    recipients = models.TextField(blank=True, help_text="Mail addresses, one a line. None: it is only kept here.")
    next_run_at = models.DateTimeField("next", null=True, editable=False)
    created_by = models.CharField(blank=True, editable=False)
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        verbose_name = "scheduled report"
        ordering = ("name", "pk")
        constraints = (
            models.UniqueConstraint(fields=["name"], name="reports_reportdefinition_name"),
            models.CheckConstraint(
                condition=Q(csv=True) | Q(json=True) | Q(html=True),
                name="reports_reportdefinition_some_format",
                violation_error_message="Choose at least one format.",
            ),
            models.CheckConstraint(
                condition=Q(minute__range=(0, 59), hour__range=(0, 23), weekday__range=(0, 6), day__range=(1, 31)),
                name="reports_reportdefinition_times",
            ),
            models.CheckConstraint(
                condition=Q(every__in=["hour", "day", "week", "month"]), name="reports_reportdefinition_every"
            ),
            models.CheckConstraint(condition=Q(period__in=list(PERIODS)), name="reports_reportdefinition_period"),
        )
        indexes = (models.Index(fields=["next_run_at"], name="reports_reportdefinition_next"),)

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        addresses = self.addresses
        problems = []
        for address in addresses:
            try:
                validate_email(address)
            except ValidationError:
                problems.append(f"“{address}” is no mail address.")
        most = settings.PILOTAGE.report_max_recipients
        if len(addresses) > most:
            problems.append(f"At most {most} recipients can be named (PILOTAGE_REPORT_MAX_RECIPIENTS).")
        if len({address.casefold() for address in addresses}) < len(addresses):
            problems.append("An address stands there twice.")
        if problems:
            raise ValidationError({"recipients": problems})

    @property
    def addresses(self) -> list[str]:
        return [line.strip() for line in self.recipients.splitlines() if line.strip()]

    @property
    def formats(self) -> list[str]:
        return [name for name in ("csv", "json", "html") if getattr(self, name)]

    @property
    def schedule(self) -> Schedule:
        every: Every = self.every  # type: ignore[assignment]  # the constraint holds it
        return Schedule(
            every=every,
            zone=ZoneInfo(self.zone),
            minute=self.minute,
            hour=self.hour,
            weekday=self.weekday,
            day=self.day,
        )

    @property
    def asked_period(self) -> Period:
        period: Period = self.period  # type: ignore[assignment]  # the constraint holds it
        return period


class ReportRun(models.Model):
    """One making of it. `mailing`: made and kept, but not everybody has the mail yet."""

    STATES = (
        ("queued", "queued"),
        ("running", "running"),
        ("mailing", "mailing"),
        ("done", "done"),
        ("failed", "failed"),
        ("mail_failed", "mail failed"),
    )

    definition = models.ForeignKey(
        ReportDefinition, on_delete=models.CASCADE, related_name="runs", verbose_name="report"
    )
    state = models.CharField(max_length=12, choices=STATES, default="queued")
    due_at = models.DateTimeField("due", null=True, help_text="Empty: it was made by hand.")
    requested_by = models.CharField(blank=True, help_text="Who had it made by hand.")
    queued_at = models.DateTimeField()
    started_at = models.DateTimeField("started", null=True)
    finished_at = models.DateTimeField("finished", null=True)
    first_day = models.DateField("from", null=True)
    last_day = models.DateField("to", null=True)
    claim = models.CharField(blank=True, help_text="Of the worker that is at it.")
    tries = models.SmallIntegerField(default=0, help_text="How often a worker began to make it.")
    error = models.CharField(blank=True, max_length=ERROR_LENGTH)
    mail_to = models.JSONField(default=list, help_text="Who shall get it still.")
    mailed_to = models.JSONField(default=list, help_text="Who was sent it.")
    mail_refused = models.JSONField(default=dict, help_text="Who cannot be sent it, and why.")
    mail_tries = models.SmallIntegerField(default=0)
    mail_next_at = models.DateTimeField(null=True)

    class Meta:
        verbose_name = "run"
        ordering = ("-queued_at", "-pk")
        constraints = (
            models.UniqueConstraint(fields=["definition", "due_at"], name="reports_reportrun_once"),
            models.CheckConstraint(
                condition=Q(state__in=["queued", "running", "mailing", "done", "failed", "mail_failed"]),
                name="reports_reportrun_state",
            ),
        )
        indexes = (
            models.Index(fields=["definition", "-queued_at"], name="reports_reportrun_of"),
            models.Index(fields=["queued_at"], name="reports_reportrun_queued"),
            models.Index(
                fields=["state"],
                name="reports_reportrun_open",
                condition=Q(state__in=["queued", "running", "mailing"]),
            ),
        )

    def __str__(self) -> str:
        return f"{self.definition.name}, {self.moment:%Y-%m-%d %H:%M}"

    @property
    def moment(self) -> datetime:
        """What its period is counted from."""
        return self.due_at or self.queued_at


class ReportFile(models.Model):
    run = models.ForeignKey(ReportRun, on_delete=models.CASCADE, related_name="files")
    format = models.CharField(max_length=4)
    name = models.CharField()
    size = models.IntegerField(help_text="Bytes.")
    data = models.BinaryField()

    class Meta:
        ordering = ("format",)
        constraints = (models.UniqueConstraint(fields=["run", "format"], name="reports_reportfile_one_of_each"),)

    def __str__(self) -> str:
        return self.name
