"""Where the reports' pages are, under `/admin/reports/`. A name that is none of them is left to the admin."""

from django.urls import path, re_path

from reports import live_page, views
from reports.catalogue import REPORTS

app_name = "reports"
urlpatterns = [
    re_path(rf"^(?P<slug>{'|'.join(REPORTS)})/$", views.report, name="report"),
    path("live/", live_page.live, name="live"),
    path("exchanges/", views.exchanges, name="exchanges"),
    path("evidence/", views.find, name="find"),
    path("exchanges/<path:request_id>/", views.evidence, name="evidence"),
]
