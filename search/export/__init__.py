"""An index in the formats of other programs: FAISS, sentence-transformers, Parquet, TREC runs.

Each function opens the newest generation, writes what is live in it and gives an `ExportReport`. What is written
appears whole or not at all, and its bytes depend on the index alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ExportReport:
    """What an export wrote.

    `files` are the names written, relative to the folder of `path`, with their bytes; `facts` are JSON types.

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
