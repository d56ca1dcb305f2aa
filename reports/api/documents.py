"""`schema/` and `docs/`: the API described, for programs and for people."""

from typing import Any

from django.conf import settings
from django.http import HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from drf_spectacular.utils import extend_schema
from drf_spectacular.views import SpectacularJSONAPIView, SpectacularSwaggerSplitView
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from reports.api.access import viewer_of
from reports.api.errors import ApiError
from reports.api.parameters import NoQuery, read_parameters
from reports.api.views import ReadOnly

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Everything comes from here. The page styles itself."""


class Schema(ReadOnly, SpectacularJSONAPIView):
    @extend_schema(exclude=True)
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        read_parameters(NoQuery, request.query_params, viewer_of(request))
        answer: Response = super().get(request, *args, **kwargs)  # type: ignore[no-untyped-call]  # the library's
        return answer


class Docs(ReadOnly, SpectacularSwaggerSplitView):
    url_name = "api:schema"

    @extend_schema(exclude=True)
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        answer: Response = super().get(request, *args, **kwargs)  # type: ignore[no-untyped-call]  # the library's
        answer["Content-Security-Policy"] = POLICY
        return answer

    def handle_exception(self, exc: Exception) -> Any:
        """Who comes with a browser and is not logged in is asked to; everybody else is told in JSON."""
        refused = isinstance(exc, ApiError) and exc.code == "not_authenticated"
        if refused and "text/html" in self.request.headers.get("accept", ""):
            login: HttpResponse = redirect(f"{reverse(settings.LOGIN_URL)}?next={reverse('api:docs')}")
            return login
        self.request.accepted_renderer = JSONRenderer()
        self.request.accepted_media_type = "application/json"
        return super().handle_exception(exc)
