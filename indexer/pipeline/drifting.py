"""Drift of an index: which of its documents were added after the whitening was fitted, and how far they lie from those
it was fitted on."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from indexer.drift import Drift, measure_drift
from indexer.moments import Moments, tree_sum
from indexer.store import layout, parts
from indexer.store.checked import check_file
from indexer.store.embeddings import open_embeddings
from indexer.store.files import FileDigest
from indexer.store.manifest import Manifest, PartEntry
from indexer.store.numbering import LiveNumbering
from indexer.transforms import Transform, Whitening


class HeldParts(Protocol):
    """The parts of a generation and what their files must be."""

    @property
    def entries(self) -> Sequence[PartEntry]: ...

    @property
    def files(self) -> Mapping[str, FileDigest]: ...


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

    def compacted(self, published: Manifest, numbering: LiveNumbering, rows: Sequence[int]) -> "Since":
        """The same place once the live rows have been put into parts of `rows` rows each, in their order."""
        first = sum(part.rows for part in published.parts[: self.part]) + self.row
        before = first if numbering.stored_rows is None else int(np.searchsorted(numbering.stored_rows, first))
        ends = np.cumsum(rows)
        part = int(np.searchsorted(ends, before, side="right"))
        return Since(part, before - (int(ends[part - 1]) if part else 0))


def drift_since(since: Since, transform: Transform, index: Path, held: HeldParts) -> Drift | None:
    """Drift of the rows from `since` on among all parts; None without whitening, or where they are fewer than two.

    Raises CorruptIndexError for a damaged file.
    """
    if not isinstance(transform, Whitening):
        return None
    folders = [part.name for part in held.entries]

    def checked(part: int, name: str) -> Path:
        check_file(index / folders[part] / name, held.files[f"{folders[part]}/{name}"])
        return index / folders[part]

    def moments(part: int) -> Moments:
        return parts.load_moments(checked(part, layout.MOMENTS))

    def split(some: slice) -> Iterator[Moments]:
        """Those of some rows of the part that the place lies in."""
        if since.row:
            yield Moments.of(open_embeddings(checked(since.part, layout.EMBEDDINGS))[some])

    whole = since.part + bool(since.row)  # the first part that was added as a whole
    if since.part >= len(folders):
        return None
    fitted = None
    if not transform.mean.any() and (since.part or since.row):
        # centre = "none": the whitening does not know where the fitted documents lay
        fitted = tree_sum(chain(map(moments, range(since.part)), split(slice(since.row)))).mean
    added = tree_sum(chain(split(slice(since.row, None)), map(moments, range(whole, len(folders)))))
    return measure_drift(transform, added, fitted)
