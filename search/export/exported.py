"""What an export wrote."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Exported:
    """`files` are the names written, relative to the folder of `path`, with their bytes; `facts` are JSON types.

    `notes` say what the other program does not get from the index, or must be given.
    """

    kind: str
    path: Path
    files: Mapping[str, int]
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return {
            "to": self.kind,
            "path": str(self.path),
            "files": dict(self.files),
            **self.facts,
            "notes": list(self.notes),
        }
