"""What all addresses of the API have in common."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from drf_spectacular.utils import extend_schema, extend_schema_serializer
from rest_framework import exceptions, viewsets
from rest_framework.request import Request
from rest_framework.response import Response

from reports.api.access import SEES_EXCHANGES, SEES_SUMS
from reports.api.errors import ErrorSerializer

F = TypeVar("F", bound=Callable[..., Any])


class ReadOnly:
    """Before `APIView`: refuses other methods before it asks who it is, and lets nothing be kept on the way."""

    http_method_names: Sequence[str] = ["get", "head"]
    rights: ClassVar[Sequence[str]] = (SEES_SUMS, SEES_EXCHANGES)

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        if (request.method or "").lower() not in self.http_method_names:
            raise exceptions.MethodNotAllowed(str(request.method))
        super().initial(request, *args, **kwargs)  # type: ignore[misc]  # of the class behind it

    def finalize_response(self, request: Request, response: Response, *args: Any, **kwargs: Any) -> Response:
        answer: Response = super().finalize_response(request, response, *args, **kwargs)  # type: ignore[misc]  # as above
        answer["Cache-Control"] = "private, no-store"
        return answer


class Reading(ReadOnly, viewsets.ViewSet):
    """One list of the API, with what is below it."""


def described(
    *, answer: Any, query: Any = None, found: bool = False, status: int = 200, **more: Any
) -> Callable[[F], F]:
    """Of one operation: its parameters, its answer and its refusals. `found`: it may lack what was asked for."""
    statuses = (400, 401, 403, *((404,) if found else ()), 429, 500, 503)
    # What is called `list` is taken for a bare array otherwise.
    answer = extend_schema_serializer(many=False)(answer)
    responses: Mapping[int, Any] = {status: answer, **dict.fromkeys(statuses, ErrorSerializer)}
    made: Callable[[F], F] = extend_schema(parameters=[query] if query else [], responses=responses, **more)
    return made
