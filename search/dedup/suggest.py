"""Suggestions for a threshold: for each, the number of pairs and dropped documents, and example pairs.

Pairs are of different documents or, if documents have several windows, of windows of different documents. Copies of a
vector count as pairs. An example shows one document for each vector, so no copies are listed.
"""

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from indexer.arrays import Float64Array, Int64Array, RowIds, Scores, Vectors
from indexer.corpus.document import Document, joined_text
from indexer.progress import Progress
from search.dedup.deduplicate import save_pairs
from search.dedup.distinct import Distinct, VectorCopies, is_one_to_one
from search.dedup.greedy import HELD_PAIR_BYTES, DedupDocuments, decide
from search.dedup.inputs import DedupInputs, open_inputs
from search.dedup.join.exact import ExactJoin
from search.dedup.pairs import Pairs, pair_scores
from search.dedup.pairs_file import PairsFile
from search.dedup.settings import JoinOptions, check_threshold, lowest_score
from search.index import Index

USUAL_THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.92, 0.95, 0.97, 0.99, 0.999)
"""Shown thresholds, from the floor up."""
FLOOR = 0.79  # below a threshold, to show pairs below it too
EXAMPLES = 3  # on either side of a threshold
_KEPT = 64  # candidates for examples between two thresholds, on either side
_EXCERPT = 160  # characters
_NEIGHBOURED = (0.1, 2 / 3)  # lowest and highest share of documents with a neighbour at the floor
_HIGHEST_FLOOR = 0.98
_PROBES, _BLOCK = 512, 4096  # documents


@dataclass(frozen=True)
class ExampleDocument:
    """A document of an example: its title and the start of its text or window, white space folded."""

    id: str
    text: str


@dataclass(frozen=True)
class Example:
    """Two documents and their score."""

    score: float
    first: ExampleDocument
    second: ExampleDocument


@dataclass(frozen=True)
class ThresholdCandidate:
    """A threshold, its counts, and the pairs nearest to it that reach it (`above`) or do not (`below`)."""

    threshold: float
    pairs: int
    dropped: int
    above: tuple[Example, ...]
    below: tuple[Example, ...]


@dataclass(frozen=True)
class Suggestion:
    """Candidates in ascending order of threshold."""

    documents: int
    windows: int | None  # number of windows; None: documents have one window each
    floor: float
    candidates: tuple[ThresholdCandidate, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types."""
        return asdict(self)


def suggest_thresholds(
    index: str | Path | Index,
    options: JoinOptions = JoinOptions(),  # noqa: B008 - frozen
    progress: Progress | None = None,
    floor: float | None = None,
) -> Suggestion:
    """Return the numbers of pairs and dropped documents of an index at the usual thresholds, with examples.

    `floor` is the lowest score of pairs, by default that of `choose_floor`. Raises NotAnIndexError, CorruptIndexError,
    StoreError, and ConfigError for a floor that is not a threshold.
    """
    if floor is not None:
        check_threshold(floor, "floor")
    with open_inputs(index, progress=progress) as inputs:
        lowest = choose_floor(inputs.vectors, inputs.distinct, inputs.document_of) if floor is None else floor
        thresholds = [threshold for threshold in USUAL_THRESHOLDS if threshold >= lowest]
        tally = PairTally(inputs.distinct, inputs.document_of, [lowest, *thresholds])
        path = inputs.folder / "pairs.parquet"
        save_pairs(inputs, _counted(inputs, lowest, options, tally), {"name": "exact"}, lowest, path)
        dropped = [
            _dropped(inputs, PairsFile(path, threshold, options.memory // 4), options) for threshold in thresholds
        ]
        return Suggestion(
            documents=inputs.index.manifest.documents,
            windows=None if is_one_to_one(inputs.document_of) else inputs.rows,
            floor=lowest,
            candidates=tuple(_candidates(inputs, thresholds, tally, dropped)),
        )


def _counted(inputs: DedupInputs, lowest: float, options: JoinOptions, tally: "PairTally") -> Iterator[Pairs]:
    """Yield and count the pairs of distinct vectors that score at least `lowest`."""
    tally.add_copies(inputs.vectors)
    join = ExactJoin(inputs.distinct_vectors, lowest_score(lowest), inputs.folder, options, progress=inputs.progress)
    for pairs in inputs.across_documents(join).within(np.arange(len(inputs.distinct.first))):
        tally.add(pairs)
        yield pairs


def _dropped(inputs: DedupInputs, source: PairsFile, options: JoinOptions) -> int:
    """Return the number of documents that the pairs of a file drop, with prefer "first"."""
    documents = np.arange(inputs.index.manifest.documents)
    no_texts = np.full(len(documents), -1)
    held = DedupDocuments(inputs.document_of, inputs.distinct.number_of, no_texts, documents, inputs.self_scores)
    decision = decide(held, source, drop_texts=False, pair_limit=max(1, options.memory // HELD_PAIR_BYTES))
    return int(np.count_nonzero(decision.kept_by >= 0))


def _nearest(pairs: Pairs, sign: int) -> Pairs:
    """Return the few lowest (sign 1) or highest (sign -1) pairs in order, ties by row."""
    return pairs.take(np.lexsort((pairs.right, pairs.left, sign * pairs.scores))[:_KEPT])


def _listed(pairs: Pairs) -> list[tuple[int, int, float]]:
    return list(zip(pairs.left.tolist(), pairs.right.tolist(), pairs.scores.tolist(), strict=True))


class PairTally:
    """Counts of pairs between `edges` (the floor, then the thresholds, ascending), and the pairs nearest to them."""

    def __init__(self, distinct: Distinct, document_of: RowIds, edges: list[float]) -> None:
        self._distinct, self._document_of = distinct, document_of
        self._edges: Scores = np.array([lowest_score(edge) for edge in edges], np.float32)
        self._counts: Int64Array = np.zeros(len(edges), np.int64)
        self._lowest, self._highest = ([Pairs.concatenate([])] * len(edges) for _ in range(2))
        self._copies = VectorCopies(distinct, document_of)

    def add_copies(self, vectors: Vectors) -> None:
        """Add the pairs of documents with equal vectors; `vectors` (rows, k) are those of all rows."""
        first, later, weights = self._copies.within()
        for start in range(0, len(first), _BLOCK):
            part = slice(start, start + _BLOCK)
            same = vectors[first[part]]
            self._add(Pairs(first[part], later[part], pair_scores(same, same)), weights[part])

    def add(self, pairs: Pairs) -> None:
        """Add pairs of distinct vectors of different documents."""
        low, high = np.minimum(pairs.left, pairs.right), np.maximum(pairs.left, pairs.right)
        rows = Pairs(self._distinct.first[low], self._distinct.first[high], pairs.scores)
        self._add(rows, self._copies.between(low, high))

    def pairs(self, edge: int) -> int:
        """Return the number of pairs that reach an edge."""
        return int(self._counts[edge:].sum())

    def above(self, edge: int) -> list[tuple[int, int, float]]:
        """Return the lowest pairs (row, row, score) between an edge and the next, in order."""
        return _listed(self._lowest[edge])

    def below(self, edge: int) -> list[tuple[int, int, float]]:
        """Return the highest pairs (row, row, score) between the previous edge and an edge, in order."""
        return _listed(self._highest[edge - 1])

    def _add(self, rows: Pairs, weights: RowIds) -> None:
        bins = np.searchsorted(self._edges, rows.scores, side="right") - 1
        np.add.at(self._counts, bins, weights)  # exact, unlike the floats of bincount
        apart = self._document_of[rows.left] != self._document_of[rows.right]  # equal if only copies are apart
        for number in np.unique(bins[apart]).tolist():
            fresh = rows.take(np.flatnonzero(apart & (bins == number)))
            for kept, sign in ((self._lowest, 1), (self._highest, -1)):
                kept[number] = _nearest(Pairs.concatenate([kept[number], fresh]), sign)


def _candidates(
    inputs: DedupInputs, thresholds: list[float], tally: PairTally, dropped: list[int]
) -> Iterator[ThresholdCandidate]:
    sides = [
        [nearest_pairs(pairs, inputs.document_of) for pairs in (tally.above(edge), tally.below(edge))]
        for edge in range(1, len(thresholds) + 1)
    ]
    rows = {row for pairs in itertools.chain.from_iterable(sides) for pair in pairs for row in pair[:2]}
    texts = _texts(inputs, sorted(rows))
    for edge, (threshold, count) in enumerate(zip(thresholds, dropped, strict=True), start=1):
        above, below = (
            tuple(Example(score, texts[left], texts[right]) for left, right, score in pairs)
            for pairs in sides[edge - 1]
        )
        yield ThresholdCandidate(threshold, tally.pairs(edge), count, above, below)


def nearest_pairs(pairs: Iterable[tuple[int, int, float]], document_of: RowIds) -> list[tuple[int, int, float]]:
    """Return the first few pairs without common documents, followed by other pairs if there are too few."""
    fresh: list[tuple[int, int, float]] = []
    others: list[tuple[int, int, float]] = []
    seen: set[int] = set()
    for pair in pairs:
        documents = set(document_of[[*pair[:2]]].tolist())
        (others if seen & documents else fresh).append(pair)
        seen |= documents
        if len(fresh) == EXAMPLES:
            break
    return [*fresh, *others][:EXAMPLES]


def _texts(inputs: DedupInputs, rows: list[int]) -> dict[int, ExampleDocument]:
    index = inputs.index
    documents = index.documents.fetch(inputs.document_of[rows].tolist()) if rows else []
    if is_one_to_one(inputs.document_of):
        texts = [f"{document.title or ''} {document.text}" for document in documents]
    else:
        columns, spans = index.config.corpus.text, index.numbering.spans(np.array(rows, np.int64)).tolist()
        texts = [
            (f"{document.title or ''} … " if start else "") + joined_text(document, columns)[start:end]
            for document, (start, end) in zip(documents, spans, strict=True)
        ]
    return {row: _excerpt(document, text) for row, document, text in zip(rows, documents, texts, strict=True)}


def _excerpt(document: Document, text: str) -> ExampleDocument:
    words = " ".join(text.split())
    return ExampleDocument(document.id, words if len(words) <= _EXCERPT else f"{words[: _EXCERPT - 1]}…")


def choose_floor(vectors: Vectors, distinct: Distinct, document_of: RowIds) -> float:
    """Return the lowest score of pairs: `FLOOR`, or the nearest score that fits the space better.

    `vectors` (rows, k) and `document_of` (rows,) are of all rows. In a sample, at least a tenth and at most two thirds
    of the documents have a neighbour above the floor. So the floor is lower after strong whitening, where few pairs
    score high, and higher in a space where all documents are similar.
    """
    rows = distinct.first
    if len(rows) < 2:
        return FLOOR
    probes = np.sort(np.random.default_rng(0).choice(len(rows), min(_PROBES, len(rows)), replace=False))
    nearest = _nearest_scores(vectors, rows, rows[probes], document_of)
    least, most = (float(np.quantile(nearest, 1 - share)) for share in reversed(_NEIGHBOURED))
    lowered = min(FLOOR, math.floor(100 * most) / 100)
    return round(min(_HIGHEST_FLOOR, max(lowered, math.ceil(100 * least) / 100)), 2)


def _nearest_scores(vectors: Vectors, rows: RowIds, probes: RowIds, document_of: RowIds) -> Float64Array:
    """Return the highest score of each row of `probes` with a row of another document, (probes,); at least -0.99."""
    left = vectors[probes].astype(np.float64)
    nearest: Float64Array = np.full(len(probes), -0.99)
    for start in range(0, len(rows), _BLOCK):
        block = rows[start : start + _BLOCK]
        scores = left @ vectors[block].astype(np.float64).T
        scores[document_of[probes][:, None] == document_of[block]] = -1
        np.maximum(nearest, scores.max(axis=1), out=nearest)
    return nearest
