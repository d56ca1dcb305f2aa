"""The forms of callers and tokens. Names of groups are chosen from those that exist; see `accounts.groups`."""

from collections.abc import Iterable
from typing import Any

from django import forms
from django.utils import timezone
from unfold.widgets import (
    UnfoldAdminCheckboxSelectMultipleWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextInputWidget,
    UnfoldBooleanSwitchWidget,
)

from accounts import groups, tokens
from accounts.core.duration import parse_duration
from accounts.core.errors import BadDuration, NotIssuable
from accounts.models import Caller, Token


class CallerForm(forms.ModelForm):
    all_groups = forms.BooleanField(
        label="All groups",
        required=False,
        widget=UnfoldBooleanSwitchWidget,
        help_text="Every model group, also those made later.",
    )
    allowed_groups = forms.MultipleChoiceField(
        label="Allowed groups",
        required=False,
        widget=UnfoldAdminCheckboxSelectMultipleWidget,
        help_text="The model groups that this caller may ask for.",
    )
    tag_words = forms.CharField(
        label="Tags",
        required=False,
        widget=UnfoldAdminTextInputWidget,
        help_text="Separated by commas. For the caller_tag condition of score terms.",
    )

    class Meta:
        model = Caller
        fields = ("name", "project", "environment", "active", "see_routing")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        allow = self.instance.allow
        _offer(self.fields["allowed_groups"], allow)
        self.initial.setdefault("all_groups", "*" in allow)
        self.initial.setdefault("allowed_groups", [name for name in allow if name != "*"])
        self.initial.setdefault("tag_words", ", ".join(self.instance.tags))

    def clean_tag_words(self) -> list[str]:
        words = (word.strip() for word in self.cleaned_data["tag_words"].split(","))
        return list(dict.fromkeys(word for word in words if word))

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        chosen = cleaned.get("allowed_groups", [])
        self.instance.allow = ["*", *chosen] if cleaned.get("all_groups") else chosen
        self.instance.tags = cleaned.get("tag_words", [])
        return cleaned


class IssueForm(forms.ModelForm):
    """Asks what a new token is for. `secret` is there after `save`, on the form and nowhere else."""

    caller = forms.ModelChoiceField(
        queryset=Caller.objects.all(),
        widget=UnfoldAdminSelectWidget,
        help_text="In whose name the token opens the gateway.",
    )
    only_groups = forms.MultipleChoiceField(
        label="Only these groups",
        required=False,
        widget=UnfoldAdminCheckboxSelectMultipleWidget,
        help_text="None ticked: all that the caller may use, also what it may use later.",
    )
    expires_in = forms.CharField(
        label="Expires in",
        required=False,
        widget=UnfoldAdminTextInputWidget,
        help_text="Minutes, hours, days or weeks from now, such as 90m, 12h, 30d or 2w. Empty: never.",
    )

    class Meta:
        model = Token
        fields = ("caller",)

    author = ""
    """Who is making the token; set by the admin."""
    secret: str | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _offer(self.fields["only_groups"], ())

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        cleaned["expires"] = None
        if cleaned.get("expires_in"):
            try:
                cleaned["expires"] = timezone.now() + parse_duration(cleaned["expires_in"])
            except BadDuration as error:
                self.add_error("expires_in", str(error))
        if "caller" in cleaned:
            try:
                tokens.check(cleaned["caller"], groups=cleaned.get("only_groups") or None, expires=cleaned["expires"])
            except NotIssuable as error:
                self.add_error({"groups": "only_groups", "expires": "expires_in"}[error.field], str(error))
        return cleaned

    def save(self, commit: bool = True) -> Token:
        """Issues the token at once: there is no unsaved one."""
        token, self.secret = tokens.issue(
            self.cleaned_data["caller"],
            groups=self.cleaned_data["only_groups"] or None,
            expires=self.cleaned_data["expires"],
            author=self.author,
        )
        self.instance = token
        return token

    def save_m2m(self) -> None:
        """Nothing: a token has no such fields."""


class TokenForm(forms.ModelForm):
    """A token that exists can be revoked, nothing else."""

    revoke = forms.BooleanField(
        label="Revoke this token",
        required=False,
        widget=UnfoldBooleanSwitchWidget,
        help_text="It is refused within two seconds and cannot be made good again.",
    )

    class Meta:
        model = Token
        fields = ()


def _offer(field: forms.Field, chosen: Iterable[str]) -> None:
    """Lets every existing group be chosen, and what is chosen already although it exists no more."""
    assert isinstance(field, forms.MultipleChoiceField)
    known = groups.names() or []
    gone = [name for name in chosen if name != "*" and name not in known]
    field.choices = [(name, name) for name in known] + [(name, f"{name} (no such group)") for name in gone]
    if not known and not gone:
        field.help_text = f"{field.help_text} There are none yet: add one under Routing, Model groups."
