"""`reports/` and `reports/{id}/runs/`: scheduled reports and how they went, for staff."""

from datetime import datetime
from typing import Any

from django.db.models import Prefetch, Q, QuerySet
from django.urls import reverse
from django.utils import timezone
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from reports import scheduled
from reports.api.access import SEES_SUMS, viewer_of
from reports.api.errors import ApiError
from reports.api.parameters import Cursor, NoQuery, Paged, next_page, one_of, page_size, read_parameters, utc, whole
from reports.api.parts import Next
from reports.api.time_limit import limited_queries
from reports.api.views import Reading, described
from reports.catalogue import REPORTS
from reports.core.schedule import PERIODS
from reports.filters import NAMES
from reports.scheduled_models import ReportDefinition, ReportFile, ReportRun
from reports.tasks import make_now

SEES_DEFINITIONS = "reports.view_reportdefinition"
SEES_RUNS = "reports.view_reportrun"
ORDERS_RUNS = "reports.change_reportdefinition"
STATES = [state for state, _ in ReportRun.STATES]


class FileSerializer(serializers.Serializer[Any]):
    format = serializers.ChoiceField(read_only=True, choices=["csv", "json", "html"])
    name = serializers.CharField(read_only=True)
    size = serializers.IntegerField(read_only=True, help_text="Bytes.")
    url = serializers.SerializerMethodField(help_text="Where it is, for who is logged in.")

    def get_url(self, file: ReportFile) -> str:
        return reverse("admin:reports_reportrun_file", args=[file.run_id, file.format])


class RunSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField(read_only=True, source="pk")
    state = serializers.ChoiceField(
        read_only=True,
        choices=STATES,
        help_text="mailing: made and kept, but not everybody has the mail yet. mail_failed: somebody does not get it.",
    )
    due_at = serializers.DateTimeField(read_only=True, allow_null=True, help_text="Null: it was made by hand.")
    requested_by = serializers.CharField(read_only=True, help_text="Who had it made by hand.")
    queued_at = serializers.DateTimeField(read_only=True)
    started_at = serializers.DateTimeField(read_only=True, allow_null=True)
    finished_at = serializers.DateTimeField(read_only=True, allow_null=True)
    first_day = serializers.DateField(read_only=True, allow_null=True, help_text="Null: it was not made.")
    last_day = serializers.DateField(read_only=True, allow_null=True, help_text="Included.")
    error = serializers.CharField(read_only=True, help_text="Why it failed; several lines when several mails did.")
    files = FileSerializer(read_only=True, many=True, source="files.all")


class RunPageSerializer(serializers.Serializer[Any]):
    next = Next()
    results = RunSerializer(read_only=True, many=True)


class LastRunSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField(read_only=True)
    state = serializers.ChoiceField(read_only=True, choices=STATES)
    finished_at = serializers.DateTimeField(read_only=True, allow_null=True)


class DefinitionSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField(read_only=True, source="pk")
    name = serializers.CharField(read_only=True)
    active = serializers.BooleanField(read_only=True)
    report = serializers.CharField(read_only=True)
    period = serializers.ChoiceField(read_only=True, choices=list(PERIODS))
    zone = serializers.CharField(read_only=True)
    filters = serializers.SerializerMethodField(help_text="Names that narrow it.")
    schedule = serializers.SerializerMethodField(help_text="In words.")
    next_run_at = serializers.DateTimeField(read_only=True, allow_null=True, help_text="Null: by hand only.")
    formats = serializers.ListField(read_only=True, child=serializers.CharField())
    recipients = serializers.ListField(read_only=True, child=serializers.CharField(), source="addresses")
    last_run = LastRunSerializer(read_only=True, allow_null=True, help_text="Null: it was never made.")

    def get_filters(self, definition: ReportDefinition) -> dict[str, str]:
        return {name: value for name in (*NAMES, "baseline") if (value := getattr(definition, name))}

    def get_schedule(self, definition: ReportDefinition) -> str:
        return definition.schedule.words()


class DefinitionPageSerializer(serializers.Serializer[Any]):
    next = Next()
    results = DefinitionSerializer(read_only=True, many=True)


class DefinitionQuery(Paged):
    def cursor_field(self) -> Cursor:
        return Cursor(str, whole)


class RunQuery(Paged):
    state = one_of(STATES, "State of the run.")

    def cursor_field(self) -> Cursor:
        return Cursor(utc, whole)


class ReportViews(Reading):
    rights = (SEES_SUMS,)

    @described(
        query=DefinitionQuery,
        answer=DefinitionPageSerializer,
        summary="Scheduled reports, by name",
        description="For staff alone.",
    )
    def list(self, request: Request) -> Response:
        _only_with(request, SEES_DEFINITIONS)
        said = read_parameters(DefinitionQuery, request.query_params, viewer_of(request))
        size = said.get("page_size", page_size())
        rows: QuerySet[Any] = scheduled.with_last_run(ReportDefinition.objects.order_by("name", "pk"))
        if "cursor" in said:
            name, pk = said["cursor"]
            rows = rows.filter(Q(name__gt=name) | Q(name=name, pk__gt=pk))
        with limited_queries():
            found = list(rows[: size + 1])
        page = found[:size]
        for each in page:
            last_run = {"id": each.last_id, "state": each.last_state, "finished_at": each.last_at}
            each.last_run = last_run if each.last_id is not None else None
        more = len(found) > size
        last = next_page(request.path, request.query_params, (page[-1].name, page[-1].pk)) if more else None
        return Response(DefinitionPageSerializer({"next": last, "results": page}).data)


class ReportRunViews(Reading):
    rights = (SEES_SUMS,)
    http_method_names = ("get", "head", "post")

    @described(
        query=RunQuery,
        answer=RunPageSerializer,
        found=True,
        summary="Runs of a scheduled report, newest first",
        description="For staff alone.",
    )
    def list(self, request: Request, report_id: str) -> Response:
        _only_with(request, SEES_RUNS)
        said = read_parameters(RunQuery, request.query_params, viewer_of(request))
        size = said.get("page_size", page_size())
        rows = _definition(request, report_id).runs.order_by("-queued_at", "-pk")
        if "state" in said:
            rows = rows.filter(state__in=said["state"])
        if "cursor" in said:
            at: datetime = said["cursor"][0]
            rows = rows.filter(Q(queued_at__lt=at) | Q(queued_at=at, pk__lt=said["cursor"][1]))
        with limited_queries():
            found = list(rows.prefetch_related(_FILES)[: size + 1])
        page = found[:size]
        more = len(found) > size
        last = next_page(request.path, request.query_params, (page[-1].queued_at, page[-1].pk)) if more else None
        return Response(RunPageSerializer({"next": last, "results": page}).data)

    @described(
        answer=RunSerializer,
        found=True,
        status=202,
        request=None,
        summary="Have a scheduled report made now",
        description="For staff who may change it. It is queued, made by a worker and mailed as ever. One that already waits "
        "is answered.",
    )
    def create(self, request: Request, report_id: str) -> Response:
        _only_with(request, ORDERS_RUNS)
        read_parameters(NoQuery, request.query_params, viewer_of(request))
        run = scheduled.order(_definition(request, report_id), by=request.user.get_username(), now=timezone.now())
        make_now(run.pk)
        return Response(RunSerializer(run).data, status=202)


_FILES = Prefetch("files", ReportFile.objects.defer("data"))


def _only_with(request: Request, right: str) -> None:
    """Beside the right to see sums."""
    if not viewer_of(request).is_staff or not request.user.has_perms([SEES_SUMS, right]):
        raise ApiError("not_allowed")


def _definition(request: Request, report_id: str) -> ReportDefinition:
    """Of a report that the user may see."""
    found = ReportDefinition.objects.filter(pk=int(report_id)).first()
    if found is None:
        raise ApiError("not_found")
    entry = REPORTS.get(found.report)
    if entry is not None and not request.user.has_perm(entry.right):
        raise ApiError("not_allowed")
    return found
