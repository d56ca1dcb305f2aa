"""The reports' pages: who may see them, and what was asked. The figures come from `catalogue`."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.conf import settings
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.utils import timezone
from django.views.decorators.http import require_safe

from reports import evidence_page, exports, queries_exchanges
from reports.catalogue import REPORTS
from reports.evidence import as_document
from reports.evidence import evidence as evidence_of
from reports.filters import ExchangeForm, FilterForm, Filters
from reports.price_list import list_prices
from reports.queries import scope
from reports.rollups import report_zone
from reports.tables import Report, Section, Table

EXCHANGES = "reports.view_exchange"
"""Who may see single exchanges."""

View = Callable[..., HttpResponseBase]


def seen_by(right: str | None) -> Callable[[View], View]:
    """Staff with the right; who is not logged in is asked to. `None`: the view looks itself."""

    def guarded(view: View) -> View:
        @wraps(view)
        def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            if right is not None and not request.user.has_perm(right):
                raise PermissionDenied
            return view(request, *args, **kwargs)

        safe: View = admin.site.admin_view(require_safe(checked))
        return safe

    return guarded


@seen_by(None)
def report(request: HttpRequest, slug: str) -> HttpResponseBase:
    entry = REPORTS[slug]
    if not request.user.has_perm(entry.right):
        raise PermissionDenied
    baselines = list(list_prices()) if slug == "savings" else None
    form = FilterForm(request.GET, now=timezone.now(), baselines=baselines)
    if not form.is_valid():
        return _refused(request, form, entry.title)
    filters = form.filters()
    asked = scope(filters)
    made = entry.build(filters, asked)
    if (format := _format(request)) is not None:
        return _exported(request, made, filters, format)
    names = asked.now.names()
    form = FilterForm(request.GET, now=filters.now, names=names, baselines=baselines)
    form.is_valid()
    return page(request, "reports/report.html", entry.title, form=form, filters=filters, report=made)


@seen_by(EXCHANGES)
def exchanges(request: HttpRequest) -> HttpResponseBase:
    form = ExchangeForm(request.GET, now=timezone.now())
    if not form.is_valid():
        return _refused(request, form, _EXCHANGES)
    filters = form.filters()
    wanted = queries_exchanges.Wanted(
        filters=filters, outcome=form.cleaned_data["outcome"], odd=form.cleaned_data["only"]
    )
    days = f"{filters.first}_{filters.last}"
    if (format := _format(request)) is not None:
        name = exports.file_name("exchanges", days, format)
        if format == "html":
            made = _as_report(filters, queries_exchanges.page(wanted, None, size=PRINTED).rows)
            return exports.streamed(request, exports.as_html(made, zone=filters.zone), format, name=name, inline=True)
        rows = queries_exchanges.everything(wanted)
        limit = settings.PILOTAGE.report_export_rows
        pieces = (exports.rows_as_csv if format == "csv" else exports.rows_as_json)(
            queries_exchanges.COLUMNS,
            rows,
            f"More than {limit:,} match: the rest is left out (PILOTAGE_REPORT_EXPORT_ROWS).",
        )
        return exports.streamed(request, pieces, format, name=name)
    try:
        after = queries_exchanges.Cursor.read(said) if (said := request.GET.get("after")) else None
    except ValueError:
        form.add_error(None, "The place in the list is not one that a page of it leads to: begin again with Show.")
        return _refused(request, form, _EXCHANGES)
    found = queries_exchanges.page(wanted, after)
    form = ExchangeForm(request.GET, now=filters.now, names=scope(filters).now.names())
    form.is_valid()
    shown = _as_report(filters, found.rows)
    context = {"form": form, "filters": filters, "report": shown, "found": found, "after": after, "extra": form.extra}
    context["formats"] = (("csv", "CSV"), ("json", "JSON"), ("html", "Print"))
    following = filters.query(**form.extra, after=str(found.following)) if found.following else ""
    return page(request, "reports/exchanges.html", _EXCHANGES, following=following, **context)


def _as_report(filters: Filters, rows: Any) -> Report:
    table = Table(slug="exchanges", title=_EXCHANGES, columns=queries_exchanges.COLUMNS, rows=rows, empty="None.")
    return Report(
        slug="exchanges",
        title=_EXCHANGES,
        lead="Single requests, the newest first.",
        period=filters.words,
        cards=(),
        sections=[Section(title=_EXCHANGES, tables=[table])],
    )


@seen_by(EXCHANGES)
def find(request: HttpRequest) -> HttpResponseBase:
    """From a search box to the evidence of that id."""
    asked = request.GET.get("id", "").strip()
    if not asked:
        return page(request, "reports/evidence.html", _EVIDENCE, found=None, asked="")
    return redirect("reports:evidence", asked)


@seen_by(EXCHANGES)
def evidence(request: HttpRequest, request_id: str) -> HttpResponseBase:
    found = evidence_of(request_id)
    if request.GET.get("format") == "json":
        return JsonResponse(as_document(found), status=404 if found.completeness == "unknown" else 200)
    shown = None if found.completeness == "unknown" else evidence_page.told(found)
    context = {
        "found": found,
        "shown": shown,
        "asked": request_id,
        "meaning": evidence_page.MEANINGS[found.completeness],
    }
    answer = page(request, "reports/evidence.html", _EVIDENCE, **context)
    answer.status_code = 404 if shown is None else 200
    return answer


_EXCHANGES = "Exchanges"
_EVIDENCE = "Evidence of one exchange"
PRINTED = 500
"""Exchanges on a printed list."""


def page(request: HttpRequest, template: str, title: str, **context: Any) -> HttpResponse:
    """Within the admin."""
    shown = {**admin.site.each_context(request), "title": title, "zone": report_zone(), **context}
    return TemplateResponse(request, template, shown)


def _refused(request: HttpRequest, form: FilterForm, title: str) -> HttpResponse:
    """What was filled in stays, with what is wrong beside it. A program gets the same as text."""
    if _format(request) is not None:
        lines = [f"{name}: {error}" for name, errors in form.errors.items() for error in errors]
        return HttpResponse("\n".join([*lines, ""]), status=400, content_type="text/plain; charset=utf-8")
    return page(request, "reports/report.html", title, form=form, filters=None, report=None)


def _format(request: HttpRequest) -> exports.Format | None:
    asked = request.GET.get("format")
    return next((format for format in exports.FORMATS if format == asked), None)


def _exported(request: HttpRequest, made: Report, filters: Filters, format: exports.Format) -> HttpResponseBase:
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
