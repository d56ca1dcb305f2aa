"""The admin's pages for callers, tokens and the people who may use the admin."""

from datetime import datetime
from typing import Any

from django.contrib import admin, messages
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.models import Group, User
from django.db.models import Count, Q, QuerySet
from django.forms import ModelForm
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.timezone import localtime
from unfold.admin import ModelAdmin
from unfold.decorators import display
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from accounts import tokens
from accounts.core.secret import PREFIX, SHOWN_CHARACTERS
from accounts.forms import CallerForm, IssueForm, TokenForm
from accounts.models import Caller, Token

admin.site.unregister(User)
admin.site.unregister(Group)


@admin.register(User)
class PersonAdmin(UserAdmin, ModelAdmin):
    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm


@admin.register(Group)
class RoleAdmin(GroupAdmin, ModelAdmin):
    pass


@admin.register(Caller)
class CallerAdmin(ModelAdmin):
    form = CallerForm
    list_display = ("name", "project", "environment", "is_active", "may_use", "good")
    list_filter = ("active", "environment", "project")
    search_fields = ("name", "project", "environment")
    search_help_text = "Name, project or environment."
    empty_hint = (
        "A caller is who sends requests: an application, a team, a person. It says which model groups they may use."
    )
    fieldsets = (
        (None, {"fields": ("name", "project", "environment", "active")}),
        ("May use", {"fields": ("all_groups", "allowed_groups")}),
        ("Routing", {"fields": ("see_routing", "tag_words")}),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Caller]:
        good = Q(tokens__revoked_at=None) & (Q(tokens__expires_at=None) | Q(tokens__expires_at__gt=timezone.now()))
        callers: QuerySet[Caller] = super().get_queryset(request)
        return callers.annotate(good_tokens=Count("tokens", filter=good))

    @display(description="Active", boolean=True, ordering="active")
    def is_active(self, caller: Caller) -> bool:
        return caller.active

    @display(description="Allowed groups")
    def may_use(self, caller: Caller) -> str:
        return "all" if "*" in caller.allow else ", ".join(caller.allow) or "none"

    @display(description="Good tokens")
    def good(self, caller: Caller) -> int:
        counted: int = vars(caller)["good_tokens"]
        return counted


@admin.register(Token)
class TokenAdmin(ModelAdmin):
    list_display = ("shown", "caller", "state", "expires", "last_used", "only_groups", "created_at", "created_by")
    list_filter = ("caller", ("revoked_at", admin.EmptyFieldListFilter))
    list_select_related = ("caller",)
    search_fields = ("shown", "caller__name")
    search_help_text = "A token's beginning, or a caller."
    empty_hint = (
        "A token opens the gateway in a caller's name. It is shown once, when it is issued; only a digest is kept."
    )
    actions = ("revoke_chosen",)
    readonly_fields = (
        "shown",
        "caller",
        "state",
        "only_groups",
        "expires",
        "last_used",
        "revoked_at",
        "created_at",
        "created_by",
    )
    fieldsets = (
        (None, {"fields": ("shown", "caller", "state", "only_groups", "expires", "last_used", "revoked_at")}),
        ("Made", {"fields": ("created_at", "created_by")}),
        ("Revoke", {"fields": ("revoke",)}),
    )
    add_fieldsets = ((None, {"fields": ("caller", "only_groups", "expires_in")}),)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Token], search_term: str
    ) -> tuple[QuerySet[Token], bool]:
        """Whoever pastes a whole token finds it by what is kept of it."""
        if search_term.startswith(PREFIX):
            search_term = search_term[:SHOWN_CHARACTERS]
        found: tuple[QuerySet[Token], bool] = super().get_search_results(request, queryset, search_term)
        return found

    def get_form(self, request: HttpRequest, obj: Token | None = None, change: bool = False, **kwargs: Any) -> Any:
        return super().get_form(request, obj, change, **{**kwargs, "form": TokenForm if obj else IssueForm})

    def get_fieldsets(self, request: HttpRequest, obj: Token | None = None) -> Any:
        if obj is None:
            return self.add_fieldsets
        return (
            self.fieldsets
            if obj.revoked_at is None and self.has_change_permission(request, obj)
            else self.fieldsets[:2]
        )

    def get_readonly_fields(self, request: HttpRequest, obj: Token | None = None) -> tuple[str, ...]:
        return self.readonly_fields if obj else ()

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        only_save = {"show_save_and_continue": False, "show_save_and_add_another": False}
        response: HttpResponse = super().changeform_view(
            request, object_id, form_url, {**only_save, **(extra_context or {})}
        )
        return response

    def save_form(self, request: HttpRequest, form: ModelForm, change: bool) -> Token:
        if change:
            row: Token = form.save(commit=False)
            return row
        assert isinstance(form, IssueForm)
        form.author = request.user.get_username()
        token = form.save()
        vars(request)["issued_secret"] = form.secret  # for `response_add`, which does not get the form
        return token

    def save_model(self, request: HttpRequest, obj: Token, form: ModelForm, change: bool) -> None:
        if change and form.cleaned_data["revoke"]:
            tokens.revoke(obj)

    def response_add(self, request: HttpRequest, obj: Token, post_url_continue: str | None = None) -> HttpResponse:
        """The page that shows the secret, this once: it is in this answer's body and nowhere else."""
        return TemplateResponse(  # which the admin's views let nobody keep: Cache-Control is no-store
            request,
            "accounts/issued.html",
            {
                **self.admin_site.each_context(request),
                "opts": self.opts,
                "title": "Token issued",
                "token": obj,
                "secret": vars(request).pop("issued_secret"),
                "list_url": reverse("admin:accounts_token_changelist"),
                "token_url": reverse("admin:accounts_token_change", args=[obj.pk]),
            },
        )

    @admin.action(description="Revoke selected tokens", permissions=["change"])
    def revoke_chosen(self, request: HttpRequest, chosen: QuerySet[Token]) -> None:
        revoked = [token for token in chosen if tokens.revoke(token)]
        for token in revoked:
            self.log_change(request, token, "Revoked.")
        self.message_user(request, f"{len(revoked)} of {len(chosen)} tokens revoked.", messages.SUCCESS)

    @display(
        description="State",
        label={"good": "success", "revoked": "danger", "expired": "warning", "caller inactive": "warning"},
    )
    def state(self, token: Token) -> str:
        if token.revoked_at is not None:
            return "revoked"
        if token.expires_at is not None and token.expires_at <= timezone.now():
            return "expired"
        return "good" if token.caller.active else "caller inactive"

    @display(description="Expires", ordering="expires_at")
    def expires(self, token: Token) -> str:
        return "never" if token.expires_at is None else date_format(localtime(token.expires_at), "DATETIME_FORMAT")

    @display(description="Last used", ordering="last_used_at", empty_value="never")
    def last_used(self, token: Token) -> datetime | None:
        return token.last_used_at

    @display(description="Only these groups")
    def only_groups(self, token: Token) -> str:
        return "all that the caller may use" if token.groups is None else ", ".join(token.groups)
