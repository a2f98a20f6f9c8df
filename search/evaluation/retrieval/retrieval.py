"""`evaluate_retrieval`: quality on a BEIR folder of a recipe, an index, or many settings of either, and of BM25."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from indexer import ann
from indexer.arrays import Float64Array, SearchResult
from indexer.corpus.corpus import OnError
from indexer.corpus.query_file import query_file_sha256
from indexer.encoders.precomputed import cannot_encode
from indexer.errors import ConfigError, as_argument, spelled
from indexer.lazy_imports import require_extra
from indexer.progress import NoProgress, Progress
from indexer.recipe.ranking import HybridConfig
from indexer.typed_arguments import checked
from search.evaluation.bootstrap import LEVEL, RESAMPLES
from search.evaluation.embeddings import EmbeddingSource, TextEmbeddings, count_cut, encode_with_lengths
from search.evaluation.result import Clock, Result, how_built
from search.evaluation.retrieval.beir import JudgedQueries, read_judged
from search.evaluation.retrieval.corpus import open_collection
from search.evaluation.retrieval.metrics import (
    MAP,
    MRR,
    MeasuredRun,
    compare,
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
from search.evaluation.sweep import Setting, Sweep, check_dimensions
from search.evaluation.target import Subject, Target
from search.export.trec import require_plain_ids, run_lines
from search.formatting import counted
from search.queries import read_query_embeddings
from search.ranking.bm25 import LABEL, BM25Index, BM25Ranking, bm25_parameters
from search.ranking.exact import id_order
from search.ranking.fusion import fusion_name, fusion_parameters
from search.ranking.reranker import Reranker
from search.result_files import check_outputs, file_hash, read_by, write_output


@checked
@dataclass(frozen=True)
class RetrievalOptions:
    """A BEIR folder with its split, the cutoffs, the runs to measure, and the files to write besides the result."""

    folder: Path
    split: str = "test"
    cutoffs: tuple[int, ...] = (10, 100)
    bm25: bool = True
    run: Path | None = None  # TREC runs: a file, or a folder for several
    per_query: Path | None = None  # a table of the first nDCG
    on_error: OnError = "fail"  # "skip": leave out rows of the corpus that cannot be documents, such as blank ones
    hybrid: bool = False  # also fuse each setting with BM25, by the recipe and by reciprocal ranks
    hybrid_weights: tuple[float, ...] = ()  # of convex combinations, instead of the recipe's
    query_vectors: Path | None = None  # embeddings of the queries by id, instead of encoding
    force: bool = False  # overwrite files
    also: Mapping[str, Path] = field(default_factory=dict)  # option -> file of the caller, to reject equal files
    rerank: RerankTask | None = None  # also measure each ranking after reranking

    def __post_init__(self) -> None:
        if not self.cutoffs or min(self.cutoffs) < 1:
            raise ConfigError(
                f"{spelled('cutoffs', '-k')} is {min(self.cutoffs, default='empty')}; expected whole numbers above 0."
            )
        if self.hybrid_weights and not self.hybrid:
            weights = spelled("hybrid_weights", "--hybrid-weight")
            raise ConfigError(f"{weights} applies to hybrids only. Fix: pass {as_argument('hybrid', True)} as well.")

    def fusions(self, config: HybridConfig) -> list[HybridConfig]:
        """Return the fusions to measure. Raises ConfigError for an invalid weight."""
        convex = [replace(config, fusion="convex", weight=weight) for weight in self.hybrid_weights or (config.weight,)]
        return [*convex, replace(config, fusion="rrf")] if self.hybrid else []


def other_labels(task: RetrievalOptions, labels: Sequence[str], config: HybridConfig) -> list[str]:
    """Return the labels of all runs besides the settings."""
    hybrids = [hybrid_label(label, fusion) for label in labels for fusion in task.fusions(config)]
    reranked = [reranked_label(label, task.rerank.depth) for label in (*labels, *hybrids)] if task.rerank else []
    return [*hybrids, *reranked, *[LABEL] * task.bm25]


def require_places(task: RetrievalOptions, subject: Target, runs: Mapping[str, Path]) -> None:
    """Check all outputs before hours of encoding."""
    run = as_argument("run")
    written = {f"{run} ({label})" if len(runs) > 1 else run: path for label, path in runs.items()}
    if task.per_query is not None:
        written[as_argument("per_query")] = task.per_query
    whitening, index = subject.config.whitening, subject.index.path if subject.index else None
    reads = read_by(task.folder, task.query_vectors, whitening.query_sample, subject.spec.folder, index)
    check_outputs({**written, **task.also}, reads, task.force)


DEPTH = 1000  # hits per query, as in TREC's runs; more if a cutoff needs more


@checked
def evaluate_retrieval(
    subject: Subject,
    task: RetrievalOptions,
    sweep: Sweep = Sweep(),  # noqa: B008 - frozen
    cache: Path | None = None,
    progress: Progress | None = None,
) -> Result:
    """Return a row for each setting, its hybrids, their reranked runs, and BM25, with paired differences.

    An index without a sweep is searched as it is. Otherwise settings are fitted on the corpus or on the index's raw
    embeddings, and searched exactly. Values of measures are from 0 to 1.
    Raises EvaluationError for errors in the folder, ConfigError for settings that cannot be measured (other layers or
    another pooling than the index), MachineError for missing packages, and what `Target` and `read_corpus` raise.
    """
    clock, subject, progress = Clock(), Target.of(subject), progress or NoProgress()
    for package in ("ir_measures", "pytrec_eval", *(("bm25s", "Stemmer") if task.bm25 or task.hybrid else ())):
        require_extra(package, "eval")
    require_queries(task.query_vectors, subject)
    if task.on_error == "skip" and subject.index:
        raise ConfigError(
            f"{as_argument('on_error', 'skip')} applies to a corpus, but {subject.index.path} is an index. Fix: "
            "leave it out."
        )
    settings = subject.settings(sweep)
    check_dimensions(settings, subject.spec)
    labels = [setting.label for setting in settings]
    others = other_labels(task, labels, subject.config.hybrid)
    runs = run_files(task.run, labels, others) if task.run else {}
    require_places(task, subject, runs)
    judged = read_judged(task.folder, task.split)
    source = subject.states(settings, cache, progress)
    evaluation = _Evaluation(task, subject, sweep, judged, source, progress)
    if missing := [label for label in others if task.run and label not in runs]:
        evaluation.notes.append(
            f"{task.run} contains only the run of the setting; name a folder to also write {' and '.join(missing)}"
        )
    measured = list(evaluation.measured(settings, runs))
    rows, pairs = compare(measured)
    if task.per_query:
        first = measure_names(task.cutoffs)[0]
        columns = {run.label: run.values[first] for run in measured}
        write_per_query(task.per_query, first, judged.judgements, columns, task.force)
    provenance = clock.provenance(subject.spec, evaluation.data, **evaluation.provenance)
    notes = list(dict.fromkeys(evaluation.notes))
    return Result("retrieval", provenance, rows, pairs, notes)


class _Evaluation:
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
        self._own = subject.index if sweep.is_empty else None  # an index that is searched as it is
        self._collection, data = open_collection(task.folder, subject, source, progress, task.on_error)
        self._names = list(self._collection.ids)
        self.data = judged.files | data
        self.notes = [
            *judged.notes,
            *self._collection.notes,
            *judged.match(set(self._names)),
            *_index_notes(subject, self._own is not None),
            *_query_notes(task, subject),
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

    def measured(self, settings: Sequence[Setting], files: dict[str, Path]) -> Iterator[MeasuredRun]:
        """Yield each setting with its hybrids, then BM25. `files` of runs are written on the way, to save memory."""
        if files:
            require_plain_ids([*self._judged.queries, *self._names], f"leave out {as_argument('run')}, or ")
        words = self._words() if self._needs_bm25 else None  # before hours of encoding
        baseline = self._bm25(words, files) if words and self._task.bm25 else None
        for run in self._runs(settings, words):
            self.notes += [run.note] * bool(run.note)
            facts = {
                "encoder": self._source.fingerprint(run.setting.key),
                "transform": run.transform,
                "dimensions": run.dimensions,
            }
            measured = self._judge(run.setting.label, run.setting, run.found, facts, files)
            yield replace(measured, values={**measured.values, **self._cut_off(run.at)})
            yield from self._reranked(measured, run.found, files)
            for fusion, hits in zip(self._fusions, run.hybrids, strict=True):
                label, parameters = hybrid_label(run.setting.label, fusion), fusion_parameters(fusion)
                fused = self._judge(label, run.setting, hits, facts | {"hybrid": parameters}, files)
                yield replace(fused, hybrid=fusion_name(parameters))
                yield from self._reranked(fused, hits, files)
            self._progress.advance(1)
        if baseline:
            yield baseline

    def _runs(self, settings: Sequence[Setting], words: BM25Ranking | None) -> Iterator[Run]:
        names, states, lengths, files = ask(self._task.query_vectors, self._judged.queries, self._subject, self._source)
        self.data |= files
        if not self._own:
            query_like = any(setting.whitening.centres_by_role for setting in settings)
            self.data |= self._query_file() if query_like else {}
            self._collection.prepare(query_like)
        self.notes += self._collection.notes  # with those on its queries
        self.notes += self._cut(count_cut(self._source, lengths or ()), self._collection.truncated)
        self._progress.phase("ranking", len(settings))
        asked = Asked(names, states, list(self._judged.queries.values()), self._depth, self._fusions, lengths)
        if self._reranker is not None:
            self._pairs = self._read_by(self._reranker, asked, settings[0])
        if self._own:
            yield run_of_index(self._own, settings[0], asked, self._task.cutoffs)
        else:
            yield from runs_of_settings(self._collection, settings, asked, self._places, words)

    def _query_file(self) -> dict[str, str]:
        """Return the hash of the recipe's file of queries, unless the index holds their mean."""
        whitening, index = self._subject.config.whitening, self._subject.index
        if index is not None and index.transform.query_mean is not None and whitening.centres_by_role:
            return {}
        digest = query_file_sha256(whitening.query_sample, "whitening.query_sample")
        return {"whitening.query_sample": digest} if digest else {}

    def _reranked(self, run: MeasuredRun, hits: list[SearchResult], files: dict[str, Path]) -> Iterator[MeasuredRun]:
        if self._task.rerank is None or self._pairs is None:
            return
        depth = self._task.rerank.depth
        reranked = rerank_run(self._pairs, hits, self._places, depth, self._progress)
        pairs = sum(min(depth, len(rows)) for _, rows in hits) / len(hits)
        rerank = {"of": run.label, "depth": depth, "ms": self._pairs.milliseconds(pairs)}
        facts = {name: value for name, value in run.facts.items() if name not in ("queries", "depth")}
        label = reranked_label(run.label, depth)
        yield replace(self._judge(label, run.setting, reranked, facts | {"rerank": rerank}, files), reranks=run.label)

    def _read_by(self, reranker: Reranker, asked: Asked, setting: Setting) -> PairScores:
        """Return scores of pairs with the best windows of a chunked index, else with whole documents."""
        texts = self._collection.texts()
        if self._own and not self._own.numbering.one_to_one:
            vectors = asked.vectors(self._own.transform, setting)
            return PairScores(reranker, asked.texts, best_windows(self._own, vectors, texts))
        if self._subject.config.chunk.tokens:
            self.notes.append("reranked by whole documents, truncated at the model's limit: windows need an index")
        return PairScores(reranker, asked.texts, whole_texts(texts))

    def _cut(self, queries: int, documents: int) -> Iterator[str]:
        limit = self._subject.spec.identity.max_length
        if queries:
            yield f"truncated at {limit} tokens: {counted(queries, 'query', 'queries')}"
        if documents:
            noun = "window" if self._subject.config.chunk.tokens else "document"
            yield f"truncated at {limit} tokens: {counted(documents, noun)}"

    @property
    def _needs_bm25(self) -> bool:
        return self._task.bm25 or self._task.hybrid

    def _words(self) -> BM25Ranking:
        """Return BM25 of the collection; for hybrids of an index the same as `isotrope query --hybrid`."""
        if self._own and self._fusions:
            return BM25Index(self._own, self._progress)
        self._progress.phase(LABEL, None)
        texts, starts = self._collection.bm25_texts(self._subject.config.hybrid.unit)
        return BM25Ranking.of(texts, self._places, self._subject.config.hybrid, "eval", starts)

    def _bm25(self, words: BM25Ranking, files: dict[str, Path]) -> MeasuredRun:
        hits = words.search(list(self._judged.queries.values()), self._depth)
        parameters = bm25_parameters(self._subject.config.hybrid)
        facts = {"encoder": None, "transform": None, "dimensions": None, "bm25": parameters}
        return self._judge(LABEL, None, hits, facts, files)

    def _judge(
        self,
        label: str,
        setting: Setting | None,
        hits: list[SearchResult],
        facts: dict[str, Any],
        files: dict[str, Path],
    ) -> MeasuredRun:
        queries = list(self._judged.queries)
        if label in files:
            lines = run_lines(run_tag(label), queries, self._names, hits)
            write_output(files[label], lines, as_argument("run"), self._task.force)
        values = measure(self._judged.judgements, ranked_ids(queries, hits, self._names), self._task.cutoffs)
        return MeasuredRun(label, setting, values, {"queries": len(queries), "depth": self._depth, **facts})

    def _cut_off(self, at: Mapping[int, list[SearchResult]]) -> dict[str, Float64Array]:
        """Return nDCG and recall at each k, from the hits of a search for k."""
        values: dict[str, Float64Array] = {}
        for k, hits in at.items():
            ranked = ranked_ids(self._judged.queries, hits, self._names)
            every = measure(self._judged.judgements, ranked, (k,))
            values |= {name: every[name] for name in every if name not in (MAP, MRR)}
        return values


def _index_notes(subject: Target, as_it_is: bool) -> Iterator[str]:
    """Yield a note on the searches if the index is approximate."""
    factories = [entry.factory for entry in subject.index.manifest.segments] if subject.index else []
    approximate = [name for name in factories or [ann.factory_of(subject.config.index.type)] if not ann.is_exact(name)]
    if approximate and as_it_is:
        yield (
            f"the index is approximate ({approximate[0]}): nDCG@k and R@k are from a search for k hits; MAP, MRR, run "
            "files and reranked rows are from a search for all hits, which may probe more"
        )
    elif approximate:
        yield (
            f"every vector was compared; the recipe's index ({approximate[0]}) is approximate and may find less. "
            f"Measure it with {spelled('the index', '--index')} and no settings"
        )


def _query_notes(task: RetrievalOptions, subject: Target) -> Iterator[str]:
    rerank, queries = subject.config.rerank, subject.config.queries
    if queries.encoder:
        yield (
            f"measured with the index's own encoder, not with the query encoder of the recipe, {queries.encoder}: "
            + spelled("measure it with distill_index", "measure it with isotrope distill --beir")
        )
    if rerank.model and task.rerank is None:
        yield (
            f"measured without the reranking of the recipe, the first {rerank.depth:,} hits by {rerank.model}: pass "
            + spelled(
                f'rerank=RerankTask("{rerank.model}", {rerank.depth})',
                f"--rerank {rerank.model} --rerank-depth {rerank.depth}",
            )
        )


def require_queries(path: Path | None, subject: Target, argument: str = "query_vectors") -> None:
    """Raise ConfigError for query texts without an encoder, and for query embeddings without an index.

    `argument` is the argument of `path`.
    """
    if path is None and not subject.spec.traits.encodes_texts:
        raise ConfigError(
            f"{cannot_encode(subject.spec)} Fix: name the embeddings of the queries: "
            f"{spelled(f'{argument}=FILE.npy', f'{as_argument(argument)} FILE.npy')}, with their ids in FILE.ids.txt."
        )
    if subject.index is None and (path or not subject.spec.traits.encodes_texts):
        fix = spelled("build it and measure it", "build it and name it with --index")
        raise ConfigError(f"given embeddings can only be measured on an index. Fix: {fix}.")


def ask(
    path: Path | None, queries: Mapping[str, str], subject: Target, source: EmbeddingSource
) -> tuple[list[str], TextEmbeddings, list[int] | None, dict[str, str]]:
    """Return the names of queries (id -> text) in their embeddings, the embeddings, their lengths, and file hashes.

    Queries are encoded, or read from the file `path` (see `read_query_embeddings`), which has no lengths.
    """
    if path is None:
        texts = list(queries.values())
        return texts, *encode_with_lengths(source, texts, "query"), {}
    names = list(queries)
    dim = subject.index.manifest.encoder["dim"] if subject.index else 0
    states = {source.keys[0]: read_query_embeddings(path, names, dim)}
    rows = {name: row for row, name in enumerate(names)}
    return names, TextEmbeddings(rows, states), None, {path.name: file_hash(path)}
