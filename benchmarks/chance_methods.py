"""Ways to foretell how many documents score as high as one by chance. `LEVELS` are the counts that are looked at.

Each way turns the scores of a question into values that can be compared between questions, the higher the rarer, and
says which value so many documents reach by chance. Two kinds:

- From a null: query-like texts drawn from the corpus (`Null`), whose values are pooled. The document a text was drawn
  from never counts. Which of its neighbours are chance and which are kin, nobody says: the ways differ in what they
  leave out.
- From the question alone: a curve through its own highest scores, as FASTA does for sequences (Pearson, Empirical
  statistical estimates for sequence similarity searches, 1998), carried on to where few documents are.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from indexer.arrays import Float64Array, Mask, Scores

LEVELS = (100.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1)
"""Documents a question, by chance."""
NEAR_DUPLICATE = 0.8
_NEAREST = 10
_CROWDED = 0.25
_QUANTILES = (0.1, 0.01)
_TAIL = 0.04
_SHARES = (0.01, 0.02, 0.03, 0.04, 0.06, 0.08)
Values = npt.NDArray[np.floating]
Unit = Callable[[Scores], Values]
Tail = Callable[[Scores, Scores], Values]  # documents above each of the first, by a curve through the second


@dataclass(frozen=True)
class Null:
    """n query-like texts against a corpus: `scores` (n, documents), and which documents count, `others`.

    `kinship` (n, documents) are the scores of the documents that the texts were drawn from.
    """

    scores: Scores
    others: Mask
    kinship: Scores

    def filled(self) -> Scores:
        """The scores; what does not count has the mean of what does, so that it moves neither mean nor tail."""
        mean = self.scores.mean(axis=1, keepdims=True, where=self.others)
        return np.where(self.others, self.scores, mean)


@dataclass(frozen=True)
class Fitted:
    """Values of scores, and the least value that as many documents as each of `LEVELS` reach by chance."""

    unit: Unit
    thresholds: Float64Array

    def found(self, scores: Scores) -> list[Mask]:
        """For each level the documents foretold to be that few, (questions, documents)."""
        values = self.unit(scores)
        return [values >= threshold for threshold in self.thresholds]


Method = Callable[[Null], Fitted]


def plain(scores: Scores) -> Values:
    """The scores as they are."""
    return scores


def standardised(scores: Scores) -> Values:
    """Less the question's own mean over all documents, in its own standard deviations."""
    mean, deviation = scores.mean(axis=1, keepdims=True), scores.std(axis=1, keepdims=True)
    return np.asarray((scores - mean) / np.maximum(deviation, 1e-9))


def between_quantiles(scores: Scores) -> Values:
    """0 at the score that the highest 10 % of the documents reach, 1 at that of the highest 1 %."""
    ranks = [int(share * scores.shape[1]) for share in _QUANTILES]
    ordered = -np.partition(-scores, ranks, axis=1)
    low, high = (ordered[:, rank : rank + 1] for rank in ranks)
    return np.asarray((scores - low) / np.maximum(high - low, 1e-9))


def pooled(unit: Unit, leave_out: Callable[[Null], Null] = lambda null: null) -> Method:
    """The values of a null taken together: the mean number of documents a text."""

    def fit(null: Null) -> Fitted:
        kept = leave_out(null)
        return Fitted(unit, thresholds_of(unit(kept.filled()), kept.others))

    return fit


def any_document(null: Null) -> Fitted:
    """From the share of texts with no document so high, were they Poisson: a family counts as one."""
    highest = np.where(null.others, standardised(null.filled()), -np.inf).max(axis=1)
    return Fitted(standardised, np.quantile(highest, np.exp(-np.array(LEVELS))))


def both_ways(null: Null) -> Fitted:
    """Standardised by question, then by document over the query-like texts: no document is near to everything."""
    values = np.where(null.others, standardised(null.filled()), np.nan)
    mean, deviation = np.nanmean(values, axis=0), np.maximum(np.nanstd(values, axis=0), 1e-9)

    def unit(scores: Scores) -> Values:
        return np.asarray((standardised(scores) - mean) / deviation)

    return Fitted(unit, thresholds_of(unit(null.filled()), null.others))


def by_question(tail: Tail) -> Method:
    """A curve through all of the question's own scores."""
    return lambda null: Fitted(lambda scores: -tail(scores, scores), -np.array(LEVELS))


def held_out(tail: Tail, null: Null) -> Float64Array:
    """Documents found for one foretold, by level, where the curve comes from one half of them and is asked of the rest.

    No judgement is needed: whatever the other documents are, these are of the same kind.
    """
    order = np.random.default_rng(0).permutation(null.scores.shape[1])
    known, rest = np.array_split(order, 2)
    scores = null.filled()
    counts = tail(scores[:, rest], scores[:, known])
    return np.array([(counts <= level).sum() / (len(counts) * level) for level in LEVELS])


def normal_tail(scores: Scores, known: Scores) -> Values:
    """As if the scores of a question were normal."""
    from scipy.special import ndtr

    mean, deviation = known.mean(axis=1, keepdims=True), known.std(axis=1, keepdims=True)
    return np.asarray(scores.shape[1] * ndtr(-((scores - mean) / deviation).astype(np.float64)))


def exponential_tail(scores: Scores, known: Scores) -> Values:
    """The highest 4 % fall exponentially."""
    highest = _Highest.of(known)
    return highest.counts(scores, np.exp(-(scores - highest.start) / highest.mean))


def power_tail(scores: Scores, known: Scores) -> Values:
    """The highest 4 % fall as a power of 1 - score, which ends at 1."""
    return exponential_tail(_depth(scores), _depth(known))


def pareto_tail(share: float) -> Tail:
    """The highest so many are generalised Pareto, by probability-weighted moments (Hosking and Wallis, 1987)."""

    def counts(scores: Scores, known: Scores) -> Values:
        highest = _Highest.of(known, share)
        return highest.pareto_counts(scores, highest.shape)

    return counts


def pareto_of_one_shape(null: Null) -> Fitted:
    """4 %, and one shape for all questions, the mean over the texts of the null: only the scale is their own."""
    shape = _Highest.of(null.filled()).shape.mean(keepdims=True)
    return by_question(lambda scores, known: _Highest.of(known).pareto_counts(scores, shape))(null)


@dataclass(frozen=True)
class _Highest:
    """The highest scores of n questions: they start at `start` (n, 1), `above` (n, count) is by how much, falling."""

    start: Scores
    above: Float64Array
    documents: int

    @classmethod
    def of(cls, scores: Scores, share: float = _TAIL) -> "_Highest":
        """The highest `share` of each row of scores (n, documents)."""
        count = max(int(share * scores.shape[1]), 3)
        highest = -np.sort(np.partition(-scores, count, axis=1)[:, : count + 1], axis=1)
        start = highest[:, count:]
        return cls(start, (highest[:, :count] - start).astype(np.float64), scores.shape[1])

    @property
    def mean(self) -> Float64Array:
        """Of how much they exceed the start, (n, 1)."""
        return np.asarray(self.above.mean(axis=1, keepdims=True))

    @property
    def shape(self) -> Float64Array:
        """Of their generalised Pareto distribution, (n, 1)."""
        weighted = (self.above * np.linspace(0, 1, self.above.shape[1])).mean(axis=1, keepdims=True)
        return np.asarray(2 - self.mean / (self.mean - 2 * weighted))

    def pareto_counts(self, scores: Scores, shape: Float64Array) -> Values:
        """Documents above each score, by a shape that may be another's."""
        above = np.maximum(scores - self.start, 0)
        base = np.maximum(1 + shape / (1 - shape) * above / self.mean, 0)
        with np.errstate(divide="ignore", over="ignore"):
            return self.counts(scores, base ** (-1 / shape))

    def counts(self, scores: Scores, falling: Values) -> Values:
        """`falling` from 1 at the start of the tail, as documents; below the start all of them."""
        share = self.above.shape[1] / self.documents
        found: Values = np.where(scores >= self.start, share * scores.shape[1] * falling, scores.shape[1])
        return found


def _depth(scores: Scores) -> Scores:
    return np.asarray(-np.log(np.maximum(1 - scores.astype(np.float64), 1e-6)), np.float32)


def thresholds_of(values: Values, others: Mask) -> Float64Array:
    """The value of the document that brings the mean over n texts to each level; `others` says which count, as values
    (n, documents)."""
    wanted = [max(1, int(level * len(values))) for level in LEVELS]
    flat = values[others]
    wanted = [min(number, len(flat)) for number in wanted]
    highest = -np.sort(-np.partition(flat, -wanted[0])[-wanted[0] :])
    return np.array([highest[number - 1] for number in wanted], np.float64)


def without_near_duplicates(null: Null) -> Null:
    """Leave out what scores 0.8 or more with the document that the text is from."""
    return replace(null, others=null.others & (null.kinship < NEAR_DUPLICATE))


def without_nearest(null: Null) -> Null:
    """Leave out the ten documents nearest to the one that the text is from."""
    apart = min(_NEAREST, null.kinship.shape[1] - 2)
    least = -np.partition(-np.where(null.others, null.kinship, -2), apart, axis=1)[:, apart : apart + 1]
    return replace(null, others=null.others & (null.kinship <= least))


def without_crowded(null: Null) -> Null:
    """Leave out the quarter of the texts that has the most documents above the level of 3."""
    values = standardised(null.filled())
    above = ((values >= thresholds_of(values, null.others)[LEVELS.index(3.0)]) & null.others).sum(axis=1)
    kept = np.argsort(above, kind="stable")[: max(1, int(len(above) * (1 - _CROWDED)))]
    return Null(null.scores[kept], null.others[kept], null.kinship[kept])


TITLES, PIECES = "titles", "pieces"
TAILS: Mapping[str, Tail] = MappingProxyType(
    {
        "normal tail": normal_tail,
        "exponential tail": exponential_tail,
        "power tail": power_tail,
        **{f"Pareto tail, highest {100 * share:.0f} %": pareto_tail(share) for share in _SHARES},
    }
)
METHODS: Mapping[str, tuple[str, Method]] = MappingProxyType(
    {
        "pooled": (TITLES, pooled(plain)),
        "pooled, near-duplicates apart": (TITLES, pooled(plain, without_near_duplicates)),
        "pooled, pieces": (PIECES, pooled(plain)),
        "standardised": (TITLES, pooled(standardised)),
        "standardised, near-duplicates apart": (TITLES, pooled(standardised, without_near_duplicates)),
        "standardised, 10 nearest apart": (TITLES, pooled(standardised, without_nearest)),
        "standardised, crowded texts apart": (TITLES, pooled(standardised, without_crowded)),
        "standardised, pieces": (PIECES, pooled(standardised)),
        "standardised, crowded pieces apart": (PIECES, pooled(standardised, without_crowded)),
        "any document so high": (TITLES, any_document),
        "standardised both ways": (TITLES, both_ways),
        "between quantiles": (TITLES, pooled(between_quantiles)),
        **{name: (TITLES, by_question(tail)) for name, tail in TAILS.items()},
        "Pareto tail, one shape": (TITLES, pareto_of_one_shape),
    }
)
"""Name -> query-like texts of the null, and the way. Tails make no use of the null, but for "one shape"."""
