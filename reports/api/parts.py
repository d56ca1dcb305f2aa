"""Parts of answers that several addresses have."""

from rest_framework import serializers


class Words(serializers.ListField):
    child = serializers.CharField()


class Next(serializers.CharField):
    """Where the list goes on."""

    def __init__(self) -> None:
        text = "Path and parameters of the next page. Null: this is the last."
        super().__init__(read_only=True, allow_null=True, help_text=text)
