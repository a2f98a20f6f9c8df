"""`evaluate_retrieval`: quality on a BEIR folder of a recipe, an index, or many settings of either, beside BM25."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from indexer import ann
from indexer.arrays import Float64Array, SearchResult
from indexer.corpus.corpus import OnError
from indexer.corpus.query_file import query_file_sha256
from indexer.encoders.precomputed import cannot_encode
from indexer.errors import ConfigError
from indexer.lazy import require_extra
from indexer.progress import NoProgress, Progress
from indexer.recipe.ranking import HybridConfig
from search.evaluation.bootstrap import LEVEL, RESAMPLES
from search.evaluation.embeddings import EmbeddingSource, TextEmbeddings, count_cut, encode_with_lengths
from search.evaluation.result import Clock, Result, how_built
from search.evaluation.retrieval.beir import JudgedQueries, read_judged
from search.evaluation.retrieval.corpus import open_collection
from search.evaluation.retrieval.metrics import (
    MAP,
    MRR,
    MeasuredRun,
    PairedComparison,
    measure,
    measure_names,
    ranked_ids,
)
from search.evaluation.retrieval.reranked import (
    PairScores,
    RerankTask,
    best_windows,
    rerank_run,
    reranked_label,
    whole_texts,
)
from search.evaluation.retrieval.runs import (
    Asked,
    Run,
    hybrid_label,
    run_files,
    run_of_index,
    run_tag,
    runs_of_settings,
    write_per_query,
)
from search.evaluation.settings import Setting, Sweep, check_dimensions
from search.evaluation.target import Subject, Target
from search.export.trec import require_plain_ids, run_lines
from search.files import check_outputs, file_hash, read_by, write_output
from search.queries import read_query_embeddings
from search.ranking.bm25 import LABEL, BM25Index, BM25Ranking, bm25_parameters
from search.ranking.exact import id_order
from search.ranking.fusion import fusion_name, fusion_parameters
from search.ranking.reranker import Reranker
from search.text import counted


@dataclass(frozen=True)
class RetrievalOptions:
    """What is asked: a BEIR folder and a split of it, the ranks to cut at, and what is written beside the result."""

    folder: Path
    split: str = "test"
    cutoffs: tuple[int, ...] = (10, 100)
    bm25: bool = True
    run: Path | None = None  # TREC runs: a file, or a folder for several
    per_query: Path | None = None  # a table of the first nDCG
    on_error: OnError = "fail"  # or "skip": rows of the corpus that cannot be documents, such as blank ones
    hybrid: bool = False  # fuse each setting's ranking with BM25's too: as the recipe says, and by reciprocal ranks
    hybrid_weights: tuple[float, ...] = ()  # of convex combinations, in place of the recipe's own
    query_vectors: Path | None = None  # embeddings of the queries, by id, so that none is encoded
    force: bool = False  # write over files that are there already
    also: Mapping[str, Path] = field(default_factory=dict)  # option -> file that the caller writes: no file twice
    rerank: RerankTask | None = None  # measure each ranking reranked too

    def __post_init__(self) -> None:
        if not self.cutoffs or min(self.cutoffs) < 1:
            raise ConfigError(f"-k is {min(self.cutoffs, default='empty')}; expected whole numbers above 0.")
        if self.hybrid_weights and not self.hybrid:
            raise ConfigError("weights (--hybrid-weight) are those of hybrids; expected hybrid (--hybrid) as well.")

    def fusions(self, config: HybridConfig) -> list[HybridConfig]:
        """The fusions that are measured. Raises ConfigError for a weight that is none."""
        convex = [replace(config, fusion="convex", weight=weight) for weight in self.hybrid_weights or (config.weight,)]
        return [*convex, replace(config, fusion="rrf")] if self.hybrid else []


def beside_of(task: RetrievalOptions, labels: Sequence[str], config: HybridConfig) -> list[str]:
    """Labels of what is measured beside the settings."""
    hybrids = [hybrid_label(label, fusion) for label in labels for fusion in task.fusions(config)]
    reranked = [reranked_label(label, task.rerank.depth) for label in (*labels, *hybrids)] if task.rerank else []
    return [*hybrids, *reranked, *[LABEL] * task.bm25]


def runs_of(task: RetrievalOptions, labels: Sequence[str], config: HybridConfig) -> dict[str, Path]:
    """Label -> the file of its run."""
    return run_files(task.run, labels, beside_of(task, labels, config)) if task.run else {}


def require_places(task: RetrievalOptions, subject: Target, runs: Mapping[str, Path]) -> None:
    """What cannot be written shows now and not after hours of encoding."""
    written = {f"--run ({label})" if len(runs) > 1 else "--run": path for label, path in runs.items()}
    if task.per_query is not None:
        written["--per-query"] = task.per_query
    whitening, index = subject.config.whitening, subject.index.path if subject.index else None
    reads = read_by(task.folder, task.query_vectors, whitening.query_sample, subject.spec.folder, index)
    check_outputs({**written, **task.also}, reads, task.force)


DEPTH = 1000  # hits of a query that are judged, as in TREC's runs; more where a k asks for more


def evaluate_retrieval(
    subject: Subject,
    task: RetrievalOptions,
    sweep: Sweep = Sweep(),  # noqa: B008 - frozen
    cache: Path | None = None,
    progress: Progress | None = None,
) -> Result:
    """The result: a row for each setting and its hybrids, each reranked too if asked, then BM25; paired differences.

    An index without a sweep is itself asked, as it ships. Else settings are fitted, on the corpus or on the
    index's raw embeddings, and searched exactly. Values of measures are from 0 to 1.
    Raises EvaluationError for what is wrong with the folder, ConfigError for settings that cannot be measured
    (other layers or another pooling than an index holds), MachineError for missing packages, and what `Target`
    and `read_corpus` raise.
    """
    clock, subject, progress = Clock(), Target.of(subject), progress or NoProgress()
    _require_packages(task)
    require_queries(task.query_vectors, subject)
    if task.on_error == "skip" and subject.index:
        raise ConfigError(
            f"--on-error skip is for rows of a corpus, but {subject.index.path} is an index; leave it out."
        )
    settings = _settings(subject, sweep)
    runs = runs_of(task, [setting.label for setting in settings], subject.config.hybrid)
    require_places(task, subject, runs)
    judged = read_judged(task.folder, task.split)
    source = subject.states(settings, cache, progress)
    evaluation = _Evaluation(task, subject, sweep, judged, source, progress)
    comparison = PairedComparison(list(evaluation.measured(settings)))
    if task.per_query:
        first = measure_names(task.cutoffs)[0]
        columns = {one.label: one.values[first] for one in comparison.measured}
        write_per_query(task.per_query, first, judged.judgements, columns, task.force)
    provenance = clock.provenance(subject.spec, evaluation.data, **evaluation.provenance)
    notes = list(dict.fromkeys(evaluation.notes))
    return Result("retrieval", provenance, comparison.results, comparison.pairs, notes)


class _Evaluation:
    """One task and its collection."""

    def __init__(
        self,
        task: RetrievalOptions,
        subject: Target,
        sweep: Sweep,
        judged: JudgedQueries,
        source: EmbeddingSource,
        progress: Progress,
    ) -> None:
        self._task, self._subject, self._judged = task, subject, judged
        self._source, self._progress = source, progress
        self._reranker = task.rerank.open(subject) if task.rerank else None
        self._own = subject.index if sweep.is_empty else None  # an index that is asked as it is
        self._collection, data = open_collection(task.folder, subject, source, progress, task.on_error)
        self._names = list(self._collection.ids)
        self.data = judged.files | data
        self.notes = [
            *judged.notes,
            *self._collection.notes,
            *judged.match(set(self._names)),
            *_index_notes(subject, self._own is not None),
            *_rerank_notes(task, subject),
        ]
        self._places = id_order(self._names)
        self._depth = min(len(self._names), max(DEPTH, *task.cutoffs))
        self._fusions = task.fusions(subject.config.hybrid)
        self._pairs: PairScores | None = None

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
            more["bm25"] = bm25_parameters(self._subject.config.hybrid)
        if self._fusions:
            more["hybrid"] = [fusion_parameters(fusion) for fusion in self._fusions]
        if self._pairs:
            more["rerank"] = self._pairs.facts
        return more | how_built(self._subject.config, self._subject.index)

    def measured(self, settings: Sequence[Setting]) -> Iterator[MeasuredRun]:
        """Each setting and its hybrids, then BM25. Runs are written on the way: few rankings are held at once."""
        files = self._run_files([setting.label for setting in settings])
        words = self._words() if self._needs_bm25 else None  # first, since encoding may take hours
        baseline = self._bm25(words, files) if words and self._task.bm25 else None
        for answers in self._answers(settings, words):
            self.notes += [answers.note] * bool(answers.note)
            facts = {
                "encoder": self._source.fingerprint(answers.setting.key),
                "transform": answers.transform,
                "dimensions": answers.dimensions,
            }
            measured = self._judge(answers.setting.label, answers.setting, answers.found, facts, files)
            yield replace(measured, values={**measured.values, **self._cut_off(answers.at)})
            yield from self._reranked(measured, answers.found, files)
            for fusion, found in zip(self._fusions, answers.hybrids, strict=True):
                label, parameters = hybrid_label(answers.setting.label, fusion), fusion_parameters(fusion)
                fused = self._judge(label, answers.setting, found, facts | {"hybrid": parameters}, files)
                yield replace(fused, hybrid=fusion_name(parameters))
                yield from self._reranked(fused, found, files)
            self._progress.advance(1)
        if baseline:
            yield baseline

    def _answers(self, settings: Sequence[Setting], words: BM25Ranking | None) -> Iterator[Run]:
        names, states, lengths, files = ask(self._task.query_vectors, self._judged.queries, self._subject, self._source)
        self.data |= files
        if not self._own:
            query_like = any(setting.whitening.centres_by_role for setting in settings)
            self.data |= _query_file(self._subject) if query_like else {}
            self._collection.prepare(query_like)
        self.notes += self._cut(count_cut(self._source, lengths or ()), self._collection.truncated)
        self._progress.phase("ranking", len(settings))
        asked = Asked(names, states, list(self._judged.queries.values()), self._depth, self._fusions, lengths)
        if self._reranker is not None:
            self._pairs = self._read_by(self._reranker, asked, settings[0])
        if self._own:
            yield run_of_index(self._own, settings[0], asked, self._task.cutoffs)
        else:
            yield from runs_of_settings(self._collection, settings, asked, self._places, words)

    def _reranked(self, run: MeasuredRun, found: list[SearchResult], files: dict[str, Path]) -> Iterator[MeasuredRun]:
        """A ranking with its first documents in the reranker's order, where there is one."""
        if self._task.rerank is None or self._pairs is None:
            return
        depth = self._task.rerank.depth
        again = rerank_run(self._pairs, found, self._places, depth, self._progress)
        label = reranked_label(run.label, depth)
        pairs = sum(min(depth, len(rows)) for _, rows in found) / len(found)
        about = {"of": run.label, "depth": depth, "ms": self._pairs.milliseconds(pairs)}
        facts = {name: value for name, value in run.facts.items() if name not in ("queries", "depth")}
        measured = self._judge(label, run.setting, again, facts | {"rerank": about}, files)
        yield replace(measured, reranks=run.label)

    def _read_by(self, reranker: Reranker, asked: Asked, setting: Setting) -> PairScores:
        """What a reranker reads: the best windows of an index that is chunked, else whole documents."""
        texts = self._collection.texts()
        if self._own and not self._own.numbering.one_to_one:
            vectors = asked.vectors(self._own.transform, setting)
            return PairScores(reranker, asked.texts, best_windows(self._own, vectors, texts))
        if self._subject.config.chunk.tokens:
            self.notes.append(
                "reranked by whole documents, cut at the model's limit: windows are read of an index only"
            )
        return PairScores(reranker, asked.texts, whole_texts(texts))

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
        config = self._subject.config.hybrid
        files = runs_of(self._task, labels, config)
        if missing := [label for label in beside_of(self._task, labels, config) if label not in files]:
            self.notes.append(
                f"{self._task.run} holds the run of the setting only; name a folder for that of {' and '.join(missing)}"
            )
        return files

    @property
    def _needs_bm25(self) -> bool:
        return self._task.bm25 or self._task.hybrid

    def _words(self) -> BM25Ranking:
        """BM25 of the collection. An index whose hybrid is measured is asked as `isotrope query --hybrid` asks it."""
        if self._own and self._fusions:
            return BM25Index(self._own, self._progress)
        self._progress.phase(LABEL, None)
        texts, starts = self._collection.bm25_texts(self._subject.config.hybrid.unit)
        return BM25Ranking.of(texts, self._places, self._subject.config.hybrid, "eval", starts)

    def _bm25(self, words: BM25Ranking, files: dict[str, Path]) -> MeasuredRun:
        found = words.search(list(self._judged.queries.values()), self._depth)
        parameters = bm25_parameters(self._subject.config.hybrid)
        facts = {"encoder": None, "transform": None, "dimensions": None, "bm25": parameters}
        return self._judge(LABEL, None, found, facts, files)

    def _judge(
        self,
        label: str,
        setting: Setting | None,
        found: list[SearchResult],
        facts: dict[str, Any],
        files: dict[str, Path],
    ) -> MeasuredRun:
        queries = list(self._judged.queries)
        if label in files:
            write_output(
                files[label], run_lines(run_tag(label), queries, self._names, found), "--run", self._task.force
            )
        values = measure(self._judged.judgements, ranked_ids(queries, found, self._names), self._task.cutoffs)
        return MeasuredRun(label, setting, values, {"queries": len(queries), "depth": self._depth, **facts})

    def _cut_off(self, at: Mapping[int, list[SearchResult]]) -> dict[str, Float64Array]:
        """nDCG and recall at each k, of lists that were asked for at that k."""
        values: dict[str, Float64Array] = {}
        for k, found in at.items():
            ranked = ranked_ids(self._judged.queries, found, self._names)
            every = measure(self._judged.judgements, ranked, (k,))
            values |= {name: every[name] for name in every if name not in (MAP, MRR)}
        return values


def _query_file(subject: Target) -> dict[str, str]:
    """The hash of the recipe's file of queries, where it is read: an index may hold the mean of its queries."""
    whitening = subject.config.whitening
    kept = subject.index is not None and subject.index.transform.query_mean is not None and whitening.centres_by_role
    digest = "" if kept else query_file_sha256(whitening.query_sample, "whitening.query_sample")
    return {"whitening.query_sample": digest} if digest else {}


def _settings(subject: Target, sweep: Sweep) -> list[Setting]:
    settings = subject.settings(sweep)
    check_dimensions(settings, subject.spec)
    return settings


def _index_notes(subject: Target, asked: bool) -> Iterator[str]:
    """What the way of searching means for indexes that are not exact."""
    factories = [entry.factory for entry in subject.index.manifest.segments] if subject.index else []
    approximate = [name for name in factories or [ann.factory_of(subject.config.index.type)] if not ann.is_exact(name)]
    if approximate and asked:
        yield (
            f"the index is approximate ({approximate[0]}): nDCG@k and R@k are of a search for k hits; MAP, MRR and run "
            "files of a search for all hits judged, for which it may look further; so are reranked rows"
        )
    elif approximate:
        yield (
            f"every vector was compared; the recipe's index ({approximate[0]}) is approximate and may find less. "
            "Measure it with --index and no settings"
        )


def _rerank_notes(task: RetrievalOptions, subject: Target) -> Iterator[str]:
    """That a recipe reranks, where that is not measured."""
    rerank = subject.config.rerank
    if rerank.model and task.rerank is None:
        yield (
            f"measured without the reranking of the recipe, the first {rerank.depth:,} hits by {rerank.model}: pass "
            f"--rerank {rerank.model} --rerank-depth {rerank.depth}"
        )


def _require_packages(task: RetrievalOptions) -> None:
    for package in ("ir_measures", "pytrec_eval", *(("bm25s", "Stemmer") if task.bm25 or task.hybrid else ())):
        require_extra(package, "eval")


def require_queries(path: Path | None, subject: Target) -> None:
    """Raises ConfigError for queries that cannot be asked: texts without an encoder, vectors without an index."""
    if path is None and not subject.spec.traits.encodes_texts:
        raise ConfigError(
            f"{cannot_encode(subject.spec)} Name the embeddings of the queries: --query-vectors FILE.npy beside "
            "FILE.ids.txt."
        )
    if subject.index is None and (path or not subject.spec.traits.encodes_texts):
        raise ConfigError("embeddings that are given are measured on an index: build it, and name it with --index.")


def ask(
    path: Path | None, queries: Mapping[str, str], subject: Target, source: EmbeddingSource
) -> tuple[list[str], TextEmbeddings, list[int] | None, dict[str, str]]:
    """Return the names of queries (id -> text) in their embeddings, these, their lengths, and the files they are from.

    They are encoded now, or read from the file `path` (see `read_query_embeddings`), which holds no lengths.
    """
    if path is None:
        texts = list(queries.values())
        return texts, *encode_with_lengths(source, texts, "query"), {}
    names = list(queries)
    dim = subject.index.manifest.encoder["dim"] if subject.index else 0
    rows = {source.keys[0]: read_query_embeddings(path, names, dim)}
    return (
        names,
        TextEmbeddings({name: row for row, name in enumerate(names)}, rows),
        None,
        {path.name: file_hash(path)},
    )
