"""The admin's pages of what happened."""

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from unfold.admin import ModelAdmin
from unfold.decorators import display

import reports.scheduled_admin  # noqa: F401 - Django looks for pages here alone
from reports.rollup_models import LegalHold


@admin.register(LegalHold)
class LegalHoldAdmin(ModelAdmin):
    """Holds are released, not deleted: what was kept, by whom and why remains to be seen."""

    list_display = ("what", "reason", "created_by", "created_at", "state")
    list_filter = (("released_at", admin.EmptyFieldListFilter),)
    search_fields = ("caller", "project", "group", "request_id", "reason")
    readonly_fields = ("created_by", "created_at")
    actions = ("release",)
    fieldsets = (
        (
            "What is kept",
            {
                "fields": (("caller", "project"), ("group", "request_id"), "started_from", "started_before"),
                "description": "Exchanges that match everything filled in are kept with their detail, whatever their "
                "age. What has already been deleted does not come back.",
            },
        ),
        ("Why and until when", {"fields": ("reason", "released_at", ("created_by", "created_at"))}),
    )

    def get_fieldsets(self, request: HttpRequest, obj: LegalHold | None = None) -> Any:
        return self.fieldsets if obj is not None else (self.fieldsets[0], ("Why", {"fields": ("reason",)}))

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: LegalHold, form: Any, change: bool) -> None:
        if not change:
            obj.created_by = request.user.get_username()
        super().save_model(request, obj, form, change)

    @display(description="Keeps")
    def what(self, hold: LegalHold) -> str:
        return hold.names()

    @display(description="State", label={"holds": "success", "released": "info"})
    def state(self, hold: LegalHold) -> str:
        return "holds" if hold.released_at is None else "released"

    @admin.action(description="Release", permissions=["change"])
    def release(self, request: HttpRequest, holds: QuerySet[LegalHold]) -> None:
        count = holds.filter(released_at=None).update(released_at=timezone.now())
        self.message_user(request, f"{count} released. What they kept goes with the next retention.")
