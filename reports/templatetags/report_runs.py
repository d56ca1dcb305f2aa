"""How the admin's pages write the runs of scheduled reports."""

from django import template
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from reports.figures import size
from reports.scheduled_models import ReportRun

register = template.Library()


@register.filter
def why(run: ReportRun) -> str:
    if run.due_at is None:
        return f"by hand: {run.requested_by}"
    return f"{timezone.localtime(run.due_at):%Y-%m-%d %H:%M %Z}"


@register.filter
def days(run: ReportRun) -> str:
    if run.first_day is None:
        return "–"
    return f"{run.first_day}" if run.first_day == run.last_day else f"{run.first_day} to {run.last_day}"


@register.filter
def links(run: ReportRun) -> SafeString | str:
    found = [
        (
            reverse("admin:reports_reportrun_file", args=[run.pk, file.format]),
            f"{file.format.upper()} of {run}",
            file.format.upper(),
            size(file.size),
        )
        for file in run.files.all()
    ]
    return (
        format_html_join(
            ", ",
            '<a class="text-primary-600 dark:text-primary-500" href="{}" download aria-label="{}">{}</a> ({})',
            found,
        )
        if found
        else "–"
    )
