"""What the API answers when it does not answer what was asked: always JSON, always one shape."""

import logging
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from django.db import OperationalError
from django.http import Http404, HttpRequest, HttpResponseBase, JsonResponse
from django.urls import Resolver404, resolve
from django.views import defaults
from django.views.decorators.csrf import csrf_exempt
from rest_framework import exceptions, serializers
from rest_framework.response import Response

from reports.api.time_limit import is_out_of_time

log = logging.getLogger(__name__)

PREFIX = "/api/"
CHALLENGE = 'Bearer realm="pilotage"'

MEANINGS: dict[str, tuple[int, str]] = {
    "invalid_parameters": (400, "Some parameters are not as expected."),
    "bad_request": (400, "The request cannot be read."),
    "not_authenticated": (401, "Log in, or send a token: `Authorization: Bearer plt_...`."),
    "invalid_token": (401, "The token is not valid."),
    "not_allowed": (403, "You may not see this."),
    "routing_hidden": (403, "How requests are routed is not shown to this caller."),
    "not_found": (404, "There is nothing under this address, or you may not see it."),
    "method_not_allowed": (405, "This address is only read."),
    "too_many_requests": (429, "Too many requests. Wait as long as Retry-After says."),
    "internal_error": (500, "This is our mistake. The log says more."),
    "query_timeout": (503, "The answer took too long to find. Ask for a shorter time or fewer groups."),
}
"""Every code with its status and what it says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadParameter:
    name: str
    message: str
    expected: str


class ApiError(exceptions.APIException):
    """A refusal of our own: `code` is one of MEANINGS."""

    def __init__(self, code: str, parameters: Iterable[BadParameter] = ()) -> None:
        self.status_code, message = MEANINGS[code]
        super().__init__(message, code)
        self.code = code
        self.parameters = tuple(parameters)


class ParameterSerializer(serializers.Serializer[Any]):
    name = serializers.CharField(read_only=True)
    message = serializers.CharField(read_only=True)
    expected = serializers.CharField(read_only=True, help_text="What would be right.")


class ErrorDetailSerializer(serializers.Serializer[Any]):
    code = serializers.ChoiceField(read_only=True, choices=list(MEANINGS))
    message = serializers.CharField(read_only=True)
    parameters = ParameterSerializer(read_only=True, many=True, help_text="Every one that is wrong.")


class ErrorSerializer(serializers.Serializer[Any]):
    error = ErrorDetailSerializer(read_only=True)


def document(code: str, parameters: Iterable[BadParameter] = ()) -> dict[str, Any]:
    message = MEANINGS[code][1]
    return {"error": {"code": code, "message": message, "parameters": [asdict(each) for each in parameters]}}


def answer_of(error: Exception, context: dict[str, Any]) -> Response:
    """For every exception of a view, also one that nobody foresaw."""
    if isinstance(error, ApiError):
        return _response(error.code, error.parameters)
    match error:
        case exceptions.NotAuthenticated() | exceptions.AuthenticationFailed():
            return _response("not_authenticated")
        case exceptions.PermissionDenied():
            return _response("not_allowed")
        case exceptions.MethodNotAllowed():
            return _response("method_not_allowed")
        case exceptions.Throttled():
            wait: float = getattr(error, "wait", None) or 1.0
            return _response("too_many_requests", headers={"Retry-After": str(math.ceil(wait))})
        case Http404() | exceptions.NotFound():
            return _response("not_found")
        case exceptions.APIException():
            return _response("bad_request")
        case OperationalError() if is_out_of_time(error):
            return _response("query_timeout")
    log.error("%s cannot be answered", context["request"].path, exc_info=error)
    return _response("internal_error")


def _response(code: str, parameters: Iterable[BadParameter] = (), headers: dict[str, str] | None = None) -> Response:
    status = MEANINGS[code][0]
    headers = {"WWW-Authenticate": CHALLENGE} if status == 401 else headers
    return Response(document(code, parameters), status=status, headers=headers)


# -- what never reaches a view of the API


@csrf_exempt
def elsewhere(request: HttpRequest) -> HttpResponseBase:
    """Every address under `/api/` that leads nowhere. One that lacks its last slash is served as if it had it: a redirect
    would lose the header with the token."""
    if not request.path_info.endswith("/"):
        try:
            found = resolve(request.path_info + "/")
        except Resolver404:
            return _json("not_found")
        if found.func is not elsewhere:
            request.resolver_match = found
            answer: HttpResponseBase = found.func(request, *found.args, **found.kwargs)
            return answer
    return _json("not_found")


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    return _json("bad_request") if _is_ours(request) else defaults.bad_request(request, exception)


def permission_denied(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    return _json("not_allowed") if _is_ours(request) else defaults.permission_denied(request, exception)


def page_not_found(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    return _json("not_found") if _is_ours(request) else defaults.page_not_found(request, exception)


def server_error(request: HttpRequest) -> HttpResponseBase:
    return _json("internal_error") if _is_ours(request) else defaults.server_error(request)


def _is_ours(request: HttpRequest) -> bool:
    return request.path_info.startswith(PREFIX)


def _json(code: str) -> JsonResponse:
    return JsonResponse(document(code), status=MEANINGS[code][0])
