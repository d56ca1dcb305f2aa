"""The models list: a caller's groups, with both dialects' fields in one answer."""

import datetime
from typing import Any

from accounts.core.directory import Token
from routing.core.catalog import Catalog, Group


def models(catalog: Catalog, token: Token) -> dict[str, Any]:
    """`GET /v1/models`. OpenAI's clients read `object` and `data`, Anthropic's the page fields beside them."""
    data = [_model(catalog, group) for name, group in sorted(catalog.groups.items()) if token.may_use(name)]
    return {
        "object": "list",
        "data": data,
        "has_more": False,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
    }


def model(catalog: Catalog, token: Token, name: str) -> dict[str, Any] | None:
    """`GET /v1/models/{id}`. `None`: unknown, or not this caller's to see."""
    group = catalog.groups.get(name)
    return _model(catalog, group) if group is not None and token.may_use(name) else None


def _model(catalog: Catalog, group: Group) -> dict[str, Any]:
    created = datetime.datetime.fromtimestamp(catalog.created, datetime.UTC)
    return {
        "id": group.name,
        "object": "model",
        "created": catalog.created,
        "owned_by": "pilotage",
        "type": "model",
        "display_name": group.name,
        "created_at": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "description": group.description,
    }
