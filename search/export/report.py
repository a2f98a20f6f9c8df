"""The report of an export."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ExportReport:
    """Report of an export.

    `files` maps each file written, relative to the folder of `path`, to its size in bytes. `facts` are JSON types.
    `notes` list what the export leaves out and what the other program needs as input.
    """

    kind: str
    path: Path
    files: Mapping[str, int]
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types."""
        files, notes = dict(self.files), list(self.notes)
        return {"to": self.kind, "path": str(self.path), "files": files, **self.facts, "notes": notes}
