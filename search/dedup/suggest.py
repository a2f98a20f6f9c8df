"""Suggestions for a threshold: for each, the number of pairs and dropped documents, and example pairs.

Pairs are of different documents or, if documents have several windows, of windows of different documents. Copies of a
vector count as pairs. An example shows one document for each vector, so no copies are listed.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from indexer.arrays import Float64Array, Int64Array, RowIds, Scores, Vectors
from indexer.corpus.document import joined_text
from indexer.progress import Progress
from indexer.typed_arguments import checked
from search.dedup.deduplication import save_pairs
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
RowPair = tuple[int, int, float]  # two rows and their score


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


@checked
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
        candidates = (
            ThresholdCandidate(
                threshold,
                tally.pairs(edge),
                _dropped(inputs, PairsFile(path, threshold, options.memory // 4), options),
                _examples(inputs, tally.above(edge)),
                _examples(inputs, tally.below(edge)),
            )
            for edge, threshold in enumerate(thresholds, start=1)
        )
        windows = None if is_one_to_one(inputs.document_of) else inputs.rows
        return Suggestion(inputs.index.manifest.documents, windows, lowest, tuple(candidates))


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

    def above(self, edge: int) -> list[RowPair]:
        """Return the lowest pairs between an edge and the next, in order."""
        return self._lowest[edge].to_list()

    def below(self, edge: int) -> list[RowPair]:
        """Return the highest pairs between the previous edge and an edge, in order."""
        return self._highest[edge - 1].to_list()

    def _add(self, rows: Pairs, weights: RowIds) -> None:
        bins = np.searchsorted(self._edges, rows.scores, side="right") - 1
        np.add.at(self._counts, bins, weights)  # exact, unlike the floats of bincount
        apart = self._document_of[rows.left] != self._document_of[rows.right]  # equal if only copies are apart
        for number in np.unique(bins[apart]).tolist():
            fresh = rows.take(np.flatnonzero(apart & (bins == number)))
            for kept, sign in ((self._lowest, 1), (self._highest, -1)):
                every = Pairs.concatenate([kept[number], fresh])
                kept[number] = every.take(np.lexsort((every.right, every.left, sign * every.scores))[:_KEPT])


def _examples(inputs: DedupInputs, pairs: list[RowPair]) -> tuple[Example, ...]:
    shown = nearest_pairs(pairs, inputs.document_of)
    texts = _texts(inputs, sorted({row for pair in shown for row in pair[:2]}))
    return tuple(Example(score, texts[left], texts[right]) for left, right, score in shown)


def nearest_pairs(pairs: Iterable[RowPair], document_of: RowIds) -> list[RowPair]:
    """Return the first few pairs without common documents, followed by other pairs if there are too few."""
    fresh: list[RowPair] = []
    others: list[RowPair] = []
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
    folded = (" ".join(text.split()) for text in texts)
    shown = (text if len(text) <= _EXCERPT else f"{text[: _EXCERPT - 1]}…" for text in folded)
    return {row: ExampleDocument(document.id, text) for row, document, text in zip(rows, documents, shown, strict=True)}


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
