"""`compare_vectors`: two indexes of the same documents, with vectors of two models, compared on judged queries.

Every document that both indexes contain is scored exactly. Embeddings of the queries are read from files, or made by
the model of an index. Measures are trec_eval's, as in `isotrope evaluate retrieval`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from indexer.arrays import Float32Array, RowIds, Scores, SearchResult, Vectors
from indexer.errors import ConfigError, EvaluationError, spelled
from indexer.hashing import bottom_k, hash_id
from indexer.progress import NoProgress, Progress
from indexer.recipe.run_options import RunOptions
from indexer.typed_arguments import checked
from search.evaluation.result import Clock, Result, how_built
from search.evaluation.retrieval.beir import JudgedQueries, read_judged
from search.evaluation.retrieval.metrics import MRR, measure, ranked_ids
from search.evaluation.retrieval.retrieval import DEPTH, ask, require_queries
from search.evaluation.target import Target
from search.formatting import counted
from search.index import BLOCK_ROWS, Index
from search.migration.comparison import CUT, DEPTHS, MeasuredWay, Ranks, compared_ways, measured_ways
from search.migration.maps import FOLDS, BothSides, MapKind, mapped_questions
from search.migration.price import MigrationPrice
from search.ranking.exact import exact_scores, exact_top_k

_FITTED = 10_000  # documents that maps are fitted on, with the smallest hashes of their ids


@checked
@dataclass(frozen=True)
class GivenQueries:
    """Judged queries of a BEIR folder, with files of their embeddings for the old and the new index.

    The files are those of `RetrievalOptions.query_vectors`. None: the model of the index encodes the queries.
    """

    folder: Path
    query_vectors: Path | None = None
    to_query_vectors: Path | None = None
    split: str = "test"


@checked
def compare_vectors(
    index: str | Path,
    to_index: str | Path,
    task: GivenQueries,
    options: RunOptions | None = None,
    progress: Progress | None = None,
) -> Result:
    """Compare an index with another of the same documents, whose vectors another model made; nothing is changed.

    The result is that of `compare_encoders`, on judged queries. Its price is 0, because no document is encoded. Raises
    ConfigError for one index twice, for chunked indexes, and for given vectors without embeddings of the queries;
    EvaluationError for indexes without a common id, errors in the folder, and queries without an embedding.
    """
    clock, progress = Clock(), progress or NoProgress()
    old = _subject(index, task.query_vectors, "query_vectors", options)
    new = _subject(to_index, task.to_query_vectors, "to_query_vectors", options)
    if old.index.path.resolve() == new.index.path.resolve():
        raise ConfigError(f"{index}: both indexes are this one. Fix: name two indexes of the same documents.")
    judged, ids = read_judged(task.folder, task.split), _common_ids(old, new)
    if (queries := len(judged.queries)) < FOLDS:
        raise EvaluationError(
            f"{task.folder}: has {counted(queries, 'judged query', 'judged queries')}; expected at least {FOLDS}, "
            "because a map is measured on other questions than it is fitted on. Fix: judge more queries."
        )
    notes = [*judged.notes, *judged.match(set(ids)), *_notes(old, new, len(ids))]
    before, after = _side(old, ids, judged, progress), _side(new, ids, judged, progress)
    progress.phase("comparing", None)
    rankings = JudgedRankings(before, after, ids, judged)
    rows, compared, choice = compared_ways(list(measured_ways(rankings)), lambda way: _use(way, old.index, new.index))
    sizes = {"queries": queries, "documents": len(ids), "depth": rankings.depth}
    protocol = {"measure": MRR, "kind": "judged queries", "task": judged.name, "split": task.split, **sizes}
    built, replaced = how_built(old.target.config, old.index), old.target.spec.identity.to_dict()
    data = judged.files | {f"old {name}": digest for name, digest in before.files.items()}
    data |= {f"new {name}": digest for name, digest in after.files.items()}
    provenance = clock.provenance(new.target.spec, data, protocol=protocol, **built, replaced=replaced)
    added = {"price": MigrationPrice(0, 0, 0.0, 0).to_dict(), "choice": choice}
    return Result("migrate", provenance, rows, compared, notes, added)


@dataclass(frozen=True)
class _Subject:
    """An index, and the file with embeddings of the queries by its model."""

    target: Target
    index: Index
    file: Path | None

    @cached_property
    def rows(self) -> dict[str, int]:
        """The row of each document by id."""
        return {identity: row for row, identity in enumerate(self.index.documents.all_ids())}


def _subject(path: str | Path, file: Path | None, argument: str, options: RunOptions | None) -> _Subject:
    """Open an index. Raises ConfigError for windows, and for given vectors without embeddings of the queries."""
    target = Target.of_index(path, None, options)
    index = Index.open(path) if target.index is None else target.index
    require_queries(file, target, argument)
    if not index.numbering.one_to_one:
        raise ConfigError(
            f"{index.path}: its documents have several windows, but a map needs one vector for each document. Fix: "
            f"measure both indexes with {spelled('evaluate_retrieval', 'isotrope evaluate retrieval')}."
        )
    return _Subject(target, index, file)


def _common_ids(old: _Subject, new: _Subject) -> list[str]:
    """Return the ids that both indexes contain, ascending, so that ties are in the order of an index."""
    if ids := sorted(old.rows.keys() & new.rows.keys()):
        return ids
    shown = (next(iter(subject.rows), "no documents") for subject in (old, new))
    raise EvaluationError(
        f"{old.index.path} and {new.index.path}: have no common id ({', '.join(shown)}). Fix: build both from the same "
        "documents."
    )


def _notes(old: _Subject, new: _Subject, common: int) -> Iterator[str]:
    for subject in (old, new):
        if alone := len(subject.rows) - common:
            yield f"{counted(alone, 'document')} of {subject.index.path} left out, not in the other index"
    if common > _FITTED:
        yield f"maps are fitted on {_FITTED:,} of the {common:,} documents"


def _use(way: MeasuredWay, old: Index, new: Index) -> str:
    """Return how to use a way. No command ranks given vectors in two spaces."""
    if way.mode == "full":
        return f"search {new.path} instead of {old.path}"
    if way.mode == "rescore":
        return f"find {way.depth} candidates in {old.path}, and order them by their vectors in {new.path}"
    return f"search {old.path} with embeddings of the other model, mapped by a {way.setting.rpartition(' ')[2]} map"


@dataclass(frozen=True)
class _Side:
    """The rows of the common documents in an index, in the order of their ids, and raw embeddings of the queries."""

    index: Index
    rows: RowIds
    asked: Float32Array
    files: dict[str, str]  # name -> sha256, of the file of the embeddings

    @cached_property
    def queries(self) -> Vectors:
        """Unit vectors (queries, k)."""
        return self.index.transform.transform(self.asked, "query")

    def blocks(self) -> Iterator[Vectors]:
        """Yield the unit vectors of the documents."""
        for start in range(0, len(self.rows), BLOCK_ROWS):
            yield self.index.vectors(self.rows[start : start + BLOCK_ROWS])


def _side(subject: _Subject, ids: list[str], judged: JudgedQueries, progress: Progress) -> _Side:
    """Read the embeddings of the queries, or encode the queries."""
    target = subject.target
    names, states, _, files = ask(subject.file, judged.queries, target, target.states([target.own], None, progress))
    rows = np.array([subject.rows[each] for each in ids])
    return _Side(subject.index, rows, states.of(names, target.own.key), files)


@dataclass(frozen=True)
class JudgedRankings:
    """Rankings of the documents of two indexes for judged queries, ties in ascending order of id."""

    old: _Side
    new: _Side
    ids: list[str]
    judged: JudgedQueries

    @property
    def documents(self) -> int:
        return len(self.ids)

    @property
    def depth(self) -> int:
        """The number of hits per query."""
        return min(DEPTH, len(self.ids))

    def of_old(self) -> Ranks:
        return self._measured(self._candidates)

    def of_new(self) -> Ranks:
        return self._measured(self._hits(self.new, self.new.queries))

    def rescored(self, depth: int) -> Ranks:
        hits = []
        for (scores, rows), by_new in zip(self._candidates, self._new_scores, strict=True):
            order = np.lexsort((rows[:depth], -by_new[:depth]))
            hits.append((scores, np.concatenate([rows[order], rows[depth:]])))
        return self._measured(hits)

    def mapped(self, kind: MapKind) -> Ranks:
        return self._measured(self._hits(self.old, mapped_questions(kind, self._sides, paired=False)))

    @cached_property
    def _candidates(self) -> list[SearchResult]:
        return self._hits(self.old, self.old.queries)

    @cached_property
    def _new_scores(self) -> list[Scores]:
        """The scores of the first candidates by the new vectors, in the order of the old ones."""
        first = [rows[: max(DEPTHS)] for _, rows in self._candidates]
        scores = exact_scores(self.new.queries, self.new.blocks(), [np.sort(rows) for rows in first])
        return [found[np.argsort(np.argsort(rows))] for found, rows in zip(scores, first, strict=True)]

    @cached_property
    def _sides(self) -> BothSides:
        some = bottom_k(np.array([hash_id(each) for each in self.ids], np.uint64), _FITTED)
        new, old = self.new.index.embeddings(self.new.rows[some]), self.old.index.vectors(self.old.rows[some])
        pairs = (new, old, self.new.asked, self.old.queries)
        return BothSides(*(np.asarray(each, np.float64) for each in pairs))

    def _hits(self, side: _Side, queries: Vectors) -> list[SearchResult]:
        return exact_top_k(queries, side.blocks(), np.arange(len(self.ids)), self.depth)

    def _measured(self, hits: list[SearchResult]) -> Ranks:
        values = measure(self.judged.judgements, ranked_ids(self.judged.queries, hits, self.ids), (CUT,))
        with np.errstate(divide="ignore"):
            return np.rint(1 / values[MRR]), values[f"nDCG@{CUT}"]
