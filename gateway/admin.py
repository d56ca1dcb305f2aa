"""The admin's pages of the configuration, which publish what they save, and of its Revisions."""

from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.views.decorators.http import require_POST
from unfold.admin import ModelAdmin
from unfold.decorators import display

from gateway import publish
from gateway.models import Revision
from gateway.templatetags.publishing import change_summary
from routing.admin import ModelGroupAdmin, ProviderAdmin, ProviderModelAdmin
from routing.models import ModelGroup, Provider, ProviderModel

admin.site.index_template = "gateway/index.html"
admin.site.index_title = "Overview"


class Publishes(ModelAdmin):
    """Publishes once for each request that stored something, in the transaction that stored it, after all inlines."""

    list_before_template = "gateway/pending.html"
    change_form_outer_before_template = "gateway/pending.html"

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        return self._publishing(request, super().changeform_view, *args, **kwargs)

    def changelist_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        return self._publishing(request, super().changelist_view, *args, **kwargs)

    def delete_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        return self._publishing(request, super().delete_view, *args, **kwargs)

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        super().save_related(request, form, formsets, change)
        request.has_edited = True  # type: ignore[attr-defined]

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        request.has_edited = True  # type: ignore[attr-defined]

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        super().delete_model(request, obj)
        request.has_edited = True  # type: ignore[attr-defined]

    def delete_queryset(self, request: HttpRequest, queryset: Any) -> None:
        super().delete_queryset(request, queryset)
        request.has_edited = True  # type: ignore[attr-defined]

    def _publishing(self, request: HttpRequest, view: Any, *args: Any, **kwargs: Any) -> HttpResponse:
        if request.method != "POST":
            answer: HttpResponse = view(request, *args, **kwargs)
            return answer
        with transaction.atomic():
            answer = view(request, *args, **kwargs)
            if getattr(request, "has_edited", False):
                tell(request, publish.publish(author=_author(request)))
        return answer


@admin.register(Provider)
class PublishedProviderAdmin(Publishes, ProviderAdmin):
    pass


@admin.register(ProviderModel)
class PublishedProviderModelAdmin(Publishes, ProviderModelAdmin):
    pass


@admin.register(ModelGroup)
class PublishedModelGroupAdmin(Publishes, ModelGroupAdmin):
    pass


@admin.register(Revision)
class RevisionAdmin(ModelAdmin):
    list_display = ("number", "created", "author", "state", "summary", "note")
    list_filter = ("author",)
    search_fields = ("note", "diff")
    search_help_text = "A word of a change or of the note."
    date_hierarchy = "created"
    fields = ("number", "created", "author", "note", "checksum")
    readonly_fields = ("checksum",)
    list_before_template = "gateway/pending.html"
    change_form_outer_before_template = "gateway/revision.html"
    change_form_outer_after_template = "gateway/changes.html"
    empty_hint = "The first one is published when a provider or a model group is saved, or a file is imported."

    def get_queryset(self, request: HttpRequest) -> QuerySet[Revision]:
        revisions: QuerySet[Revision] = super().get_queryset(request)
        return revisions.defer("document", "key_digests")

    @display(description="State", label={"served": "success"})
    def state(self, revision: Revision) -> str:
        return "served" if revision.number == publish.latest() else ""

    @display(description="Changes")
    def summary(self, revision: Revision) -> str:
        return format_html('<span class="pilotage-long">{}</span>', change_summary(revision.diff))

    @display(description="SHA-256")
    def checksum(self, revision: Revision) -> str:
        return format_html('<span class="pilotage-long">{}</span>', revision.sha256)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Revision | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Revision | None = None) -> bool:
        return False

    def change_view(self, request: HttpRequest, object_id: str, *args: Any, **kwargs: Any) -> HttpResponse:
        kwargs["extra_context"] = {"may_publish_again": may_publish_again(request)}
        answer: HttpResponse = super().change_view(request, object_id, *args, **kwargs)
        return answer

    def get_urls(self) -> list[URLPattern]:
        again = self.admin_site.admin_view(require_POST(self.publish_again))
        return [path("<int:number>/publish/", again, name="gateway_revision_publish"), *super().get_urls()]

    def publish_again(self, request: HttpRequest, number: int) -> HttpResponse:
        if not may_publish_again(request):
            raise PermissionDenied
        get_object_or_404(Revision, number=number)
        outcome = publish.republish(number, author=_author(request))
        tell(request, outcome)
        shown = outcome.number if isinstance(outcome, publish.Published) else number
        return HttpResponseRedirect(reverse("admin:gateway_revision_change", args=[shown]))


def may_publish_again(request: HttpRequest) -> bool:
    """It rewrites every provider and group, so it takes the right to do that by hand."""
    rights = (f"routing.{verb}_{model}" for verb in ("add", "change", "delete") for model in _REWRITTEN)
    return request.user.has_perms(list(rights))


_REWRITTEN = ("provider", "providermodel", "modelgroup")


def tell(request: HttpRequest, outcome: publish.Published | publish.Pending) -> None:
    """What is wrong while something is pending stands on every page that shows this message: see pending.html."""
    match outcome:
        case publish.Published(new=True, number=number):
            messages.success(request, f"Published revision {number}.")
        case publish.Published(number=number):
            messages.info(request, f"Nothing differs from revision {number}, which goes on serving.")
        case publish.Pending():
            messages.warning(request, "Stored, but not published: see below.")


def _author(request: HttpRequest) -> str:
    return request.user.get_username()
