"""Where the reports' pages are, under `/admin/reports/`. A name that is none of them is left to the admin."""

from django.urls import re_path

from reports import views
from reports.catalogue import REPORTS

app_name = "reports"
urlpatterns = [
    re_path(rf"^(?P<slug>{'|'.join(REPORTS)})/$", views.report, name="report"),
]
