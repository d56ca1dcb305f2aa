"""Amounts: whole micro-dollars to count with, dollars in decimal to read."""

from decimal import Decimal
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers


def usd(microdollars: int) -> str:
    """With all six places: `0.001000`."""
    return f"{Decimal(microdollars).scaleb(-6):.6f}"


@extend_schema_field({"type": "string", "pattern": r"^-?\d+\.\d{6}$", "example": "0.001000"})
class Usd(serializers.Field[Any, Any, str, Any]):
    """Dollars, from a source that holds micro-dollars."""

    def __init__(self, **how: Any) -> None:
        super().__init__(read_only=True, **how)

    def to_representation(self, value: int) -> str:
        return usd(value)
