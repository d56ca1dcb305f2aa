"""The live page: an empty one, which fills itself over the websocket of `reports.consumers`."""

from django.http import HttpRequest, HttpResponse

from reports.consumers import RIGHT
from reports.core.live import WINDOW_SECONDS
from reports.views import page, seen_by


@seen_by(RIGHT)
def live(request: HttpRequest) -> HttpResponse:
    return page(request, "reports/live.html", "Live", window=round(WINDOW_SECONDS))
