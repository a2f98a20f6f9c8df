"""Drift: the distance of added documents from the documents that the whitening was fitted on.

In the directions that the whitening keeps, scaled so that the fitted sample has mean 0 and variance 1 in each, the
added documents have a mean m (k,) and variances v (k,). `mean_shift` is the root mean square of m, `covariance` that of
v - 1, the whitened covariance's deviation from the identity on its diagonal. n documents of the same distribution give
about sqrt(1 / n) and sqrt(2 / n) by chance (Gaussian data), reported as the expected values. A manifest stores the
first row of the documents that were added after the fit.
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


def measure_drift(
    whitening: Whitening, added: Moments, mean: npt.NDArray[np.float64] | None = None, stored: int = 0
) -> Drift | None:
    """Compare the moments of added embeddings with the fit; None for fewer than two rows.

    `stored` is the number of all rows, added ones included; 0: only the added ones.

    `mean` (d,) is the mean of the fitted sample, given if the whitening does not store it (`centre = "none"`).
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
        share=added.count / (stored or added.count),
    )


class AddedSince(StoredRow, frozen=True):
    """The first stored row of the documents that were added after the fit."""

    @classmethod
    def of(cls, published: Manifest) -> "AddedSince":
        """Return the row in a manifest; without one, the whitening was fitted to all documents."""
        since, drift = published.measured.added_since, published.measured.drift
        if since is not None:
            return cls(since.part, since.row)
        return cls(len(published.parts) if drift is None or drift.since_part is None else drift.since_part)

    def figures(self) -> dict[str, Any]:
        """Return the figures for a manifest, JSON types."""
        return {"added_since": msgspec.structs.asdict(self)}

    def compacted(self, published: Manifest, numbering: LiveNumbering, rows: Sequence[int]) -> "AddedSince":
        """Return the same place after the live rows were rewritten into parts of `rows` rows each."""
        first = sum(part.rows for part in published.parts[: self.part]) + self.row
        before = first if numbering.stored_rows is None else int(np.searchsorted(numbering.stored_rows, first))
        ends = np.cumsum(rows)
        part = int(np.searchsorted(ends, before, side="right"))
        return AddedSince(part, before - (int(ends[part - 1]) if part else 0))


def drift_since(
    since: AddedSince, transform: Transform, index: Path, held: Sequence[PartEntry], files: Mapping[str, FileDigest]
) -> Drift | None:
    """Return the drift of the rows from `since` on; None without whitening, or for fewer than two rows.

    `held` are all parts of the index, and `files` the digests of their files. Raises CorruptIndexError for a damaged
    file.
    """
    if not isinstance(transform, Whitening):
        return None
    folders = [part.name for part in held]
    if since.part >= len(folders):
        return None

    def checked(part: int, name: str) -> Path:
        check_file(index / folders[part] / name, files[f"{folders[part]}/{name}"])
        return index / folders[part]

    def moments(part: int) -> Moments:
        return parts.load_moments(checked(part, layout.MOMENTS))

    def split(rows: slice) -> Iterator[Moments]:
        """Yield the moments of some rows of the part that contains `since`."""
        if since.row:
            yield Moments.of(open_embeddings(checked(since.part, layout.EMBEDDINGS))[rows])

    whole = since.part + bool(since.row)  # the first part of only added documents
    fitted = None
    if not transform.mean.any() and (since.part or since.row):
        # centre = "none": the whitening does not store the mean of the fitted documents
        fitted = tree_sum(chain(map(moments, range(since.part)), split(slice(since.row)))).mean
    added = tree_sum(chain(split(slice(since.row, None)), map(moments, range(whole, len(folders)))))
    return measure_drift(transform, added, fitted, sum(entry.rows for entry in held))
