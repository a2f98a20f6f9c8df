"""Samples of a corpus that do not depend on its order: the documents with the smallest hash of their id.

And query-like texts, which stand for what a user might type when nobody has typed anything yet.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from indexer.hashing import bottom_k
from indexer.moments import Moments, tree_sum
from indexer.store import parts
from indexer.store.embeddings import open_embeddings
from indexer.transforms import FitData

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Population:
    """What a sample is drawn from: the parts of an index, a hash for the id of each live document, and which those are.

    `documents` and `rows` count what each part stores; `live` (stored documents,) is None when no document is deleted.
    """

    folders: Sequence[Path]
    documents: Sequence[int]
    rows: Sequence[int]
    hashes: npt.NDArray[np.uint64]
    live: npt.NDArray[np.bool_] | None = None

    def draw_documents(self, size: int | str) -> list[Numbers]:
        """The `size` live documents with the smallest id hash, or "all": of each part, counted from its start.

        Nothing has to be encoded yet.
        """
        chosen = bottom_k(self.hashes, size)
        if self.live is not None:
            chosen = np.flatnonzero(self.live)[chosen]
        ends = np.cumsum([0, *self.documents])
        cuts = np.searchsorted(chosen, ends)
        return [chosen[low:high] - end for low, high, end in zip(cuts, cuts[1:], ends, strict=False)]

    def draw(self, size: int | str) -> "Sample":
        """The same documents with their rows."""
        documents = self.draw_documents(size)
        rows = [
            inside if count == own else np.flatnonzero(np.isin(parts.read_window_documents(folder), inside))
            for folder, inside, count, own in zip(self.folders, documents, self.rows, self.documents, strict=True)
        ]
        return Sample(list(self.folders), documents, rows, list(self.rows))


@dataclass(frozen=True)
class Sample:
    """The documents the fit sees and their rows, part by part, ascending; numbers count from the start of the part."""

    folders: list[Path]
    documents: list[Numbers]
    part_rows: list[Numbers]
    stored: list[int]  # rows each part holds

    def __len__(self) -> int:
        """Rows sampled."""
        return sum(map(len, self.part_rows))

    @property
    def everything(self) -> bool:
        """Whether every stored row is in it."""
        return len(self) == sum(self.stored)

    @property
    def firsts(self) -> list[int]:
        """The first row of each part, and the number of rows at the end."""
        firsts: list[int] = np.cumsum([0, *self.stored]).tolist()
        return firsts

    @property
    def rows(self) -> Numbers:
        """Sampled rows, counted through all parts."""
        return np.concatenate([rows + first for rows, first in zip(self.part_rows, self.firsts, strict=False)])

    def embeddings(self, part: int) -> npt.NDArray[np.floating]:
        """Embeddings of the sampled rows of a part, (n, d)."""
        embeddings, rows = open_embeddings(self.folders[part]), self.part_rows[part]
        return embeddings if len(rows) == len(embeddings) else embeddings[rows]

    def fit_data(self) -> FitData:
        """What a transform is fitted on."""
        return FitData(self.moments, lambda: map(self.embeddings, range(len(self.folders))))

    def moments(self) -> Moments:
        """Moments of the sample, merged in one fixed tree over the parts."""
        if self.everything:
            return tree_sum(parts.load_moments(folder) for folder in self.folders)
        return tree_sum(Moments.of(self.embeddings(part)) for part in range(len(self.folders)))
