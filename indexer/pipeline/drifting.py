"""Drift of an index: which of its documents were added after the whitening was fitted, and how far they lie from those
it was fitted on."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from indexer.drift import Drift, measure_drift
from indexer.moments import Moments, merge
from indexer.store import parts
from indexer.store.manifest import Manifest
from indexer.store.numbering import Numbering
from indexer.transforms import Transform, Whitening


@dataclass(frozen=True)
class Since:
    """The stored row that the documents begin with which were added after the fit: a part, and a row in it."""

    part: int
    row: int = 0

    @classmethod
    def of(cls, published: Manifest) -> "Since":
        """What a manifest says; where it says nothing, all documents were there when the whitening was fitted."""
        if "added_since" in published.quality:
            return cls(**published.quality["added_since"])
        return cls(published.quality.get("drift", {}).get("since_part", len(published.parts)))

    def figures(self) -> dict[str, Any]:
        """For a manifest, JSON types."""
        return {"added_since": asdict(self)}

    def compacted(self, published: Manifest, numbering: Numbering, rows: Sequence[int]) -> "Since":
        """The same place once the live rows have been put into parts of `rows` rows each, in their order."""
        first = sum(part.rows for part in published.parts[: self.part]) + self.row
        before = first if numbering.stored_rows is None else int(np.searchsorted(numbering.stored_rows, first))
        ends = np.cumsum(rows)
        part = int(np.searchsorted(ends, before, side="right"))
        return Since(part, before - (int(ends[part - 1]) if part else 0))


def drift_since(since: Since, transform: Transform, folders: Sequence[Path]) -> Drift | None:
    """Drift of the rows from `since` on among all parts; None without whitening, or where they are fewer than two."""
    if not isinstance(transform, Whitening):
        return None
    added = list(_moments(folders, since, after=True))
    if not added:
        return None
    fitted = None
    if not transform.mean.any():  # centre = "none": the whitening does not know where the fitted documents lay
        before = list(_moments(folders, since, after=False))
        fitted = merge(before).mean if before else None
    return measure_drift(transform, merge(added), fitted)


def _moments(folders: Sequence[Path], since: Since, after: bool) -> Iterator[Moments]:
    """Moments of the rows before or after a place, in order."""
    cut = slice(since.row, None) if after else slice(since.row)
    split = [Moments.of(parts.open_embeddings(folders[since.part])[cut])] if since.row else []
    if after:
        yield from split
        yield from (parts.load_moments(folder) for folder in folders[since.part + len(split) :])
    else:
        yield from (parts.load_moments(folder) for folder in folders[: since.part])
        yield from split
