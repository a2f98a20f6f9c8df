"""Samples of a corpus that do not depend on its order: the documents with the smallest hash of their id.

And query-like texts, which stand for what a user might type when nobody has typed anything yet.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from indexer.corpus.document import Document
from indexer.moments import Moments, merge
from indexer.store import parts

_SENTENCE_WORDS, _WINDOW_WORDS = 24, 12
_SENTENCE_END = re.compile(r"(?<=[.!?])\s|\n")


@dataclass(frozen=True)
class Sample:
    """The rows the fit sees, ascending, and the embeddings of one part's share of them at a time."""

    rows: npt.NDArray[np.int64]
    folders: list[Path]
    firsts: list[int]  # first row of each part, and the number of rows at the end

    @property
    def everything(self) -> bool:
        return len(self.rows) == self.firsts[-1]

    def rows_of(self, part: int) -> npt.NDArray[np.int64]:
        """Sampled rows of a part, counted within it."""
        low, high = np.searchsorted(self.rows, [self.firsts[part], self.firsts[part + 1]])
        return self.rows[low:high] - self.firsts[part]

    def embeddings(self, part: int) -> npt.NDArray[np.floating]:
        """Embeddings of the sampled rows of a part, (n, d)."""
        embeddings, rows = parts.open_embeddings(self.folders[part]), self.rows_of(part)
        return embeddings if len(rows) == len(embeddings) else embeddings[rows]

    def moments(self) -> Moments:
        """Moments of the sample, merged in one fixed tree over the parts."""
        if self.everything:
            return merge(parts.load_moments(folder) for folder in self.folders)
        return merge(Moments.of(self.embeddings(part)) for part in range(len(self.folders)))


def id_hash(identity: str) -> int:
    """64 bits of an id, by which samples are drawn."""
    return int.from_bytes(hashlib.blake2b(identity.encode(), digest_size=8).digest(), "big")


def smallest_hashes(hashes: npt.NDArray[np.uint64], size: int | str) -> npt.NDArray[np.int64]:
    """Positions, ascending, of the `size` smallest of some id hashes, or of "all"."""
    count = len(hashes) if size == "all" else min(int(size), len(hashes))
    return np.sort(np.argsort(hashes, kind="stable")[:count])


def draw_sample(
    folders: Sequence[Path], documents: Sequence[int], hashes: npt.NDArray[np.uint64], size: int | str
) -> Sample:
    """A sample of an index in parts: their folders, the documents in each, and a hash for each id in row order."""
    return Sample(smallest_hashes(hashes, size), list(folders), np.cumsum([0, *documents]).tolist())


def query_like(document: Document) -> str:
    """A text such as a user might type: the title, else a short first sentence, else the first words."""
    if document.title and document.title.strip():
        return document.title.strip()
    words = _SENTENCE_END.split(document.text.strip(), maxsplit=1)[0].split()
    return " ".join(words if len(words) <= _SENTENCE_WORDS else words[:_WINDOW_WORDS])
