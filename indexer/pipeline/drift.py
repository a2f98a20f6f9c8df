"""Drift: how far documents added to an index lie from those its whitening was fitted on.

In the directions the whitening keeps, scaled so that the fitted sample has mean 0 and variance 1 in each, the added
documents have some mean m (k,) and variances v (k,). `mean_shift` is the root mean square of m, `covariance` that of
v - 1, the whitened covariance's deviation from the identity on its diagonal. n documents of the very same kind give
about sqrt(1 / n) and sqrt(2 / n) by chance alone (Gaussian data), which are given beside them. A manifest says with
which stored row the documents begin that were added after the fit.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from indexer.moments import Moments, tree_sum
from indexer.store import layout, parts
from indexer.store.embeddings import open_embeddings
from indexer.store.files import FileDigest
from indexer.store.integrity import check_file
from indexer.store.manifest import Manifest, PartEntry
from indexer.store.numbering import LiveNumbering
from indexer.store.quality import Drift, StoredRow
from indexer.transforms import Transform, Whitening
from indexer.transforms.whitening import EIGENVALUE_FLOOR


def measure_drift(whitening: Whitening, added: Moments, mean: npt.NDArray[np.float64] | None = None) -> Drift | None:
    """Compare the moments of added embeddings with the fit; None for fewer than two rows.

    `mean` (d,) is the mean of the fitted sample where the whitening does not hold it (`centre = "none"`).
    """
    if added.count < 2:
        return None
    varying = whitening.spectrum[: whitening.dim] > EIGENVALUE_FLOOR * whitening.spectrum[0]
    directions = whitening.projection[:, varying] / np.linalg.norm(whitening.projection[:, varying], axis=0)
    deviations = np.sqrt(whitening.spectrum[: whitening.dim][varying])
    shift = (added.mean - (whitening.mean if mean is None else mean)) @ directions / deviations
    variance = np.einsum("dk,de,ek->k", directions, added.covariance, directions, optimize=True) / deviations**2
    return Drift(
        rows=added.count,
        mean_shift=float(np.sqrt(np.mean(shift**2))),
        expected_mean_shift=float(np.sqrt(1 / added.count)),
        covariance=float(np.sqrt(np.mean((variance - 1) ** 2))),
        expected_covariance=float(np.sqrt(2 / added.count)),
    )


class AddedSince(StoredRow, frozen=True):
    """The stored row at which the documents begin that were added after the fit."""

    @classmethod
    def of(cls, published: Manifest) -> "AddedSince":
        """Return the row in a manifest; without one, all documents were there when the whitening was fitted."""
        since, drift = published.measured.added_since, published.measured.drift
        if since is not None:
            return cls(since.part, since.row)
        return cls(len(published.parts) if drift is None or drift.since_part is None else drift.since_part)

    def figures(self) -> dict[str, Any]:
        """For a manifest, JSON types."""
        return {"added_since": msgspec.structs.asdict(self)}

    def compacted(self, published: Manifest, numbering: LiveNumbering, rows: Sequence[int]) -> "AddedSince":
        """The same place once the live rows have been put into parts of `rows` rows each, in their order."""
        first = sum(part.rows for part in published.parts[: self.part]) + self.row
        before = first if numbering.stored_rows is None else int(np.searchsorted(numbering.stored_rows, first))
        ends = np.cumsum(rows)
        part = int(np.searchsorted(ends, before, side="right"))
        return AddedSince(part, before - (int(ends[part - 1]) if part else 0))


def drift_since(
    since: AddedSince, transform: Transform, index: Path, held: Sequence[PartEntry], files: Mapping[str, FileDigest]
) -> Drift | None:
    """Drift of the rows from `since` on among all parts held; None without whitening, or where they are fewer than two.

    `files` has what the parts' files must be.
    Raises CorruptIndexError for a damaged file.
    """
    if not isinstance(transform, Whitening):
        return None
    folders = [part.name for part in held]

    def checked(part: int, name: str) -> Path:
        check_file(index / folders[part] / name, files[f"{folders[part]}/{name}"])
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
