"""The numbers of a report, from what an index stores."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from indexer.arrays import RowIds
from indexer.encoders.identity import UNLIMITED
from indexer.pipeline.rows import RowView
from indexer.transforms import Normalisation, Transform, Whitening
from search.evaluation.report.isotropy import Array, Cloud, Vectors, measure_cloud
from search.opened import OpenIndex
from search.stored import BLOCK_ROWS, StoredRows

SAMPLE = 50_000  # rows behind the spectra and norms
PAIRS = 20_000
_PAIRED_ROWS = 10_000  # rows the pairs are drawn from, whose vectors are held at once


@dataclass(frozen=True)
class Figures:
    """What a report shows of the vectors. Before is the raw embedding at unit length, after the stored vector."""

    rows: int
    windowed: bool  # rows are windows; else documents
    sampled: int
    paired: int  # rows the random pairs are drawn from
    before: Cloud
    after: Cloud  # the same object when the transform does nothing but normalise
    norms: Array  # (sampled,) of raw embeddings
    lengths: npt.NDArray[np.int32]  # (rows,) tokens before truncation
    max_length: int | None  # tokens; None where embeddings came with the corpus, and for a table
    offset: float | None  # |query mean - document mean| / typical distance from the mean; None with one mean

    @property
    def unchanged(self) -> bool:
        """Whether before and after are the same."""
        return self.before is self.after

    @property
    def truncated(self) -> int:
        """Rows whose text is longer than the encoder takes."""
        return int(np.count_nonzero(self.lengths > self.max_length)) if self.max_length is not None else 0

    @property
    def noun(self) -> str:
        """What a row is called."""
        return "window" if self.windowed else "document"


def measure_figures(opened: OpenIndex) -> Figures:
    """All figures. Memory is bounded: rows are sampled by the smallest id hash and read a block at a time."""
    stored = StoredRows(opened)
    a_row = opened.manifest.documents / max(1, opened.manifest.rows)  # documents
    sample, paired = (stored.sample(max(1, round(most * a_row))) for most in (SAMPLE, _PAIRED_ROWS))
    pairs = _pairs(len(paired))
    raw = Normalisation(opened.manifest.encoder["dim"])
    before = _cloud(sample, paired, pairs, raw)
    same = opened.transform.affine_layers("document") == []
    return Figures(
        rows=len(stored),
        windowed=not opened.numbering.one_to_one,
        sampled=len(sample),
        paired=len(paired),
        before=before,
        after=before if same else _cloud(sample, paired, pairs, opened.transform),
        norms=np.concatenate([np.linalg.norm(block.astype(np.float64), axis=1) for block in _blocks(sample)]),
        lengths=np.concatenate(list(stored.length_blocks())),
        max_length=_limit(opened),
        offset=_offset(opened.transform),
    )


def _cloud(sample: RowView, paired: RowView, pairs: tuple[RowIds, RowIds], transform: Transform) -> Cloud:
    def vectors(rows: RowView) -> Callable[[], Iterator[Vectors]]:
        return lambda: (transform.transform(block, "document") for block in _blocks(rows))

    held = np.concatenate(list(vectors(paired)()))
    return measure_cloud(vectors(sample), _cosines(held, *pairs))


def _blocks(sample: RowView) -> Iterator[npt.NDArray[np.floating]]:
    """Raw embeddings of sampled rows (m, d)."""
    for part in range(len(sample.folders)):
        embeddings = sample.embeddings(part)
        for start in range(0, len(embeddings), BLOCK_ROWS):
            yield embeddings[start : start + BLOCK_ROWS]


def _pairs(rows: int) -> tuple[RowIds, RowIds]:
    """Pairs of different rows: all if there are at most `PAIRS`, else drawn with a fixed seed."""
    if rows * (rows - 1) // 2 <= PAIRS:
        above, right = np.nonzero(np.triu(np.ones((rows, rows), bool), 1))
        return above, right
    draw = np.random.default_rng(0)
    first: RowIds = draw.integers(0, rows, PAIRS)
    second: RowIds = (first + draw.integers(1, rows, PAIRS)) % rows
    return first, second


def _cosines(vectors: Vectors, first: RowIds, second: RowIds) -> Array:
    found = [
        np.einsum("nk,nk->n", vectors[first[part]], vectors[second[part]], dtype=np.float64)
        for part in np.array_split(np.arange(len(first)), max(1, len(first) // BLOCK_ROWS))
    ]
    return np.concatenate(found)


def _limit(opened: OpenIndex) -> int | None:
    """Tokens that the encoder takes; None where there is no encoder, or no limit."""
    limit = opened.encoder.max_length
    return None if limit == UNLIMITED else limit


def _offset(transform: Transform) -> float | None:
    if not isinstance(transform, Whitening) or np.array_equal(transform.mean, transform.query_mean):
        return None
    spread = np.sqrt(transform.spectrum.sum())
    return float(np.linalg.norm(transform.query_mean - transform.mean) / spread)
