"""The tenths of a candidate's scores become digits of its own, so that sums need not read JSON."""

from typing import Any

from django.db import migrations, models

_SCORES = (
    "cost_score",
    "latency_score",
    "throughput_score",
    "reliability_score",
    "ttfb_score",
    "complexity_score",
    "eval_quality_score",
    "load_score",
    "stream_integrity_score",
    "budget_score",
)


def fill(apps: Any, schema_editor: Any) -> None:
    if schema_editor.connection.vendor == "postgresql":
        values = [f"(scores -> '{name}' ->> 1)::double precision" for name in _SCORES]
        tenth = "LEAST(GREATEST(FLOOR({0} * 10), 0), 9)::integer::text"
        scored = "scores <> '{}'::jsonb"
    else:
        values = [f"json_extract(scores, '$.{name}[1]')" for name in _SCORES]
        tenth = "CAST(MIN(MAX(CAST({0} * 10 AS INTEGER), 0), 9) AS TEXT)"
        scored = "scores <> '{}'"
    columns = ("dynamic_score", "contrasted_score", "final_score", *values)
    digits = " || ".join(f"CASE WHEN {{0}} IS NULL THEN ' ' ELSE {tenth} END".format(column) for column in columns)
    schema_editor.execute(
        f"UPDATE reports_candidate SET digits = RTRIM({digits})"  # noqa: S608 - nothing but the words above
        f" WHERE dynamic_score IS NOT NULL OR contrasted_score IS NOT NULL OR final_score IS NOT NULL OR {scored}"
    )


class Migration(migrations.Migration):
    dependencies = [
        ("reports", "0003_scheduled_reports"),
    ]

    operations = [
        migrations.AddField(
            model_name="candidate",
            name="digits",
            field=models.CharField(
                blank=True,
                default="",
                help_text="Tenths of its scores, for sums: see reports.core.buckets.digits_of.",
            ),
        ),
        migrations.RunPython(fill, migrations.RunPython.noop),
    ]
