"""The admin's pages of scheduled reports: what was ordered, and what came of it. Registered by `reports.admin`."""

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Prefetch, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.views.decorators.http import require_POST, require_safe
from unfold.admin import ModelAdmin
from unfold.decorators import display
from unfold.widgets import UnfoldAdminSelectWidget

from reports import mailing, scheduled
from reports.catalogue import REPORTS
from reports.exports import FORMATS
from reports.scheduled_models import ReportDefinition, ReportFile, ReportRun
from reports.tasks import mail_now, make_now
from reports.templatetags.report_runs import days, links, why

SUMS = "reports.view_dailyrollup"
LABELS = {"done": "success", "failed": "danger", "mail failed": "danger", "running": "info", "mailing": "info"}
_FILES = Prefetch("files", ReportFile.objects.defer("data"))
SHOWN_RUNS = 10
SCHEDULE_FIELDS = {"active", "zone", "every", "minute", "hour", "weekday", "day"}
"""What the next time depends on."""


class SeesReports(ModelAdmin):
    """Beside its own right everybody here needs the one to see sums, and of each report its own: files and mails hold
    what its page shows."""

    def has_module_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(SUMS) and super().has_module_permission(request)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return may_see(request, obj) and super().has_view_permission(request, obj)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(SUMS) and super().has_add_permission(request)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return may_see(request, obj) and super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return may_see(request, obj) and super().has_delete_permission(request, obj)


def may_see(request: HttpRequest, obj: ReportDefinition | ReportRun | None) -> bool:
    definition = obj.definition if isinstance(obj, ReportRun) else obj
    entry = REPORTS.get(definition.report) if definition is not None else None
    return request.user.has_perms([SUMS, *([entry.right] if entry else [])])


@admin.register(ReportDefinition)
class ReportDefinitionAdmin(SeesReports):
    list_display = ("name", "what", "when", "next_time", "last_run", "last_made")
    list_filter = ("active", "report")
    search_fields = ("name", "recipients")
    actions = ("run_now",)
    change_form_outer_before_template = "reports/definition_runs.html"
    readonly_fields = ("next_run_at", "created_by", "created_at")
    radio_fields = {"every": admin.HORIZONTAL}  # noqa: RUF012 - Django's
    empty_hint = "It is made by a worker that runs with --schedule, kept here, and mailed to whom you name."
    fieldsets = (
        (None, {"fields": (("name", "active"),)}),
        (
            "What",
            {
                "fields": (("report", "period"), ("group", "caller"), ("project", "provider"), ("model", "baseline")),
                "description": "Names narrow it as they do on the report’s page. Days are those of the time zone below, "
                "counted from the moment at which the report is due.",
            },
        ),
        ("When", {"fields": ("every", ("hour", "minute"), ("weekday", "day"), "zone", "next_run_at")}),
        ("To whom", {"fields": (("csv", "json", "html"), "recipients")}),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[ReportDefinition]:
        definitions: QuerySet[ReportDefinition] = super().get_queryset(request)
        return scheduled.with_last_run(definitions)

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name != "report":
            return super().formfield_for_dbfield(db_field, request, **kwargs)
        seen = [(slug, entry.title) for slug, entry in REPORTS.items() if request.user.has_perm(entry.right)]
        return forms.ChoiceField(choices=seen, widget=UnfoldAdminSelectWidget)

    def save_model(self, request: HttpRequest, obj: ReportDefinition, form: Any, change: bool) -> None:
        if not change:
            obj.created_by = request.user.get_username()
            scheduled.plan_next(obj, now=timezone.now())
            obj.save()
            return
        names = set(form.changed_data)
        before = ReportDefinition.objects.values(*SCHEDULE_FIELDS).get(pk=obj.pk)
        if any(value != getattr(obj, name) for name, value in before.items()):
            scheduled.plan_next(obj, now=timezone.now())
            names.add("next_run_at")
        if names:  # the others stay, with what a worker may have written meanwhile
            obj.save(update_fields=names)

    def change_view(self, request: HttpRequest, object_id: str, *args: Any, **kwargs: Any) -> HttpResponse:
        kwargs["extra_context"] = {
            "last_runs": ReportRun.objects.filter(definition=int(object_id)).prefetch_related(_FILES)[:SHOWN_RUNS]
            if object_id.isdigit()
            else (),
            "may_run": self.has_change_permission(request),
        }
        answer: HttpResponse = super().change_view(request, object_id, *args, **kwargs)
        return answer

    def get_urls(self) -> list[URLPattern]:
        run = self.admin_site.admin_view(require_POST(self.run_one))
        return [path("<int:pk>/run/", run, name="reports_reportdefinition_run"), *super().get_urls()]

    def run_one(self, request: HttpRequest, pk: int) -> HttpResponse:
        definition = get_object_or_404(ReportDefinition, pk=pk)
        if not self.has_change_permission(request, definition):
            raise PermissionDenied
        make_now(scheduled.order(definition, by=request.user.get_username(), now=timezone.now()).pk)
        messages.success(request, "Queued. A worker makes it now: reload this page to see how it went.")
        return HttpResponseRedirect(reverse("admin:reports_reportdefinition_change", args=[pk]))

    @admin.action(description="Run now", permissions=["change"])
    def run_now(self, request: HttpRequest, definitions: QuerySet[ReportDefinition]) -> None:
        allowed = [definition for definition in definitions if may_see(request, definition)]
        for definition in allowed:
            make_now(scheduled.order(definition, by=request.user.get_username(), now=timezone.now()).pk)
        messages.success(request, f"{len(allowed)} queued.")

    @display(description="Report", ordering="report")
    def what(self, definition: ReportDefinition) -> str:
        entry = REPORTS.get(definition.report)
        return f"{entry.title if entry else definition.report}, {definition.get_period_display().lower()}"

    @display(description="When")
    def when(self, definition: ReportDefinition) -> str:
        return f"{definition.schedule.words()} {definition.zone}" if definition.active else "by hand only"

    @display(description="Next", ordering="next_run_at")
    def next_time(self, definition: ReportDefinition) -> Any:
        return definition.next_run_at if definition.active else None

    @display(description="Last run", label=LABELS)
    def last_run(self, definition: ReportDefinition) -> str:
        state: str | None = definition.last_state  # type: ignore[attr-defined]  # annotated
        return dict(ReportRun.STATES)[state] if state else "never"

    @display(description="Made", ordering="last_at")
    def last_made(self, definition: ReportDefinition) -> Any:
        return definition.last_at  # type: ignore[attr-defined]  # annotated


@admin.register(ReportRun)
class ReportRunAdmin(SeesReports):
    list_display = ("definition", "run_state", "why", "days", "finished_at", "downloads", "short_error")
    list_display_links = ("definition",)
    list_filter = ("state", "definition")
    list_select_related = ("definition",)
    actions = ("mail_again",)
    fields = (
        "definition", "run_state", "why", "days", "queued_at", "started_at", "finished_at", "downloads", "problem",
        "mailed", "not_mailed",
    )  # fmt: skip
    readonly_fields = fields
    empty_hint = "Order one under Scheduled reports."

    def get_queryset(self, request: HttpRequest) -> QuerySet[ReportRun]:
        runs: QuerySet[ReportRun] = super().get_queryset(request)
        return runs.prefetch_related(_FILES)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_mail_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perms([SUMS, "reports.change_reportdefinition"])

    def get_urls(self) -> list[URLPattern]:
        file = self.admin_site.admin_view(require_safe(self.file))
        return [path("<int:pk>/file/<slug:format>/", file, name="reports_reportrun_file"), *super().get_urls()]

    def file(self, request: HttpRequest, pk: int, format: str) -> HttpResponse:
        """Always saved, never shown: nothing in it runs under our name."""
        found = ReportFile.objects.select_related("run__definition").filter(run=pk, format=format).first()
        if not self.has_view_permission(request, found.run if found else None):
            raise PermissionDenied
        if found is None or format not in FORMATS:
            raise Http404
        answer = HttpResponse(bytes(found.data), content_type=FORMATS[format])
        answer["Content-Disposition"] = f'attachment; filename="{found.name}"'
        answer["Cache-Control"] = "private, no-store"
        return answer

    @admin.action(description="Mail again to who has not got it", permissions=["mail"])
    def mail_again(self, request: HttpRequest, runs: QuerySet[ReportRun]) -> None:
        count = 0
        for run in (run for run in runs.filter(state="mail_failed") if may_see(request, run)):
            mailing.mail_again(run, now=timezone.now())
            transaction.on_commit(lambda pk=run.pk: mail_now(pk))  # type: ignore[misc]  # a default is its value now
            count += 1
        messages.success(request, f"{count} to be mailed again.")

    @display(description="State", ordering="state", label=LABELS)
    def run_state(self, run: ReportRun) -> str:
        return str(run.get_state_display())

    @display(description="Due", ordering="due_at")
    def why(self, run: ReportRun) -> str:
        return why(run)

    @display(description="Days")
    def days(self, run: ReportRun) -> str:
        return days(run)

    @display(description="Files")
    def downloads(self, run: ReportRun) -> SafeString | str:
        return links(run)

    @display(description="Error")
    def short_error(self, run: ReportRun) -> SafeString:
        return format_html('<span class="pilotage-long">{}</span>', run.error)

    @display(description="Error")
    def problem(self, run: ReportRun) -> SafeString | str:
        return format_html('<span class="pilotage-long">{}</span>', run.error) if run.error else "–"

    @display(description="Mailed to")
    def mailed(self, run: ReportRun) -> str:
        return ", ".join(run.mailed_to) or "–"

    @display(description="Not mailed to")
    def not_mailed(self, run: ReportRun) -> str:
        left = [*run.mail_to, *(f"{address} ({words})" for address, words in run.mail_refused.items())]
        again = f"; next try at {timezone.localtime(run.mail_next_at):%Y-%m-%d %H:%M %Z}" if run.mail_next_at else ""
        return ", ".join(left) + again if left else "–"
