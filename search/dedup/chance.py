"""How many pairs of a corpus would score so high by chance: the tail of the scores of random pairs, carried on.

A chance pair is one that scores high although nothing sets its two documents apart from any other two: they are
unrelated, or merely of one topic. How many such pairs reach T cannot be counted, as real near-duplicates are among
random pairs too, and the further up the more so. So it is estimated, in three steps:

1. Of documents that score `ceiling` or more only the first stays; all pairs of some of those left, drawn at random,
   are scored. No near-duplicate is then left above the ceiling, and few are below it.
2. Of these pairs the highest, some thousand, are described by: the number at or above t is proportional to
   (1 - t) ** exponent. It is the generalised Pareto distribution whose endpoint is 1, the highest score there is; as
   2 (1 - t) is the squared distance of two unit vectors, it is also how neighbours thin out about a point
   (Grassberger and Procaccia, Measuring the strangeness of strange attractors, 1983: exponent = dimension / 2). The
   exponent is the maximum of the likelihood given that scores end at the ceiling.
3. The curve is carried on above the ceiling, for as many pairs as the whole corpus has.

It is an estimate that takes unrelated pairs to be like random ones, and their tail to go on above the ceiling as it
does below. Documents that are related in ways that score less than the ceiling count as unrelated: the estimate then
comes out too high, which is the safe side. Its interval says what another draw of documents could have given, and
nothing about these assumptions; `check` does: the same curve from the lower part of the tail foretells the upper part,
and where there are many times more, the estimate is of no use. Where kinship is a matter of degree, what is set aside
decides what counts as unrelated: at 0.85, ceilings of 0.6 and 0.79 give 1.4 and 405 pairs for Debian's package
descriptions, which come in families of all degrees (141,286 pairs are there).

What it was measured on, with all-MiniLM-L6-v2 and a ceiling of 0.79. SciFact, abstracts without near-duplicates: 54,
13 and 1.8 pairs foretold at 0.8, 0.85 and 0.9, and 75, 12 and 0 there, each two publications on one topic.
With 1,000 near-duplicates planted above the ceiling the tail stays the same to the last digit. One half of SciFact
foretells 13 pairs at 0.8 in the other, which has 22. Between Debian's package descriptions and SciFact, two corpora
that have nothing to do with each other, 0.3 pairs at 0.8; there are 4, each of one and the same program.

The floor from which pairs are looked for, when nobody said, follows from a look at a few hundred documents against all:
low enough to see where near-duplicates begin. It must be cheap, and need not be exact.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from indexer.arrays import Float64Array, Int64Array, RowIds, Vectors
from indexer.errors import EvaluationError
from search.dedup.distinct import Distinct

Counts = Int64Array  # (_BINS,)
USUAL_THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.92, 0.95, 0.97, 0.99, 0.999)
"""Thresholds that are looked at, if they are not below the floor."""
FEWEST = 50  # documents
DRAWN = 8192  # documents, so 33.5 million pairs
_GROUPS = 20  # of the documents drawn: each is left out once
_T_QUANTILE = 2.093  # of Student's t with _GROUPS - 1 degrees of freedom, at 97.5 %
_BINS = 20_000  # from -1 to 1
# Measured on SciFact, which has no near-duplicates (75, 12 and 0 pairs at 0.8, 0.85 and 0.9): 54, 13 and 1.8 are
# foretold by this share of pairs, 26, 4.7 and 0.4 by the highest ten thousand, 0.9, 0.07 and 0.002 by a hundredth.
_TAIL_SHARE = 2e-4
_TAIL_PAIRS = (100, 2000)  # at least and at most
_LEAST_FALL = 2.0  # the curve falls by exp(2) within the tail, as a flat piece tells little of the exponent ...
_MOST_SHARE = 1e-2  # ... unless that took more than this share of all pairs
_LEAST_EXPONENT = 1.0  # below it pairs would be the more frequent, the higher they score

FLOOR = 0.79  # a little below a candidate, as pairs from below a candidate are shown too
_HIGHEST = 0.98
_PROBES = 512
_BLOCK = 4096
_NEIGHBOURED = 2 / 3  # of the documents may have a neighbour at the floor


@dataclass(frozen=True)
class Tail:
    """(1 - t) ** exponent, fitted to the `pairs` that score from `start` to below `ceiling`."""

    start: float
    ceiling: float
    exponent: float
    pairs: int

    @property
    def fall(self) -> float:
        """Logarithm of the factor by which the curve falls from start to ceiling."""
        return self.exponent * math.log((1 - self.start) / (1 - self.ceiling))

    def above(self, threshold: float) -> float:
        """Pairs of the sample at or above a threshold that is not below `start`, were there no ceiling."""
        at_start = self.pairs / -math.expm1(-self.fall)
        return float(at_start * ((1 - threshold) / (1 - self.start)) ** self.exponent)


@dataclass(frozen=True)
class Check:
    """Pairs of the sample from `start` to below `end`: how many the tail below foretells, and how many there are."""

    start: float
    end: float
    foretold: float
    found: int


@dataclass(frozen=True)
class ChancePairs:
    """What is known of chance pairs; all thresholds are at least `tail.start`."""

    seed: int
    documents: int  # that the expected numbers are for
    left: int  # documents after the first step
    drawn: int  # of those
    pairs: int  # of the drawn documents
    mean: float  # score of these pairs
    deviation: float
    tail: Tail
    resampled: tuple[tuple[Tail, int], ...]  # tail and number of pairs without each group of the documents
    check: Check | None

    def expected(self, threshold: float) -> float:
        """Chance pairs to be expected among all pairs of the corpus at or above the threshold."""
        return self.tail.above(threshold) * self._all_pairs() / self.pairs

    def interval(self, threshold: float) -> tuple[float, float] | None:
        """About 95 % for `expected`, by the jackknife over groups of documents; None where it has no value."""
        if len(self.resampled) < _GROUPS or threshold >= 1:
            return None
        without = np.log([tail.above(threshold) / pairs for tail, pairs in self.resampled])
        spread = math.sqrt((_GROUPS - 1) * float(np.var(without)))
        factor = math.exp(min(_T_QUANTILE * spread, 600))
        return self.expected(threshold) / factor, self.expected(threshold) * factor

    def lowest(self, below: float = 1.0) -> float:
        """The lowest threshold, in steps of 0.001, at which fewer than so many chance pairs are expected."""
        step = math.ceil(1000 * self.tail.start)
        while self.expected(step / 1000) >= below:
            step += 1
        return step / 1000

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return {
            "seed": self.seed,
            "documents": self.documents,
            "left": self.left,
            "drawn": self.drawn,
            "pairs": self.pairs,
            "mean": self.mean,
            "deviation": self.deviation,
            "tail": vars(self.tail).copy(),
            "check": vars(self.check).copy() if self.check else None,
        }

    def _all_pairs(self) -> int:
        return self.documents * (self.documents - 1) // 2


def estimate_chance_pairs(
    vectors: Vectors, rows: RowIds, documents: int, ceiling: float, seed: int = 0, drawn: int = DRAWN
) -> ChancePairs:
    """The background of a corpus of so many documents.

    `vectors` (n, k) of unit length; `rows` (m,) are those of which no two score `ceiling` or more, a number below 1.
    Raises EvaluationError where there can be none: the message says why.
    """
    if len(rows) < FEWEST:
        raise EvaluationError(
            f"Too few documents for a background: {len(rows):,} that score below {ceiling:g} with one another; at "
            f"least {FEWEST} are needed."
        )
    generator = np.random.default_rng(seed)
    some = np.sort(generator.choice(rows, min(drawn, len(rows)), replace=False))
    counts, without = _count(vectors[some], generator.permutation(len(some)))
    tail = fit_tail(counts, ceiling)
    if tail is None:
        raise EvaluationError(
            f"No background: pairs hardly get fewer towards {ceiling:g}, so many documents are related in ways that "
            "score a little less. Ask again with a lower floor."
        )
    resampled = [(fit_tail(remaining, ceiling), int(remaining.sum())) for remaining in without]
    mean, deviation = _moments(counts)
    return ChancePairs(
        seed=seed,
        documents=documents,
        left=len(rows),
        drawn=len(some),
        pairs=int(counts.sum()),
        mean=mean,
        deviation=deviation,
        tail=tail,
        resampled=tuple((other, pairs) for other, pairs in resampled if other),
        check=_checked(counts, tail),
    )


def fit_tail(counts: Counts, ceiling: float) -> Tail | None:
    """The tail of scores counted by `count_scores`; None if they thin out too little, or are too few to tell."""
    end = int(_bin(ceiling))
    from_top = np.cumsum(counts[:end][::-1])
    pairs = int(counts.sum())
    least, most = _TAIL_PAIRS
    wanted = min(most, max(least, round(_TAIL_SHARE * pairs)))
    tail = None
    while from_top[-1] >= wanted:
        tail = _fit(counts, end - 1 - int(np.searchsorted(from_top, wanted)), end)
        if tail.fall >= _LEAST_FALL or 2 * wanted > _MOST_SHARE * pairs:
            break
        wanted *= 2
    return tail if tail and tail.exponent >= _LEAST_EXPONENT else None


def _fit(counts: Counts, first: int, end: int) -> Tail:
    """The maximum of the likelihood, given the scores of the bins [first, end)."""
    inside = counts[first:end]
    start, ceiling = float(_score(first)), float(_score(end))
    # -log(1 - t) of a power of 1 - t is exponential; here it is cut off at `width`.
    middles = -np.log1p(-(_score(np.arange(first, end)) + 1 / _BINS)) + math.log1p(-start)
    width = math.log((1 - start) / (1 - ceiling))
    return Tail(start, ceiling, _rate(_mean(inside, middles), width), int(inside.sum()))


def count_scores(scores: Float64Array) -> Counts:
    """How many scores fall into each of `_BINS` equal bins from -1 to 1."""
    return np.bincount(_bin(scores.ravel()), minlength=_BINS)


def _count(vectors: Vectors, order: RowIds) -> tuple[Counts, list[Counts]]:
    """Scores of all pairs of rows, and of the pairs without each of the `_GROUPS` that `order` puts the rows in."""
    groups = np.array_split(order, _GROUPS)
    counts, of_group = np.zeros(_BINS, np.int64), np.zeros((_GROUPS, _BINS), np.int64)
    for one in range(_GROUPS):
        left = vectors[groups[one]].astype(np.float64)
        for other in range(one, _GROUPS):
            scores = left @ vectors[groups[other]].astype(np.float64).T
            found = count_scores(scores if one != other else scores[np.triu_indices(len(scores), 1)])
            counts += found
            of_group[[one, other] if one != other else one] += found
    return counts, [counts - found for found in of_group]


def _rate(mean: float, width: float) -> float:
    """Rate of an exponential distribution cut off at `width` that has this mean; 0 if it would not fall."""
    if not 0 < mean < width / 2:
        return 0.0
    low, high = 0.0, 1 / mean  # without the cut it would be 1 / mean, and the cut makes the mean smaller
    for _ in range(100):
        rate = (low + high) / 2
        found = 1 / rate - width / math.expm1(min(rate * width, 700))
        low, high = (rate, high) if found > mean else (low, rate)
    return low


def _checked(counts: Counts, tail: Tail) -> Check | None:
    """The upper half of the tail by what lies below it."""
    middle = (tail.start + tail.ceiling) / 2
    lower = fit_tail(counts, middle)
    if lower is None:
        return None
    found = int(counts[_bin(lower.ceiling) : _bin(tail.ceiling)].sum())
    return Check(lower.ceiling, tail.ceiling, lower.above(lower.ceiling) - lower.above(tail.ceiling), found)


def _moments(counts: Counts) -> tuple[float, float]:
    middles = _score(np.arange(_BINS)) + 1 / _BINS
    mean = _mean(counts, middles)
    return mean, math.sqrt(_mean(counts, (middles - mean) ** 2))


def _mean(counts: Counts, values: Float64Array) -> float:
    """Mean of values that occur so often. Not by BLAS, whose last digits depend on the number of threads."""
    return float(np.sum(counts * values) / counts.sum())


def _bin(scores: Any) -> Any:
    # A score of exactly a bin's edge, such as the ceiling, belongs to the bin above it, whatever its rounding.
    found = np.floor((np.asarray(scores, np.float64) + 1) * (_BINS / 2) + 1e-9).astype(np.int64)
    return np.clip(found, 0, _BINS - 1)


def _score(bins: Any) -> Any:
    return bins * (2 / _BINS) - 1


def choose_floor(vectors: Vectors, distinct: Distinct, seed: int = 0, document_of: RowIds | None = None) -> float:
    """The floor for `suggest_thresholds`: `FLOOR`, or what fits the space better. `vectors` (rows, k).

    `document_of` (rows,) is the document of each row, where some have several.

    Lower where fewer than one chance pair is expected already below it, as after strong whitening, where few random
    pairs score high. Higher where over two thirds of the documents have a neighbour that near, as in a space that was
    never centred, where all documents are alike: there would be too many pairs, and no background of the few left.
    """
    rows = distinct.first
    if len(rows) < FEWEST:
        return FLOOR
    probes = np.sort(np.random.default_rng(seed).choice(len(rows), min(_PROBES, len(rows)), replace=False))
    documents = rows if document_of is None else document_of[rows]
    nearest, counts = _probe(vectors, rows, probes, documents)
    crowded = math.ceil(100 * float(np.quantile(nearest, 1 - _NEIGHBOURED))) / 100
    return round(min(_HIGHEST, max(crowded, min(FLOOR, _one_by_chance(counts, len(rows)) - 0.01))), 2)


def _one_by_chance(counts: Counts, documents: int) -> float:
    """About the threshold at which one chance pair is expected, rounded down to a multiple of 0.05.

    Near-duplicates are among these pairs. They make it come out too high, and the floor then stays as it is.
    """
    tail = fit_tail(counts, FLOOR)
    if tail is None:
        return 1.0
    at_start = tail.above(tail.start) * documents * (documents - 1) / 2 / int(counts.sum())
    threshold = 1 - (1 - tail.start) * float(at_start ** (-1 / tail.exponent))
    return math.floor(threshold * 20) / 20


def _probe(vectors: Vectors, rows: RowIds, probes: RowIds, documents: RowIds) -> tuple[Float64Array, Counts]:
    """The highest score of each probe (a position in `rows`) with another document; and the scores of all, counted.

    `documents` (rows,) says whose each of `rows` is.
    """
    left = vectors[rows[probes]].astype(np.float64)
    nearest = np.full(len(probes), -1.0)
    counts = np.zeros(0, np.int64)
    for start in range(0, len(rows), _BLOCK):
        block = rows[start : start + _BLOCK]
        scores = left @ vectors[block].astype(np.float64).T
        scores[documents[probes][:, None] == documents[start : start + len(block)]] = np.nan  # a document with itself
        others = scores[~np.isnan(scores)]
        counts = count_scores(others) if not len(counts) else counts + count_scores(others)
        np.fmax(nearest, np.fmax.reduce(scores, axis=1), out=nearest)
    return nearest, counts
