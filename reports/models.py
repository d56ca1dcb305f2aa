"""What happened, as rows: exchanges and their detail, and where ingest stands. Scalars and names, never a text of anybody's.

Only ingest writes the raw rows. They refer to nothing outside: a provider or a caller may be renamed or gone.
"""

from django.db import models

import reports.rollup_models
import reports.scheduled_models  # noqa: F401 - Django looks for models here alone


class Exchange(models.Model):
    """One request and its whole answer. Written once, when it is over; `OpenExchange` holds those under way.

    A count, price or cost that is null is unknown, and zero means zero.
    """

    request_id = models.CharField(help_text="What the client saw as x-request-id.")
    started_at = models.DateTimeField(help_text="Decides the hour and the day that the exchange belongs to.")
    caller = models.CharField(blank=True)
    project = models.CharField(blank=True)
    environment = models.CharField(blank=True)
    token = models.CharField(blank=True, help_text="Its first 12 characters.")
    endpoint = models.CharField(blank=True)
    group = models.CharField(blank=True)
    dialect = models.CharField(blank=True)
    stream = models.BooleanField()
    revision = models.BigIntegerField()

    status = models.SmallIntegerField(null=True, help_text="Null: the process died before it was known.")
    outcome = models.CharField()
    error_code = models.CharField(blank=True)
    error_detail = models.CharField(blank=True)
    terminal_marker = models.CharField(blank=True)

    duration_ms = models.FloatField(null=True)
    first_content_ms = models.FloatField(null=True)
    queued_ms = models.FloatField(default=0)
    request_bytes = models.BigIntegerField(default=0)
    response_bytes = models.BigIntegerField(default=0)

    strategy = models.CharField(blank=True)
    mode = models.CharField(blank=True)
    affinity = models.CharField(blank=True)
    tie_break = models.CharField(blank=True)
    propensity = models.FloatField(null=True)
    target = models.CharField(blank=True, help_text="That served, or was tried last.")
    provider = models.CharField(blank=True)
    model = models.CharField(blank=True)
    attempt_count = models.SmallIntegerField(default=0)
    candidate_count = models.SmallIntegerField(default=0, help_text="Rows in Candidate, as long as they are kept.")
    exclusion_count = models.SmallIntegerField(default=0, help_text="Rows in Exclusion, as long as they are kept.")
    fell_back = models.BooleanField(default=False, help_text="More than one target was tried.")
    signals = models.JSONField(default=list, help_text="Names of the enabled signals.")
    matched_terms = models.JSONField(default=list)
    flags = models.JSONField(default=list, help_text="Of the decision.")

    input_tokens_estimated = models.BigIntegerField(default=0)
    output_cap = models.BigIntegerField(null=True)
    tool_count = models.IntegerField(default=0)
    image_count = models.IntegerField(default=0)
    complexity = models.FloatField(default=0)
    prompt_features = models.JSONField(default=list)
    input_bucket = models.CharField(blank=True)
    output_cap_bucket = models.CharField(blank=True)
    complexity_bucket = models.CharField(blank=True)

    input_tokens = models.BigIntegerField(null=True, help_text="Not cached. The first five counts are disjoint.")
    cache_read_tokens = models.BigIntegerField(null=True)
    cache_write_5m_tokens = models.BigIntegerField(null=True)
    cache_write_1h_tokens = models.BigIntegerField(null=True)
    output_tokens = models.BigIntegerField(null=True)
    reasoning_tokens = models.BigIntegerField(null=True, help_text="Part of the output tokens.")
    usage_quality = models.CharField()
    prompt_cache = models.CharField(help_text="read, written, none, or unknown: what the provider said of its cache.")

    input_price = models.BigIntegerField(null=True, help_text="At admission, in micro-dollars per million tokens.")
    cache_read_price = models.BigIntegerField(null=True)
    cache_write_5m_price = models.BigIntegerField(null=True)
    cache_write_1h_price = models.BigIntegerField(null=True)
    output_price = models.BigIntegerField(null=True)
    cost_microdollars = models.BigIntegerField(null=True, help_text="Null: a price that it needs is unknown.")
    cost_flags = models.JSONField(default=list)

    legal_hold = models.BooleanField(default=False, help_text="Kept, with its detail, whatever its age.")
    ingested_at = models.DateTimeField()

    class Meta:
        constraints = (models.UniqueConstraint(fields=["request_id"], name="reports_exchange_request_id"),)
        indexes = (
            models.Index(fields=["started_at"], name="reports_exchange_started"),
            models.Index(fields=["group", "started_at"], name="reports_exchange_group"),
            models.Index(fields=["caller", "started_at"], name="reports_exchange_caller"),
            models.Index(fields=["project", "started_at"], name="reports_exchange_project"),
        )

    def __str__(self) -> str:
        return self.request_id


class Detail(models.Model):
    """A row of an exchange's detail, which retention may delete before the exchange. `place` counts from 0."""

    place = models.SmallIntegerField()

    class Meta:
        abstract = True


class Attempt(Detail):
    """One upstream call, in the order of trying. Sums are made of exchanges: a served attempt repeats its exchange's."""

    pk = models.CompositePrimaryKey("exchange_id", "place")
    exchange = models.ForeignKey(Exchange, on_delete=models.CASCADE, related_name="attempts", db_index=False)
    target = models.CharField()
    provider = models.CharField()
    model = models.CharField()
    outcome = models.CharField()
    status = models.SmallIntegerField(null=True, help_text="The provider's; null: none came.")
    error_code = models.CharField(blank=True)
    started_ms = models.FloatField(help_text="From the exchange's start.")
    duration_ms = models.FloatField()
    first_content_ms = models.FloatField(null=True, help_text="From the attempt's start.")
    retry_after_s = models.FloatField(null=True)
    served = models.BooleanField(help_text="The exchange's usage and cost are this attempt's.")
    input_tokens = models.BigIntegerField(null=True, help_text="Of all input classes. Null: the provider did not say.")
    output_tokens = models.BigIntegerField(null=True)
    cost_microdollars = models.BigIntegerField(null=True)

    def __str__(self) -> str:
        return f"{self.target}: {self.outcome}"


class Candidate(Detail):
    """A target that could have served, in the order of trying, with the numbers behind its place.

    `scores` is `{name: [raw, value]}` or `[raw, value, flag]`, `terms` is `[[name, share, value, preferred tags, flag]]`:
    a row for each would be several times as many rows as all others together.
    """

    pk = models.CompositePrimaryKey("exchange_id", "place")
    exchange = models.ForeignKey(Exchange, on_delete=models.CASCADE, related_name="candidates", db_index=False)
    target = models.CharField()
    weight = models.FloatField(
        null=True, help_text="Relative to the largest. Null: a probe, which stands beside the scores."
    )
    observations = models.FloatField(null=True)
    in_flight = models.IntegerField(null=True)
    overdue = models.IntegerField(null=True)
    dynamic_score = models.FloatField(null=True, help_text="D. Null here and in the next two: nothing was scored.")
    contrasted_score = models.FloatField(null=True, help_text="D'.")
    final_score = models.FloatField(null=True)
    near_tie = models.BooleanField(default=False)
    scores = models.JSONField(default=dict)
    terms = models.JSONField(default=list)
    digits = models.CharField(
        default="", blank=True, help_text="Tenths of its scores, for sums: see reports.core.buckets.digits_of."
    )

    def __str__(self) -> str:
        return self.target


class Exclusion(Detail):
    """A target that could not serve, and why."""

    pk = models.CompositePrimaryKey("exchange_id", "place")
    exchange = models.ForeignKey(Exchange, on_delete=models.CASCADE, related_name="exclusions", db_index=False)
    target = models.CharField()
    stage = models.CharField()
    reason = models.CharField()
    detail = models.CharField(blank=True)

    def __str__(self) -> str:
        return f"{self.target}: {self.reason}"


class Transition(Detail):
    """From a failed attempt to the next target."""

    pk = models.CompositePrimaryKey("exchange_id", "place")
    exchange = models.ForeignKey(Exchange, on_delete=models.CASCADE, related_name="transitions", db_index=False)
    from_target = models.CharField()
    to_target = models.CharField()
    reason = models.CharField(help_text="The failed attempt's outcome.")

    def __str__(self) -> str:
        return f"{self.from_target} -> {self.to_target}"


class TouchedHour(models.Model):
    """An hour of UTC whose exchanges changed: what was summed of it at a lower `sequence` is to be summed again."""

    hour = models.DateTimeField(unique=True)
    sequence = models.BigIntegerField(default=1, help_text="One more with every batch that adds or replaces a row.")
    touched_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.hour:%Y-%m-%dT%HZ}"


class SpoolFile(models.Model):
    """How far a file of a spool has been read. Moves in the transaction that writes its rows."""

    spool = models.CharField(help_text="The identity that a spool directory got at its first ingest.")
    name = models.CharField()
    offset = models.BigIntegerField(default=0)

    class Meta:
        constraints = (models.UniqueConstraint(fields=["spool", "name"], name="reports_spoolfile_one_row"),)

    def __str__(self) -> str:
        return self.name


class OpenExchange(models.Model):
    """An exchange that has begun its first upstream call and is not over, as far as has been read."""

    request_id = models.CharField()
    spool = models.CharField()
    process = models.CharField(help_text="What the names of its process's files begin with.")
    started_at = models.DateTimeField()
    intent = models.CharField(help_text="The line of the spool.")

    class Meta:
        constraints = (models.UniqueConstraint(fields=["request_id"], name="reports_openexchange_request_id"),)
        indexes = (models.Index(fields=["spool", "process"], name="reports_openexchange_process"),)

    def __str__(self) -> str:
        return self.request_id


class IngestCount(models.Model):
    """What ingest met since ever: `ended`, `aborted`, `replaced`, `repeated`, `damaged`, `newer`, `lost`, `dropped`."""

    name = models.CharField()
    count = models.BigIntegerField(default=0)

    class Meta:
        constraints = (models.UniqueConstraint(fields=["name"], name="reports_ingestcount_name"),)

    def __str__(self) -> str:
        return f"{self.name}: {self.count}"
