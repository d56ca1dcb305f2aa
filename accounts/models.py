"""Callers and tokens as rows, and the number that every change of either moves on."""

from collections.abc import Iterable
from typing import Any, TypeVar

from django.core.exceptions import ValidationError
from django.core.validators import RegexValidator
from django.db import models, transaction
from django.db.models import F, Q
from django.db.models.signals import post_delete, post_save
from django.utils import timezone

CALLER_NAME = r"^[a-z0-9][a-z0-9._-]{0,63}\Z"


class DirectoryVersion(models.Model):
    """One row, whose number is another one after every change: a process that knows it knows if its Directory is current."""

    number = models.BigIntegerField(default=0)

    class Meta:
        constraints = (models.CheckConstraint(condition=Q(pk=1), name="accounts_directoryversion_one_row"),)

    def __str__(self) -> str:
        return str(self.number)

    @classmethod
    def advance(cls) -> None:
        """Called inside the transaction of the change: nobody sees the one without the other."""
        if not cls.objects.filter(pk=1).update(number=F("number") + 1):
            _, made = cls.objects.get_or_create(pk=1, defaults={"number": 1})
            if not made:  # another transaction made the row since the update looked for it
                cls.objects.filter(pk=1).update(number=F("number") + 1)


M = TypeVar("M", bound=models.Model)


class WatchedQuerySet(models.QuerySet[M]):
    """Changes that send no signal advance the version too. `delete` does send them, row by row."""

    def update(self, **kwargs: Any) -> int:
        with transaction.atomic():
            changed = super().update(**kwargs)
            DirectoryVersion.advance()
        return changed

    def bulk_create(self, objs: Iterable[M], *args: Any, **kwargs: Any) -> list[M]:
        with transaction.atomic():
            made = super().bulk_create(objs, *args, **kwargs)
            DirectoryVersion.advance()
        return made


class Watched(models.Model):
    """A row of the Directory: saved and counted in one transaction."""

    objects = WatchedQuerySet.as_manager()

    class Meta:
        abstract = True

    def save(self, *args: Any, **kwargs: Any) -> None:
        with transaction.atomic():
            super().save(*args, **kwargs)


class Caller(Watched):
    """Who sends requests. Tokens open the gateway in its name."""

    name = models.CharField(
        max_length=64,
        unique=True,
        validators=[
            RegexValidator(
                CALLER_NAME, "1 to 64 of a-z, 0-9, '.', '_' and '-', the first a letter or digit.", code="caller_name"
            )
        ],
        help_text="How this caller is called in the configuration file, in logs and in reports.",
    )
    project = models.CharField(blank=True, help_text="For reports only.")
    environment = models.CharField(blank=True, help_text="For reports only, such as prod or staging.")
    active = models.BooleanField(default=True, help_text="Off: every token of this caller is refused.")
    allow = models.JSONField(
        "allowed groups", default=list, blank=True, help_text='Names of model groups; "*" for every group.'
    )
    see_routing = models.BooleanField(
        default=False, help_text="Answers name the target that served and how it was chosen, in x-pilotage-* headers."
    )
    tags = models.JSONField(default=list, blank=True, help_text="For the caller_tag condition of score terms.")
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        for field in ("allow", "tags"):
            if not _is_words(getattr(self, field)):
                raise ValidationError({field: "Must be a list of names."})


class Token(Watched):
    """A caller's secret, of which only the digest is kept. Made by `accounts.tokens.issue` alone."""

    caller = models.ForeignKey(Caller, on_delete=models.CASCADE, related_name="tokens")
    shown = models.CharField("token", max_length=12, editable=False)
    digest = models.BinaryField(max_length=32, unique=True, editable=False)
    groups = models.JSONField(
        "only these groups",
        null=True,
        blank=True,
        help_text="Narrower than the caller's. Empty: all that the caller may use.",
    )
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True, editable=False)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    created_by = models.CharField(blank=True, editable=False)
    last_used_at = models.DateTimeField("last used", null=True, blank=True, editable=False)

    class Meta:
        ordering = ("-created_at", "-pk")
        constraints = (
            models.CheckConstraint(condition=Q(shown__startswith="plt_"), name="accounts_token_shown_is_a_prefix"),
        )

    def __str__(self) -> str:
        return f"token {self.shown}…"


def _is_words(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) and word for word in value)


def _advance(**_: Any) -> None:
    DirectoryVersion.advance()


for _model in (Caller, Token):
    for _signal in (post_save, post_delete):
        _signal.connect(_advance, sender=_model, dispatch_uid=f"accounts directory {_model.__name__}")
