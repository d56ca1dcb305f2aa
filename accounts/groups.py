"""The names of the model groups that exist. Who keeps groups tells it here, as accounts knows no routing."""

from collections.abc import Callable, Iterable

_source: Callable[[], Iterable[str]] | None = None


def register(source: Callable[[], Iterable[str]]) -> None:
    """`source` gives the names of all groups as they are now. Called once, when the apps are ready."""
    global _source
    _source = source


def names() -> list[str] | None:
    """Sorted; `None` where nobody registered, and nothing can be said about a name."""
    return None if _source is None else sorted(_source())
