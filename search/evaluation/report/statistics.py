"""The numbers of a report: spectrum, cosines, isotropy, norms and lengths, from what an index stores.

The partition function is that of Mu and Viswanath (All-but-the-Top, ICLR 2018, section 2): Z(c) = sum of exp(c . v),
with I = min Z / max Z over unit vectors c, for which they take the eigenvectors of the vectors' second moment. An
eigenvector's sign is arbitrary and Z depends on it, so both signs are taken here.

IsoScore is that of Rudman, Gillman, Rayne and Eickhoff (IsoScore: Measuring the Uniformity of Embedding Space
Utilization, Findings of ACL 2022, algorithm 1). With the eigenvalues l of the covariance in n dimensions its steps
come to (P - 1) / (n - 1), where P = (sum l)^2 / sum l^2 is the participation ratio.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from indexer.arrays import Float64Array, RowIds
from indexer.models.identity import UNLIMITED
from indexer.moments import Moments, tree_sum
from indexer.pipeline.rows import RowView
from indexer.system.threads import single_blas_thread
from indexer.transforms import Normalisation, Transform, Whitening
from search.index import BLOCK_ROWS, Index, LiveRows

Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True)
class VectorStatistics:
    """Some unit vectors. `spectrum` (k,) holds the share of the variance in each principal direction, descending;
    zeros when there is no variance. `cosines` (pairs,) are of random pairs. `partition` is I = min Z / max Z."""

    spectrum: Float64Array
    cosines: Float64Array
    partition: float

    @property
    def dim(self) -> int:
        """Vector size k."""
        return len(self.spectrum)

    @property
    def participation(self) -> float | None:
        """(sum l)^2 / sum l^2: how many equal directions would be as spread; None without variance."""
        squares = float(np.sum(self.spectrum**2))
        return 1 / squares if squares else None

    @property
    def isoscore(self) -> float | None:
        """0: all variance in one direction, 1: the same in every; None in one dimension or without variance."""
        if self.participation is None or self.dim < 2:
            return None
        return max(0.0, round((self.participation - 1) / (self.dim - 1), 12))

    def leading(self, count: int) -> float | None:
        """Share of the variance in the first `count` directions."""
        return float(self.spectrum[:count].sum()) if self.spectrum.any() else None

    @property
    def mean_cosine(self) -> float | None:
        return float(self.cosines.mean()) if len(self.cosines) else None

    @property
    def cosine_deviation(self) -> float | None:
        """Standard deviation of the cosines."""
        return float(self.cosines.std()) if len(self.cosines) else None


def measure_cloud(blocks: Callable[[], Iterable[Vectors]], cosines: Float64Array) -> VectorStatistics:
    """Figures of unit vectors (n, k) that come in blocks, twice."""
    moments = tree_sum([Moments.of(block) for block in blocks()])
    return VectorStatistics(_shares(moments), cosines, _partition(blocks, moments))


def _shares(moments: Moments) -> Float64Array:
    with single_blas_thread():
        values = np.maximum(np.linalg.eigvalsh(moments.covariance)[::-1], 0.0)
    total = float(values.sum())
    shares: Float64Array = values / total if total > np.finfo(np.float32).eps ** 2 else np.zeros_like(values)
    return shares


def _partition(blocks: Callable[[], Iterable[Vectors]], moments: Moments) -> float:
    second = moments.covariance + np.outer(moments.mean, moments.mean)
    with single_blas_thread():
        directions = np.linalg.eigh(second)[1]
        sums = np.zeros((2, len(second)))
        for block in blocks():
            projected = block.astype(np.float64) @ directions
            sums += np.exp(projected).sum(axis=0), np.exp(-projected).sum(axis=0)
    return float(sums.min() / sums.max())


SAMPLE = 50_000  # rows behind the spectra and norms
PAIRS = 20_000
_PAIRED_ROWS = 10_000  # rows the pairs are drawn from, whose vectors are held at once


@dataclass(frozen=True)
class IndexStatistics:
    """What a report shows of the vectors. Before is the raw embedding at unit length, after the stored vector."""

    rows: int
    windowed: bool  # rows are windows; else documents
    sampled: int
    paired: int  # rows the random pairs are drawn from
    before: VectorStatistics
    after: VectorStatistics  # the same object when the transform does nothing but normalise
    norms: Float64Array  # (sampled,) of raw embeddings
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


def measure_statistics(index: Index) -> IndexStatistics:
    """All figures. Memory is bounded: rows are sampled by the smallest id hash and read a block at a time."""
    stored = LiveRows(index)
    a_row = index.manifest.documents / max(1, index.manifest.rows)  # documents
    sample, paired = (stored.sample(max(1, round(most * a_row))) for most in (SAMPLE, _PAIRED_ROWS))
    pairs = _pairs(len(paired))
    raw = Normalisation(index.manifest.encoder["dim"])
    before = _cloud(sample, paired, pairs, raw)
    same = index.transform.affine_layers("document") == []
    return IndexStatistics(
        rows=len(stored),
        windowed=not index.numbering.one_to_one,
        sampled=len(sample),
        paired=len(paired),
        before=before,
        after=before if same else _cloud(sample, paired, pairs, index.transform),
        norms=np.concatenate([np.linalg.norm(block.astype(np.float64), axis=1) for block in _blocks(sample)]),
        lengths=np.concatenate(list(stored.length_blocks())),
        max_length=_limit(index),
        offset=_offset(index.transform),
    )


def _cloud(sample: RowView, paired: RowView, pairs: tuple[RowIds, RowIds], transform: Transform) -> VectorStatistics:
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


def _cosines(vectors: Vectors, first: RowIds, second: RowIds) -> Float64Array:
    found = [
        np.einsum("nk,nk->n", vectors[first[part]], vectors[second[part]], dtype=np.float64)
        for part in np.array_split(np.arange(len(first)), max(1, len(first) // BLOCK_ROWS))
    ]
    return np.concatenate(found)


def _limit(index: Index) -> int | None:
    """Tokens that the encoder takes; None where there is no encoder, or no limit."""
    limit = index.encoder.max_length
    return None if limit == UNLIMITED else limit


def _offset(transform: Transform) -> float | None:
    if not isinstance(transform, Whitening) or np.array_equal(transform.mean, transform.query_mean):
        return None
    spread = np.sqrt(transform.spectrum.sum())
    return float(np.linalg.norm(transform.query_mean - transform.mean) / spread)
