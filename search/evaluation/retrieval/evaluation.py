"""Retrieval quality on a BEIR folder: a recipe, an index, or many settings of either, beside BM25."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from indexer import ann
from indexer.arrays import SearchResult
from indexer.corpus.query_file import query_file_sha256
from indexer.errors import ConfigError
from indexer.progress import NoProgress, Progress
from search.evaluation.fits import check_dimensions
from search.evaluation.resampling import LEVEL, RESAMPLES
from search.evaluation.retrieval.answers import Answers, fitted_answers, index_answers
from search.evaluation.retrieval.beir import JudgedQueries, read_judged
from search.evaluation.retrieval.bm25 import LABEL, rank_bm25
from search.evaluation.retrieval.collection import BeirCorpus, Collection, IndexedCorpus
from search.evaluation.retrieval.comparisons import Comparison, Measured
from search.evaluation.retrieval.hybrid import FUSION, fuse_answers, hybrid_label
from search.evaluation.retrieval.metrics import MAP, MRR, Array, measure, measure_names
from search.evaluation.retrieval.query_vectors import ask, require_queries
from search.evaluation.retrieval.runs import require_plain_ids, run_tag, write_per_query, write_run
from search.evaluation.retrieval.task import RetrievalTask as RetrievalTask
from search.evaluation.retrieval.task import beside_of, require_places, runs_of
from search.evaluation.settings import Setting, Sweep
from search.evaluation.states import StateSource
from search.evaluation.subject import Subject
from search.extras import require_extra
from search.files import file_hash
from search.hybrid.lexical import Lexical
from search.hybrid.terms import PARAMETERS
from search.printable import counted
from search.provenance import Clock, how_built
from search.ranking import places_of

DEPTH = 1000  # hits of a query that are judged, as in TREC's runs; more where a k asks for more


def evaluate_retrieval(
    task: RetrievalTask,
    subject: Subject,
    sweep: Sweep = Sweep(),  # noqa: B008 - frozen
    cache: Path | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """The result as JSON types: provenance, results (a setting each and its hybrid, then BM25), comparisons, notes.

    An index without a sweep is itself asked, as it ships. Else settings are fitted, on the corpus or on the
    index's raw embeddings, and searched exactly. Values of measures are from 0 to 1.
    Raises EvaluationError for what is wrong with the folder, ConfigError for settings that cannot be measured
    (other layers or another pooling than an index holds), MachineError for missing packages, and what `Subject`
    and `read_corpus` raise.
    """
    clock, progress = Clock(), progress or NoProgress()
    _require_packages(task)
    require_queries(task.query_vectors, subject)
    if task.on_error == "skip" and subject.opened:
        raise ConfigError(
            f"--on-error skip is for rows of a corpus, but {subject.opened.path} is an index; leave it out."
        )
    settings = _settings(subject, sweep)
    runs = runs_of(task, [setting.label for setting in settings])
    require_places(task, subject, runs)
    judged = read_judged(task.folder, task.split)
    source = subject.states(settings, cache, progress)
    evaluation = _Evaluation(task, subject, sweep, judged, source, progress)
    comparison = Comparison(list(evaluation.measured(settings)))
    if task.per_query:
        first = measure_names(task.cutoffs)[0]
        columns = {one.label: one.values[first] for one in comparison.measured}
        write_per_query(task.per_query, first, judged.judgements, columns, task.force)
    return {
        "provenance": clock.provenance(subject.spec, evaluation.data, **evaluation.provenance),
        "results": comparison.results,
        "comparisons": comparison.pairs,
        "notes": list(dict.fromkeys(evaluation.notes)),
    }


class _Evaluation:
    """One task and its collection."""

    def __init__(
        self,
        task: RetrievalTask,
        subject: Subject,
        sweep: Sweep,
        judged: JudgedQueries,
        source: StateSource,
        progress: Progress,
    ) -> None:
        self._task, self._subject, self._judged = task, subject, judged
        self._source, self._progress = source, progress
        self._own = subject.opened if sweep.is_empty else None  # an index that is asked as it is
        self._collection, data = _collection(task, subject, source, progress)
        self._names = list(self._collection.ids)
        self.data = judged.files | data
        self.notes = [
            *judged.notes,
            *self._collection.notes,
            *judged.match(set(self._names)),
            *_index_notes(subject, self._own is not None),
        ]
        self._places = places_of(self._names)
        self._depth = min(len(self._names), max(DEPTH, *task.cutoffs))

    @property
    def provenance(self) -> dict[str, Any]:
        protocol = {
            "task": self._judged.name,
            "split": self._task.split,
            "queries": len(self._judged.queries),
            "documents": len(self._names),
            "depth": self._depth,
            "cutoffs": list(self._task.cutoffs),
            "definitions": "trec_eval",
            "ties": "ascending id",
            **({"score": "of a document's best window"} if self._subject.config.chunk.tokens else {}),
            "searched": "index" if self._own else "exact",
            "resamples": RESAMPLES,
            "level": LEVEL,
        }
        more: dict[str, Any] = {"protocol": protocol}
        if self._needs_bm25:
            more["bm25"] = PARAMETERS
        if self._task.hybrid:
            more["hybrid"] = FUSION
        return more | how_built(self._subject.config, self._subject.opened)

    def measured(self, settings: Sequence[Setting]) -> Iterator[Measured]:
        """Each setting and its hybrid, then BM25. Runs are written on the way: few rankings are held at once."""
        files = self._run_files([setting.label for setting in settings])
        words = self._words() if self._needs_bm25 else []  # first, since encoding may take hours
        baseline = self._bm25(words, files) if self._task.bm25 else None
        for answers in self._answers(settings):
            self.notes += [answers.note] * bool(answers.note)
            facts = {
                "encoder": self._source.fingerprint(answers.setting.key),
                "transform": answers.transform,
                "dimensions": answers.dimensions,
            }
            measured = self._judge(answers.setting.label, answers.setting, answers.found, facts, files)
            yield replace(measured, values={**measured.values, **self._cut_off(answers.at)})
            if self._task.hybrid:
                found = fuse_answers(answers.found, words, self._places, self._depth)
                label, facts = hybrid_label(answers.setting.label), facts | {"hybrid": FUSION}
                yield replace(self._judge(label, answers.setting, found, facts, files), hybrid=True)
            self._progress.advance(1)
        if baseline:
            yield baseline

    def _answers(self, settings: Sequence[Setting]) -> Iterator[Answers]:
        queries, states, cut, files = ask(self._task.query_vectors, self._judged.queries, self._subject, self._source)
        self.data |= files
        if not self._own:
            query_like = any(setting.whitening.centres_by_role for setting in settings)
            self.data |= _query_file(self._subject) if query_like else {}
            self._collection.prepare(query_like)
        self.notes += self._cut(cut, self._collection.truncated)
        self._progress.phase("ranking", len(settings))
        if self._own:
            yield index_answers(self._own, settings[0], states, queries, self._depth, self._task.cutoffs)
        else:
            yield from fitted_answers(self._collection, settings, states, queries, self._depth, self._places)

    def _cut(self, queries: int, documents: int) -> Iterator[str]:
        limit = self._subject.spec.identity.max_length
        encoded = ("window", "windows") if self._subject.config.chunk.tokens else ("document", "documents")
        for count, nouns in ((queries, ("query", "queries")), (documents, encoded)):
            if count:
                yield f"cut at {limit} tokens: {counted(count, *nouns)}"

    def _run_files(self, labels: list[str]) -> dict[str, Path]:
        if self._task.run is None:
            return {}
        require_plain_ids([*self._judged.queries, *self._names])
        files = runs_of(self._task, labels)
        if missing := [label for label in beside_of(self._task, labels) if label not in files]:
            self.notes.append(
                f"{self._task.run} holds the run of the setting only; name a folder for that of {' and '.join(missing)}"
            )
        return files

    @property
    def _needs_bm25(self) -> bool:
        return self._task.bm25 or self._task.hybrid

    def _words(self) -> list[SearchResult]:
        """What BM25 finds. An index whose hybrid is measured is asked as `isotrope query --hybrid` asks it."""
        queries = list(self._judged.queries.values())
        if self._own and self._task.hybrid:
            return Lexical(self._own, self._progress).search(queries, self._depth)
        self._progress.phase(LABEL, None)
        return rank_bm25(self._collection.texts(), queries, self._places, self._depth)

    def _bm25(self, found: list[SearchResult], files: dict[str, Path]) -> Measured:
        facts = {"encoder": None, "transform": None, "dimensions": None, "bm25": PARAMETERS}
        return self._judge(LABEL, None, found, facts, files)

    def _judge(
        self,
        label: str,
        setting: Setting | None,
        found: list[SearchResult],
        facts: dict[str, Any],
        files: dict[str, Path],
    ) -> Measured:
        queries = list(self._judged.queries)
        if label in files:
            write_run(files[label], run_tag(label), queries, self._names, found, force=self._task.force)
        values = measure(self._judged.judgements, self._ranked(found), self._task.cutoffs)
        return Measured(label, setting, values, {"queries": len(queries), "depth": self._depth, **facts})

    def _cut_off(self, at: Mapping[int, list[SearchResult]]) -> dict[str, Array]:
        """nDCG and recall at each k, of lists that were asked for at that k."""
        values: dict[str, Array] = {}
        for k, found in at.items():
            every = measure(self._judged.judgements, self._ranked(found), (k,))
            values |= {name: every[name] for name in every if name not in (MAP, MRR)}
        return values

    def _ranked(self, found: Sequence[SearchResult]) -> dict[str, list[str]]:
        return {
            query: [self._names[row] for row in rows.tolist()]
            for query, (_, rows) in zip(self._judged.queries, found, strict=True)
        }


def _collection(
    task: RetrievalTask, subject: Subject, source: StateSource, progress: Progress
) -> tuple[Collection, dict[str, str]]:
    """What is searched, and the hash of the file it comes from."""
    if subject.opened:
        return IndexedCorpus(subject, subject.opened, source), {}
    corpus = BeirCorpus(task.folder, subject, source, progress, task.on_error)
    return corpus, {corpus.file.name: file_hash(corpus.file)}


def _query_file(subject: Subject) -> dict[str, str]:
    """The hash of the recipe's file of queries, where it is read: an index may hold the mean of its queries."""
    whitening = subject.config.whitening
    kept = subject.opened is not None and subject.opened.transform.query_mean is not None and whitening.centres_by_role
    digest = "" if kept else query_file_sha256(whitening.query_sample, "whitening.query_sample")
    return {"whitening.query_sample": digest} if digest else {}


def _settings(subject: Subject, sweep: Sweep) -> list[Setting]:
    settings = subject.settings(sweep)
    check_dimensions(settings, subject.spec)
    return settings


def _index_notes(subject: Subject, asked: bool) -> Iterator[str]:
    """What the way of searching means for indexes that are not exact."""
    factories = [entry.factory for entry in subject.opened.manifest.segments] if subject.opened else []
    approximate = [name for name in factories or [ann.factory_of(subject.config.index.type)] if not ann.is_exact(name)]
    if approximate and asked:
        yield (
            f"the index is approximate ({approximate[0]}): nDCG@k and R@k are of a search for k hits; MAP, MRR and run "
            "files of a search for all hits judged, for which it may look further"
        )
    elif approximate:
        yield (
            f"every vector was compared; the recipe's index ({approximate[0]}) is approximate and may find less. "
            "Measure it with --index and no settings"
        )


def _require_packages(task: RetrievalTask) -> None:
    for package in ("ir_measures", "pytrec_eval", *(("bm25s", "Stemmer") if task.bm25 or task.hybrid else ())):
        require_extra(package, "eval")
