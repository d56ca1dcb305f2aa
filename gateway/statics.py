"""The admin's own files, served by this process in every mode, so that nothing has to be collected or put before it."""

import mimetypes
import posixpath
from pathlib import Path

from django.contrib.staticfiles import finders
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotModified
from django.utils.http import http_date
from django.views.decorators.http import require_safe
from django.views.static import was_modified_since

MAX_AGE_SECONDS = 3600
"""Short enough that a browser has the new files an hour after an upgrade."""


@require_safe
def static_file(request: HttpRequest, name: str) -> HttpResponse:
    """A file of an installed app. Only what the finders know is reachable; a path that leaves their folders is 404."""
    clean = posixpath.normpath(name)
    found = None if clean.startswith(("/", "..")) or "\0" in clean else finders.find(clean)
    path = Path(found) if isinstance(found, str) else None
    if path is None or not path.is_file():
        raise Http404
    modified = path.stat().st_mtime
    kind, encoding = mimetypes.guess_type(path.name)
    response: HttpResponse
    if was_modified_since(request.headers.get("If-Modified-Since"), modified):
        # Whole files, the largest a few hundred KiB: streaming a file under ASGI costs more than reading it.
        response = HttpResponse(path.read_bytes(), content_type=kind or "application/octet-stream")
    else:
        response = HttpResponseNotModified()
    if encoding:
        response["Content-Encoding"] = encoding
    response["Last-Modified"] = http_date(modified)
    response["Cache-Control"] = f"public, max-age={MAX_AGE_SECONDS}"
    return response
