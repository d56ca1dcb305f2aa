"""`reports/` and `reports/{id}/runs/`: scheduled reports and their runs, for staff."""

from datetime import UTC
from typing import Any

from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from reports import scheduled
from reports.api.access import SEES_SUMS, viewer_of
from reports.api.errors import ApiError
from reports.api.parameters import NoQuery, Cursor, Paged, next_page, page_size, read_parameters, whole
from reports.api.parts import Next, Words
from reports.api.time_limit import limited_queries
from reports.api.views import Reading, described
from reports.core.schedule import PERIODS
from reports.scheduled_models import ReportDefinition, ReportRun
from reports.tasks import make_now

SEES_REPORTS = (SEES_SUMS, "reports.view_reportdefinition", "reports.view_reportrun")
ORDERS_RUNS = "reports.change_reportdefinition"
STATES = [state for state, _ in ReportRun.STATES]
ID = OpenApiParameter("id", OpenApiTypes.INT, OpenApiParameter.PATH, description="Of the scheduled report.")
