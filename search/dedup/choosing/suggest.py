"""Choosing a threshold: what chance would give, what is there, and pairs to read, for each of some candidates.

Nothing here decides. The numbers say where pairs become too many to be chance; whether two documents that are alike
count as duplicates is for a reader of the examples to say.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator
from pathlib import Path

from indexer.corpus.document import Document
from indexer.errors import EvaluationError
from indexer.pipeline.progress import Progress
from search.dedup.choosing.background import Background, measure_background
from search.dedup.choosing.floor import CANDIDATES, choose_floor
from search.dedup.choosing.labelled import measure_labelled, read_labelled
from search.dedup.choosing.suggestion import Candidate, Chance, Example, Side, Suggestion
from search.dedup.choosing.survey import PAIRS_HELD, STEPS, Survey, survey_pairs
from search.dedup.deciding.distinct import Distinct
from search.dedup.joining.join import VectorJoin
from search.dedup.material import open_material
from search.dedup.pairs import PairSource, Vectors
from search.dedup.settings import JoinOptions, check_threshold, lowest_score
from search.opened import OpenIndex
from search.printable import counted

EXAMPLES = 3  # on either side of a candidate
FEW = 0.01  # of the pairs
_EXCERPT = 160  # characters
_SURPRISING = 2  # times as many pairs as foretold
_SURPRISING_PAIRS = 20

Found = tuple[int, int, float]
"""Row, later row and score of a pair."""


def suggest_thresholds(
    index: str | Path,
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
    with open_material(index, progress=progress) as material:
        pairs = read_labelled(labelled, material.opened) if labelled else None
        vectors, distinct = material.vectors, material.distinct
        lowest = choose_floor(vectors, distinct, seed) if floor is None else floor
        join = VectorJoin(
            material.distinct_vectors, lowest_score(lowest), material.folder, options, progress=material.progress
        )
        found = suggest(material.opened, vectors, distinct, join, lowest, seed)
        return dataclasses.replace(found, labelled=measure_labelled(pairs, vectors, seed) if pairs else None)


def suggest(
    opened: OpenIndex,
    vectors: Vectors,
    distinct: Distinct,
    source: PairSource,
    floor: float,
    seed: int = 0,
    pairs_held: int = PAIRS_HELD,
) -> Suggestion:
    """What there is to know before a threshold is chosen.

    `vectors` (rows, k) are those of all rows, one a document; `source` has the pairs of distinct ones that score at
    least `floor`, and is asked once. Equal input gives an equal result, whatever the order of pairs. How many
    documents would be dropped is exact while there are at most `pairs_held` pairs. Raises ConfigError for a floor
    that is no threshold.
    """
    check_threshold(floor, "floor")
    documents = len(distinct.number_of)
    survey = survey_pairs(vectors, distinct, source, floor, pairs_held)
    background, why_none = _background(vectors, survey, documents, floor, seed)
    return Suggestion(
        documents=documents,
        floor=floor,
        background=background,
        sentences=_in_words(background, survey, floor) if background else (why_none,),
        candidates=_candidates(opened, background, survey, floor),
    )


def _background(
    vectors: Vectors, survey: Survey, documents: int, floor: float, seed: int
) -> tuple[Background | None, str]:
    try:
        return measure_background(vectors, survey.unlike(floor), documents, floor, seed), ""
    except EvaluationError as error:
        return None, str(error)


def _candidates(
    opened: OpenIndex, background: Background | None, survey: Survey, floor: float
) -> tuple[Candidate, ...]:
    thresholds = {threshold for threshold in CANDIDATES if threshold >= floor}
    if background:
        suggested = (background.lowest(), _mostly_real(background, survey, floor))
        thresholds |= {threshold for threshold in suggested if threshold and threshold >= floor}
    chosen = [
        (threshold, *_examples(survey, threshold, before, after))
        for before, threshold, after in _with_neighbours(sorted(thresholds))
    ]
    texts = _sides(opened, {row for _, above, below in chosen for pair in (*above, *below) for row in pair[:2]})
    return tuple(
        Candidate(
            threshold,
            _chance(background, threshold) if background else None,
            survey.pairs(threshold),
            *survey.dropped(threshold),
            above=tuple(Example(score, texts[first], texts[second]) for first, second, score in above),
            below=tuple(Example(score, texts[first], texts[second]) for first, second, score in below),
        )
        for threshold, above, below in chosen
    )


def _chance(background: Background, threshold: float) -> Chance:
    low, high = background.interval(threshold) or (None, None)
    return Chance(background.expected(threshold), low, high)


def _mostly_real(background: Background, survey: Survey, floor: float) -> float | None:
    """The lowest threshold at which chance explains at most `FEW` of the pairs."""
    steps = range(math.ceil(STEPS * floor), STEPS)
    return next((step / STEPS for step in steps if _explained(background, survey, step / STEPS) <= FEW), None)


def _explained(background: Background, survey: Survey, threshold: float) -> float:
    pairs = survey.pairs(threshold)
    return background.expected(threshold) / pairs if pairs else math.inf


def _in_words(background: Background, survey: Survey, floor: float) -> tuple[str, ...]:
    one, real = background.lowest(), _mostly_real(background, survey, floor)
    at = max(one, floor)
    found = [
        f"At {one:g} expect fewer than one unrelated pair in this corpus: an estimate, which takes unrelated pairs to "
        f"be like random ones once documents that score {floor:g} or more are set aside.",
        f"At {at:g} or above {_are(survey.pairs(at))}.",
    ]
    if real is not None:
        found.append(
            f"At {real:g} chance explains {_explained(background, survey, real):.2%} of "
            f"{counted(survey.pairs(real), 'pair', 'pairs')}."
        )
    elif survey.pairs(floor):
        share = min(1.0, _explained(background, survey, floor))
        found.append(
            f"At {floor:g} chance explains about {share:.0%} of {counted(survey.pairs(floor), 'pair', 'pairs')}, and "
            f"at no threshold above it less than {FEW:.0%}: there are few near-duplicates, if any."
        )
    check = background.check
    if check:
        found.append(
            f"Checked among {background.pairs:,} random pairs: {check.found:,} score {check.start:.2f} to "
            f"{check.end:.2f}, where lower scores foretell {check.foretold:,.0f}."
        )
    low = (background.interval(floor) or (0.0,))[0]
    too_few = survey.pairs(floor) < low - 3 * math.sqrt(low)
    if too_few or (check and check.found > max(_SURPRISING * check.foretold, _SURPRISING_PAIRS)):
        found.append(
            f"So the estimate is too high for use: many documents are related in ways that score less than {floor:g}. "
            "Ask again with a lower floor."
        )
    return tuple(found)


def _are(pairs: int) -> str:
    return f"there {'is' if pairs == 1 else 'are'} {counted(pairs, 'pair', 'pairs')}"


def _with_neighbours(thresholds: list[float]) -> Iterator[tuple[float, float, float]]:
    """Each threshold with the one before and the one after it."""
    yield from zip([-math.inf, *thresholds], thresholds, [*thresholds[1:], math.inf], strict=False)


def _examples(survey: Survey, threshold: float, before: float, after: float) -> tuple[list[Found], list[Found]]:
    """Pairs just above and just below a threshold. Those beyond the next candidates are no examples for this one."""
    above = itertools.takewhile(lambda pair: pair[2] < after, survey.above(threshold))
    below = itertools.takewhile(lambda pair: pair[2] >= before, survey.below(threshold))
    return _nearest(above), _nearest(below)


def _nearest(pairs: Iterable[Found]) -> list[Found]:
    """The first few pairs of which no two share a document; should these be too few, others after them."""
    fresh: list[Found] = []
    others: list[Found] = []
    seen: set[int] = set()
    for pair in pairs:
        (others if seen & {*pair[:2]} else fresh).append(pair)
        seen.update(pair[:2])
        if len(fresh) == EXAMPLES:
            break
    return [*fresh, *others][:EXAMPLES]


def _sides(opened: OpenIndex, rows: set[int]) -> dict[int, Side]:
    ordered = sorted(rows)
    return {row: _side(document) for row, document in zip(ordered, opened.documents.fetch(ordered), strict=True)}


def _side(document: Document) -> Side:
    text = " ".join(f"{document.title or ''} {document.text}".split())
    return Side(document.id, text if len(text) <= _EXCERPT else f"{text[: _EXCERPT - 1]}…")
