"""Revisions: published configurations, numbered without gaps, never changed once stored."""

from django.db import models


class Revision(models.Model):
    number = models.PositiveBigIntegerField(primary_key=True, help_text="From 1, without gaps.")
    document = models.TextField(
        help_text="The Document as JSON in the configuration file's form, without literal keys."
    )
    sha256 = models.CharField(max_length=64, help_text="Of the document's UTF-8 bytes, in hexadecimal.")
    key_digests = models.JSONField(
        default=dict, help_text="Keyed digest of each provider's literal key: tells that one changed, not what it is."
    )
    author = models.CharField()
    created = models.DateTimeField()
    note = models.CharField(default="", blank=True)
    diff = models.TextField(default="", blank=True, help_text="What differs from the one before, one line a change.")

    class Meta:
        ordering = ("-number",)

    def __str__(self) -> str:
        return f"Revision {self.number}"
