"""Figures of a report: spectrum, cosines, isotropy, norms and lengths of an index.

The partition function is by Mu and Viswanath (All-but-the-Top, ICLR 2018, section 2): Z(c) = sum of exp(c . v), and
I = min Z / max Z over unit vectors c, the eigenvectors of the vectors' second moment. Z depends on the arbitrary sign
of an eigenvector, so both signs are used here.

IsoScore is by Rudman, Gillman, Rayne and Eickhoff (IsoScore: Measuring the Uniformity of Embedding Space Utilization,
Findings of ACL 2022, algorithm 1). With the eigenvalues l of the covariance in n dimensions its steps simplify to
(P - 1) / (n - 1), where P = (sum l)^2 / sum l^2 is the participation ratio.
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
    """Figures of unit vectors.

    `spectrum` (k,) is the share of the variance in each principal direction, descending; zeros without variance.
    `cosines` (pairs,) are of random pairs. `partition` is I = min Z / max Z.
    """

    spectrum: Float64Array
    cosines: Float64Array
    partition: float

    @property
    def dim(self) -> int:
        """Vector size k."""
        return len(self.spectrum)

    @property
    def participation(self) -> float | None:
        """(sum l)^2 / sum l^2, the number of equal directions with the same spread; None without variance."""
        squares = float(np.sum(self.spectrum**2))
        return 1 / squares if squares else None

    @property
    def isoscore(self) -> float | None:
        """From 0 (variance in one direction only) to 1 (isotropic); None in one dimension or without variance."""
        if self.participation is None or self.dim < 2:
            return None
        return max(0.0, round((self.participation - 1) / (self.dim - 1), 12))

    def leading(self, count: int) -> float | None:
        """Return the share of the variance in the first `count` directions."""
        return float(self.spectrum[:count].sum()) if self.spectrum.any() else None

    @property
    def mean_cosine(self) -> float | None:
        return float(self.cosines.mean()) if len(self.cosines) else None

    @property
    def cosine_deviation(self) -> float | None:
        """Standard deviation of the cosines."""
        return float(self.cosines.std()) if len(self.cosines) else None


def measure_cloud(blocks: Callable[[], Iterable[Vectors]], cosines: Float64Array) -> VectorStatistics:
    """Return the figures of unit vectors (n, k); `blocks` is called twice."""
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
_PAIRED_ROWS = 10_000  # rows that the pairs are drawn from; their vectors are in memory together


@dataclass(frozen=True)
class IndexStatistics:
    """Figures of an index: `before` of the raw embeddings at unit length, `after` of the stored vectors."""

    rows: int
    windowed: bool  # rows are windows; else documents
    sampled: int
    paired: int  # rows that the random pairs are drawn from
    before: VectorStatistics
    after: VectorStatistics  # the same object if the transform only normalises
    norms: Float64Array  # (sampled,) of raw embeddings
    lengths: npt.NDArray[np.int32]  # (rows,) tokens before truncation
    max_length: int | None  # tokens; None for embeddings from the corpus and for a table
    offset: float | None  # |query mean - document mean| / typical distance from the mean; None with one mean

    @property
    def unchanged(self) -> bool:
        """Whether before and after are the same."""
        return self.before is self.after

    @property
    def truncated(self) -> int:
        """The number of rows with a truncated text."""
        return int(np.count_nonzero(self.lengths > self.max_length)) if self.max_length is not None else 0

    @property
    def noun(self) -> str:
        """The noun for a row."""
        return "window" if self.windowed else "document"


def measure_statistics(index: Index) -> IndexStatistics:
    """Return all figures in bounded memory: rows are sampled by the smallest id hash and read in blocks."""
    stored = LiveRows(index)
    documents_per_row = index.manifest.documents / max(1, index.manifest.rows)
    sample, paired = (stored.sample(max(1, round(rows * documents_per_row))) for rows in (SAMPLE, _PAIRED_ROWS))
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
        max_length=None if index.encoder.max_length == UNLIMITED else index.encoder.max_length,
        offset=_offset(index.transform),
    )


def _cloud(sample: RowView, paired: RowView, pairs: tuple[RowIds, RowIds], transform: Transform) -> VectorStatistics:
    def vectors(rows: RowView) -> Callable[[], Iterator[Vectors]]:
        return lambda: (transform.transform(block, "document") for block in _blocks(rows))

    return measure_cloud(vectors(sample), _cosines(np.concatenate(list(vectors(paired)())), *pairs))


def _blocks(sample: RowView) -> Iterator[npt.NDArray[np.floating]]:
    for part in range(len(sample.folders)):
        embeddings = sample.embeddings(part)
        for start in range(0, len(embeddings), BLOCK_ROWS):
            yield embeddings[start : start + BLOCK_ROWS]


def _pairs(rows: int) -> tuple[RowIds, RowIds]:
    """Return pairs of different rows: all of at most `PAIRS`, else a random sample with a fixed seed."""
    if rows * (rows - 1) // 2 <= PAIRS:
        above, right = np.nonzero(np.triu(np.ones((rows, rows), bool), 1))
        return above, right
    draw = np.random.default_rng(0)
    first: RowIds = draw.integers(0, rows, PAIRS)
    second: RowIds = (first + draw.integers(1, rows, PAIRS)) % rows
    return first, second


def _cosines(vectors: Vectors, first: RowIds, second: RowIds) -> Float64Array:
    parts = np.array_split(np.arange(len(first)), max(1, len(first) // BLOCK_ROWS))
    return np.concatenate(
        [np.einsum("nk,nk->n", vectors[first[part]], vectors[second[part]], dtype=np.float64) for part in parts]
    )


def _offset(transform: Transform) -> float | None:
    if not isinstance(transform, Whitening) or np.array_equal(transform.mean, transform.query_mean):
        return None
    spread = np.sqrt(transform.spectrum.sum())
    return float(np.linalg.norm(transform.query_mean - transform.mean) / spread)
