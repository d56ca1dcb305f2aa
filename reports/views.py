"""The reports' pages: who may see them, and what was asked. The figures come from `catalogue`."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.template.response import TemplateResponse
from django.utils import timezone
from django.views.decorators.http import require_safe

from reports import exports
from reports.catalogue import REPORTS
from reports.filters import FilterForm, Filters
from reports.price_list import list_prices
from reports.queries import scope
from reports.rollups import report_zone

SUMS = "reports.view_dailyrollup"
"""Who may see sums."""
EXCHANGES = "reports.view_exchange"
"""Who may see single exchanges."""

View = Callable[..., HttpResponseBase]


def seen_by(right: str) -> Callable[[View], View]:
    """Staff with the right; who is not logged in is asked to."""

    def guarded(view: View) -> View:
        @wraps(view)
        def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            if not request.user.has_perm(right):
                raise PermissionDenied
            return view(request, *args, **kwargs)

        safe: View = admin.site.admin_view(require_safe(checked))
        return safe

    return guarded


@seen_by(SUMS)
def report(request: HttpRequest, slug: str) -> HttpResponseBase:
    entry = REPORTS.get(slug)
    if entry is None:
        raise Http404
    baselines = list(list_prices()) if slug == "savings" else None
    form = FilterForm(request.GET, now=timezone.now(), baselines=baselines)
    if not form.is_valid():
        return _refused(request, form, entry.title)
    filters = form.filters()
    asked = scope(filters)
    made = entry.build(filters, asked)
    format = request.GET.get("format")
    if format in exports.FORMATS:
        return _exported(request, made, filters, format)
    names = asked.now.names()
    form = FilterForm(request.GET, now=filters.now, names=names, baselines=baselines)
    form.is_valid()
    return page(request, "reports/report.html", entry.title, form=form, filters=filters, report=made)


def page(request: HttpRequest, template: str, title: str, **context: Any) -> HttpResponse:
    """Within the admin."""
    shown = {**admin.site.each_context(request), "title": title, "zone": report_zone(), **context}
    return TemplateResponse(request, template, shown)


def _refused(request: HttpRequest, form: FilterForm, title: str) -> HttpResponse:
    """What was filled in stays, with what is wrong beside it. A program gets the same as text."""
    if request.GET.get("format") in exports.FORMATS:
        lines = [f"{name}: {error}" for name, errors in form.errors.items() for error in errors]
        return HttpResponse("\n".join([*lines, ""]), status=400, content_type="text/plain; charset=utf-8")
    return page(request, "reports/report.html", title, form=form, filters=None, report=None)


def _exported(request: HttpRequest, made: Any, filters: Filters, format: Any) -> HttpResponseBase:
    only = request.GET.get("table", "")
    if only and only not in [table.slug for table in made.tables()]:
        return HttpResponse(f"table: “{only}” is no table of this report.\n", status=400, content_type="text/plain")
    days = f"{filters.first}_{filters.last}"
    name = exports.file_name(f"{made.slug}-{only}" if only else made.slug, days, format)
    if format == "html":
        pieces = exports.as_html(made, filters=filters, zone=filters.zone)
        return exports.streamed(request, pieces, "html", name=name, inline=True)
    pieces = exports.as_csv(made, only=only) if format == "csv" else exports.as_json(made, only=only)
    return exports.streamed(request, pieces, format, name=name)
