"""What one process serves from: the compiled configuration and the callers, each swapped by one assignment."""

from dataclasses import dataclass

from accounts.core.directory import Directory
from routing.core.catalog import Catalog


@dataclass(slots=True)
class Snapshot:
    """An Exchange reads both once, at its start, and keeps them."""

    catalog: Catalog | None = None
    """`None`: not loaded yet."""
    directory: Directory | None = None

    @property
    def ready(self) -> bool:
        return self.catalog is not None and self.directory is not None
