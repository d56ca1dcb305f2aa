"""How many requests one identity may send to one process."""

from typing import Any

from django.conf import settings
from rest_framework.request import Request
from rest_framework.throttling import SimpleRateThrottle

from reports.api.access import viewer_of


class PerIdentity(SimpleRateThrottle):
    """PILOTAGE_API_REQUESTS_PER_MINUTE for a user, and for all tokens of a caller together."""

    scope = "api"

    def get_rate(self) -> str | None:
        allowed = settings.PILOTAGE.api_requests_per_minute
        return f"{allowed}/minute" if allowed else None

    def get_cache_key(self, request: Request, view: Any) -> str:
        # A caller's name holds no spaces: it cannot be another's, nor too long for a key.
        return f"api requests of {viewer_of(request).key}".replace(" ", "-")
