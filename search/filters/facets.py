"""Stand-in, replaced by the real one."""

from dataclasses import dataclass
from typing import Any

from search.index import Index


@dataclass(frozen=True)
class ColumnFacet:
    name: str

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name}


def column_facets(index: Index, most_values: int = 50) -> list[ColumnFacet]:
    return []
