"""Where providers' keys are looked for: whether one is there, and where none may be."""

import os
from collections.abc import Iterator
from pathlib import Path

from django.conf import settings

from routing.core.document import Document
from routing.core.errors import Problem
from routing.core.reading import below


def problems(document: Document) -> Iterator[Problem]:
    """Key files in the data directory. What lies there is the gateway's own: its pepper, its secrets, its database; a
    provider would be sent the content. Links are followed as they are now."""
    own = settings.PILOTAGE.data_dir.resolve()
    for name, provider in document.providers.items():
        if provider.api_key_file and _resolved(provider.api_key_file).is_relative_to(own):
            place = below(below("providers", name), "api_key_file")
            yield Problem(place, "must not lie in the data directory, whose files are the gateway's own secrets")


def is_there(api_key_env: str | None, api_key_file: str | None) -> bool:
    """Whether this process finds what is referred to. True when nothing is."""
    if api_key_env:
        return bool(os.environ.get(api_key_env))
    if api_key_file:
        return os.access(api_key_file, os.R_OK)
    return True


def _resolved(path: str) -> Path:
    try:
        return Path(path).resolve()
    except (OSError, RuntimeError, ValueError):  # a loop of links, a name too long, a NUL: nothing can be read there
        return Path(os.path.abspath(path.replace("\0", "")))
