"""Thresholds to choose from, each with what chance would give, what is there, and pairs to read.

Nothing here decides. The numbers say where pairs become too many to be chance; whether two documents that are alike
count as duplicates is for a reader of the examples to say.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from indexer.arrays import RowIds, Vectors
from indexer.corpus.document import Document, joined_text
from indexer.errors import EvaluationError
from indexer.progress import Progress
from search.dedup.chance import USUAL_THRESHOLDS, ChancePairs, choose_floor, estimate_chance_pairs
from search.dedup.distinct import one_of_each
from search.dedup.inputs import open_inputs
from search.dedup.join import ExactJoin
from search.dedup.labelled import LabelledReport, measure_labelled, read_labelled
from search.dedup.pair_counts import STEPS, PairCounts, count_pairs
from search.dedup.settings import JoinOptions, check_threshold, lowest_score
from search.index import Index
from search.text import counted

EXAMPLES = 3  # on either side of a candidate
FEW = 0.01  # of the pairs
_EXCERPT = 160  # characters
_SURPRISING = 2  # times as many pairs as foretold
_SURPRISING_PAIRS = 20

Found = tuple[int, int, float]
"""Row, later row and score of a pair."""


@dataclass(frozen=True)
class ExampleDocument:
    """A document of an example: its title and the first words of it or its window, white space folded."""

    id: str
    text: str


@dataclass(frozen=True)
class Example:
    """Two documents and their score."""

    score: float
    first: ExampleDocument
    second: ExampleDocument

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return {"score": self.score, "first": vars(self.first).copy(), "second": vars(self.second).copy()}


@dataclass(frozen=True)
class Chance:
    """Pairs that chance would give; the ends of the interval are None where it has no value."""

    expected: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class ThresholdCandidate:
    """A threshold. `above` are the pairs nearest to it that reach it, `below` those that do not."""

    threshold: float
    chance: Chance | None  # None without a background
    pairs: int
    dropped: int
    dropped_exactly: bool  # else at most so many
    above: tuple[Example, ...]
    below: tuple[Example, ...]

    @property
    def by_chance(self) -> float | None:
        """Share of the pairs that chance explains, at most 1; None without a background or pairs."""
        return min(1.0, self.chance.expected / self.pairs) if self.chance and self.pairs else None

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return {
            "threshold": self.threshold,
            "chance": vars(self.chance).copy() if self.chance else None,
            "pairs": self.pairs,
            "by_chance": self.by_chance,
            "dropped": self.dropped,
            "dropped_exactly": self.dropped_exactly,
            "above": [example.to_dict() for example in self.above],
            "below": [example.to_dict() for example in self.below],
        }


@dataclass(frozen=True)
class Suggestion:
    """Candidates in ascending order, in words what the background says, and what labelled pairs say if there are."""

    documents: int
    windows: int | None  # pairs are of windows; None: of documents
    floor: float
    background: ChancePairs | None
    sentences: tuple[str, ...]
    candidates: tuple[ThresholdCandidate, ...]
    labelled: LabelledReport | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return {
            "documents": self.documents,
            "windows": self.windows,
            "floor": self.floor,
            "background": self.background.to_dict() if self.background else None,
            "sentences": list(self.sentences),
            "candidates": [candidate.to_dict() for candidate in self.candidates],
            "labelled": self.labelled.to_dict() if self.labelled else None,
        }


def suggest_thresholds(
    index: str | Path | Index,
    labelled: Path | None = None,
    options: JoinOptions = JoinOptions(),  # noqa: B008 - frozen
    progress: Progress | None = None,
    floor: float | None = None,
    seed: int = 0,
) -> Suggestion:
    """What there is to know of an index before a threshold is chosen; `labelled` is a file of labelled pairs.

    Pairs are looked for from `floor` up, by default from where they begin to be of interest (`choose_floor`). Raises
    NotAnIndexError, CorruptIndexError, StoreError, ConfigError for a floor that is no threshold, and EvaluationError
    for a faulty file of pairs.
    """
    if floor is not None:
        check_threshold(floor, "floor")
    with open_inputs(index, progress=progress) as inputs:
        pairs = read_labelled(labelled, inputs.index) if labelled else None
        vectors, distinct = inputs.vectors, inputs.distinct
        document_of = inputs.document_of
        lowest = choose_floor(vectors, distinct, seed, document_of) if floor is None else floor
        join = ExactJoin(
            inputs.distinct_vectors, lowest_score(lowest), inputs.folder, options, progress=inputs.progress
        )
        source = inputs.across_documents(join)
        counts = count_pairs(vectors, distinct, source, lowest, document_of=document_of)
        found = suggest(inputs.index, vectors, counts, lowest, seed)
        measured = measure_labelled(pairs, vectors, seed, document_of) if pairs else None
        return dataclasses.replace(found, labelled=measured)


def suggest(index: Index, vectors: Vectors, counts: PairCounts, floor: float, seed: int = 0) -> Suggestion:
    """What there is to know before a threshold is chosen.

    `vectors` (rows, k) are those of all rows, and `counts` (`count_pairs`) the pairs of them that score at least
    `floor`. Equal input gives an equal result. Raises ConfigError for a floor that is no threshold.
    """
    check_threshold(floor, "floor")
    background, why_none = _background(vectors, counts, floor, seed)
    return Suggestion(
        documents=int(counts.document_of.max(initial=-1)) + 1,
        windows=len(vectors) if counts.windowed else None,
        floor=floor,
        background=background,
        sentences=_in_words(background, counts, floor) if background else (why_none,),
        candidates=_candidates(index, background, counts, floor),
    )


def _background(vectors: Vectors, counts: PairCounts, floor: float, seed: int) -> tuple[ChancePairs | None, str]:
    rows = counts.unlike(floor)
    if counts.windowed:  # windows of one document are related
        rows = one_of_each(rows, counts.document_of, seed)
    try:
        return estimate_chance_pairs(vectors, rows, len(vectors), floor, seed), ""
    except EvaluationError as error:
        return None, str(error)


def _candidates(
    index: Index, background: ChancePairs | None, counts: PairCounts, floor: float
) -> tuple[ThresholdCandidate, ...]:
    thresholds = {threshold for threshold in USUAL_THRESHOLDS if threshold >= floor}
    if background:
        suggested = (background.lowest(), _mostly_real(background, counts, floor))
        thresholds |= {threshold for threshold in suggested if threshold and threshold >= floor}
    chosen = [
        (threshold, *_examples(counts, threshold, before, after))
        for before, threshold, after in _with_neighbours(sorted(thresholds))
    ]
    texts = _sides(index, counts, {row for _, above, below in chosen for pair in (*above, *below) for row in pair[:2]})
    return tuple(
        ThresholdCandidate(
            threshold,
            _chance(background, threshold) if background else None,
            counts.pairs(threshold),
            *counts.dropped(threshold),
            above=tuple(Example(score, texts[first], texts[second]) for first, second, score in above),
            below=tuple(Example(score, texts[first], texts[second]) for first, second, score in below),
        )
        for threshold, above, below in chosen
    )


def _chance(background: ChancePairs, threshold: float) -> Chance:
    low, high = background.interval(threshold) or (None, None)
    return Chance(background.expected(threshold), low, high)


def _mostly_real(background: ChancePairs, counts: PairCounts, floor: float) -> float | None:
    """The lowest threshold at which chance explains at most `FEW` of the pairs."""
    steps = range(math.ceil(STEPS * floor), STEPS)
    return next((step / STEPS for step in steps if _explained(background, counts, step / STEPS) <= FEW), None)


def _explained(background: ChancePairs, counts: PairCounts, threshold: float) -> float:
    pairs = counts.pairs(threshold)
    return background.expected(threshold) / pairs if pairs else math.inf


def _in_words(background: ChancePairs, counts: PairCounts, floor: float) -> tuple[str, ...]:
    one, real = background.lowest(), _mostly_real(background, counts, floor)
    at, nouns = max(one, floor), _nouns(counts)
    found = [
        f"At {one:g} expect fewer than one unrelated {nouns[0]} in this corpus: an estimate, which takes unrelated "
        f"pairs to be like random ones once documents that score {floor:g} or more are set aside.",
        f"At {at:g} or above {_are(counts.pairs(at), nouns)}.",
    ]
    if real is not None:
        found.append(
            f"At {real:g} chance explains {_explained(background, counts, real):.2%} of "
            f"{counted(counts.pairs(real), *nouns)}."
        )
    elif counts.pairs(floor):
        share = min(1.0, _explained(background, counts, floor))
        found.append(
            f"At {floor:g} chance explains about {share:.0%} of {counted(counts.pairs(floor), *nouns)}, and "
            f"at no threshold above it less than {FEW:.0%}: there are few near-duplicates, if any."
        )
    check = background.check
    if check:
        found.append(
            f"Checked among {background.pairs:,} random pairs: {check.found:,} score {check.start:.2f} to "
            f"{check.end:.2f}, where lower scores foretell {check.foretold:,.0f}."
        )
    low = (background.interval(floor) or (0.0,))[0]
    too_few = counts.pairs(floor) < low - 3 * math.sqrt(low)
    if too_few or (check and check.found > max(_SURPRISING * check.foretold, _SURPRISING_PAIRS)):
        found.append(
            f"So the estimate is too high for use: many documents are related in ways that score less than {floor:g}. "
            "Ask again with a lower floor."
        )
    return tuple(found)


def _nouns(counts: PairCounts) -> tuple[str, str]:
    """What one pair is called, and several."""
    return ("pair of windows", "pairs of windows") if counts.windowed else ("pair", "pairs")


def _are(pairs: int, nouns: tuple[str, str]) -> str:
    return f"there {'is' if pairs == 1 else 'are'} {counted(pairs, *nouns)}"


def _with_neighbours(thresholds: list[float]) -> Iterator[tuple[float, float, float]]:
    """Each threshold with the one before and the one after it."""
    yield from zip([-math.inf, *thresholds], thresholds, [*thresholds[1:], math.inf], strict=False)


def _examples(counts: PairCounts, threshold: float, before: float, after: float) -> tuple[list[Found], list[Found]]:
    """Pairs just above and just below a threshold. Those beyond the next candidates are no examples for this one."""
    above = itertools.takewhile(lambda pair: pair[2] < after, counts.above(threshold))
    below = itertools.takewhile(lambda pair: pair[2] >= before, counts.below(threshold))
    return _nearest(above, counts.document_of), _nearest(below, counts.document_of)


def _nearest(pairs: Iterable[Found], document_of: RowIds | None = None) -> list[Found]:
    """The first few pairs of which no two share a document; should these be too few, others after them."""
    fresh: list[Found] = []
    others: list[Found] = []
    seen: set[int] = set()
    for pair in pairs:
        documents = {*pair[:2]} if document_of is None else set(document_of[[*pair[:2]]].tolist())
        (others if seen & documents else fresh).append(pair)
        seen |= documents
        if len(fresh) == EXAMPLES:
            break
    return [*fresh, *others][:EXAMPLES]


def _sides(index: Index, counts: PairCounts, rows: set[int]) -> dict[int, ExampleDocument]:
    ordered = sorted(rows)
    documents = index.documents.fetch(counts.document_of[ordered].tolist()) if ordered else []
    if not counts.windowed:
        return {
            row: _side(document, f"{document.title or ''} {document.text}")
            for row, document in zip(ordered, documents, strict=True)
        }
    columns, spans = index.config.corpus.text, index.numbering.spans(np.array(ordered, np.int64)).tolist()
    return {
        row: _side(document, _placed(document, start) + joined_text(document, columns)[start:end])
        for row, document, (start, end) in zip(ordered, documents, spans, strict=True)
    }


def _placed(document: Document, start: int) -> str:
    """What is shown before a window that does not begin its document."""
    return f"{document.title or ''} … " if start else ""


def _side(document: Document, text: str) -> ExampleDocument:
    words = " ".join(text.split())
    return ExampleDocument(document.id, words if len(words) <= _EXCERPT else f"{words[: _EXCERPT - 1]}…")
