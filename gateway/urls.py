"""The pages that Django serves. `/v1/`, `/healthz`, `/readyz` and `HEAD /` never come here: see `gateway.asgi`."""

from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView

from gateway.metrics.page import metrics
from gateway.statics import static_file
from reports.api.errors import elsewhere

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="admin:index"), name="home"),
    path("admin/reports/", include("reports.urls")),
    path("admin/", admin.site.urls),
    path("api", elsewhere),
    path("api/", include("reports.api.urls")),
    path("metrics", metrics, name="metrics"),
    path("static/<path:name>", static_file, name="static"),
]

# Pages of Django, but for what is asked of the API.
handler400 = "reports.api.errors.bad_request"
handler403 = "reports.api.errors.permission_denied"
handler404 = "reports.api.errors.page_not_found"
handler500 = "reports.api.errors.server_error"
