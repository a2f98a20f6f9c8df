"""`diff_indexes`: which documents and answers differ between two indexes, or two generations of one.

Questions come from a file, or are drawn from documents that both indexes contain; a drawn question's own document is no
hit. If both indexes have one encoder, each question is encoded once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from pathlib import Path
from typing import Any

import numpy as np

from indexer.encoders.protocol import EncodeStats
from indexer.errors import EvaluationError, spelled
from indexer.progress import NoProgress, Progress
from indexer.recipe.config import changed_settings
from indexer.typed_arguments import checked
from search.engine import SearchEngine
from search.evaluation.bootstrap import draw_counts, mean_interval
from search.evaluation.diff.answers import TwoAnswers, examples, ranked_ids, reasons
from search.evaluation.diff.documents import DocumentChanges, compare_documents
from search.evaluation.recall.drawn_queries import SAMPLE, DrawnFrom, draw_queries
from search.evaluation.result import Clock, Result, how_built
from search.formatting import counted
from search.index import Index, LiveRows
from search.open_index import Queries
from search.queries import QuerySet, read_queries
from search.ranking.options import SearchOptions

_LISTED = 20  # ids of changed documents, and questions, in the result


@checked
@dataclass(frozen=True)
class DiffOptions:
    """The questions of `diff_indexes`: all of the file `queries`, or `sample` drawn ones (`draw_queries`).

    `search` are the options of the searches; the first `search.k` hits are compared.
    """

    queries: Path | None = None
    origin: DrawnFrom | None = None
    sample: int = SAMPLE
    search: SearchOptions = field(default_factory=SearchOptions)


@checked
def diff_indexes(
    before: SearchEngine | Index | str | Path,
    after: SearchEngine | Index | str | Path,
    options: DiffOptions | None = None,
    progress: Progress | None = None,
) -> Result:
    """Return the documents that were added, removed or changed, and by how much answers differ.

    `Index.open(path, generation)` opens an earlier generation. Raises EvaluationError if the indexes have no document
    in common to draw a question from, and the errors of opening and searching.
    """
    options, progress, clock = options or DiffOptions(), progress or NoProgress(), Clock()
    old, new = (each if isinstance(each, SearchEngine) else SearchEngine(each) for each in (before, after))
    progress.phase("comparing documents", None)
    changes = compare_documents(old.index, new.index, progress.advance)
    questions, sources = _questions(old.index, new.index, options)
    answers = _answers((old, new), questions, sources, options, progress)
    shares = np.array([each.changed for each in answers], np.float64)
    counts = draw_counts(len(shares), "diff")
    scores = np.array([change for each in answers for change in each.score_changes], np.float64)
    row = {
        "k": options.search.k,
        "queries": len(answers),
        "origin": questions.origin,
        **mean_interval(shares, counts).to_dict("changed"),
        "first_changed": float(np.mean([each.first_changed for each in answers])),
        "unchanged": float(np.mean([each.before.keys() == each.after.keys() for each in answers])),
        "score_rise": float(scores.mean()) if len(scores) else None,
        "score_moved": float(np.abs(scores).mean()) if len(scores) else None,
        **reasons(answers, changes),
        "encoder": new.index.manifest.fingerprint,
    }
    added = {
        "documents": _described(old.index, new.index, changes),
        "settings": changed_settings(old.index.config, new.index.config),
        "examples": examples(answers, _LISTED, old.index, new.index),
    }
    how = {"before": how_built(old.index.config, old.index), **how_built(new.index.config, new.index)}
    return Result("diff", clock.provenance(None, questions.files, **how), [row], None, questions.notes, added)


def _questions(before: Index, after: Index, options: DiffOptions) -> tuple[QuerySet, list[str | None]]:
    """Return the questions, and the id of the document that each was drawn from."""
    if options.queries:
        questions = read_queries(options.queries, after.manifest.encoder["dim"])
        return questions, [None] * len(questions)
    questions = draw_queries(LiveRows(after), options.origin, options.sample)
    ids = after.documents.ids(questions.drawn_from.tolist())
    common = before.ids.find(ids)
    kept = np.array([place for place, name in enumerate(ids) if name in common], np.int64)
    if not len(kept):
        raise EvaluationError(
            f"{before.path} contains none of the {counted(len(ids), 'sampled document')} of {after.path}; expected "
            f"documents that both contain. Fix: ask your own questions with {spelled('queries', '--queries')}."
        )
    if dropped := len(ids) - len(kept):
        note = f"{counted(dropped, 'question')} left out: drawn from documents that only one index contains"
        questions = questions.keep(kept, note)
    return questions, [ids[place] for place in kept.tolist()]


def _answers(
    engines: tuple[SearchEngine, SearchEngine],
    questions: QuerySet,
    sources: Sequence[str | None],
    options: DiffOptions,
    progress: Progress,
) -> list[TwoAnswers]:
    """Return the answers of both engines to every question, without its own document."""
    search, k = replace(options.search, k=options.search.k + 1), options.search.k
    given: list[Queries] = [questions.texts] * 2
    texts, indexes = questions.texts or None, [engine.index for engine in engines]
    if questions.embeddings is not None:
        given = [questions.embeddings] * 2
        if questions.origin == "documents":  # each index has its own embeddings of them
            numbers = engines[0].index.ids.find([source for source in sources if source])
            given[0] = engines[0].index.embeddings(np.array([numbers[str(source)] for source in sources], np.int64))
    elif search.prompt is None and len({(each.manifest.fingerprint, each.config.queries) for each in indexes}) == 1:
        progress.phase("encoding questions", len(questions))
        given = [engines[1].encode(questions.texts, "query", EncodeStats(on_batch=progress.advance))] * 2
    ranked = []
    for engine, queries in zip(engines, given, strict=True):
        progress.phase(f"searching generation {engine.index.manifest.generation}", None)
        found = engine.rank(queries, search, texts=None if queries is texts else texts)
        ranked.append(ranked_ids(engine.index, found, sources, k))
    names = questions.texts or [str(source or number) for number, source in zip(questions.ids, sources, strict=True)]
    return [TwoAnswers(*each) for each in zip(names, *ranked, strict=True)]


def _described(before: Index, after: Index, changes: DocumentChanges) -> dict[str, Any]:
    """Return the numbers of documents, and of changed ones with some of their ids, as JSON types."""
    kinds = {"added": changes.added, "removed": changes.removed, "changed": changes.changed}
    return {
        "before": before.manifest.documents,
        "after": after.manifest.documents,
        **{kind: len(ids) for kind, ids in kinds.items()},
        "ids": {kind: nsmallest(_LISTED, ids) for kind, ids in kinds.items()},
    }
