"""Addresses below `/api/`. Whatever is not among them is answered in JSON, too."""

from django.urls import path, re_path
from rest_framework.routers import SimpleRouter

from reports.api.decisions import DecisionViews
from reports.api.documents import Docs, Schema
from reports.api.errors import elsewhere
from reports.api.exchanges import ExchangeViews
from reports.api.rollups import DailyViews, HourlyViews
from reports.api.scheduled import ReportRunViews, ReportViews

router = SimpleRouter()
router.register("exchanges", ExchangeViews, "exchange")
router.register("rollups/hourly", HourlyViews, "hourly-rollup")
router.register("rollups/daily", DailyViews, "daily-rollup")
router.register("decisions/daily", DecisionViews, "daily-decision")
router.register("reports", ReportViews, "report")
router.register(r"reports/(?P<report_id>[0-9]{1,18})/runs", ReportRunViews, "report-run")

app_name = "api"
urlpatterns = [
    *router.urls,
    path("schema/", Schema.as_view(), name="schema"),
    path("docs/", Docs.as_view(), name="docs"),
    re_path("", elsewhere, name="elsewhere"),
]
