"""Runs: the rankings of a setting by exact search, or of an index, for every query.

Their files are TREC runs, which other tools can evaluate, and a table of scores by query.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from indexer import ann
from indexer.arrays import Float64Array, RowIds, SearchResult, Vectors
from indexer.errors import ConfigError, as_argument
from indexer.models.identity import PoolingKey
from indexer.recipe.ranking import HybridConfig
from indexer.system.output_files import is_stream
from indexer.transforms import Transform
from search.evaluation.embeddings import TextEmbeddings
from search.evaluation.retrieval.corpus import SearchedCorpus
from search.evaluation.sweep import Setting, fit_setting, transform_hash
from search.index import Index
from search.ranking.bm25 import BM25Ranking, WordScores
from search.ranking.documents import RankedDocument
from search.ranking.exact import exact_scores, exact_top_k
from search.ranking.fusion import (
    BothScores,
    Spread,
    drawn_rows,
    fusion_name,
    fusion_parameters,
    list_depth,
    reciprocal_rank_fusion,
)
from search.ranking.options import SearchOptions
from search.ranking.ranker import DocumentRanker, EncodedQueries
from search.result_files import write_output

_ENDING = ".run"


def run_files(target: Path, settings: Sequence[str], baselines: Sequence[str]) -> dict[str, Path]:
    """Return the file of each run by label.

    The run of a single setting is `target` itself, unless it is a folder. Otherwise every setting and every baseline
    has a file in the folder `target`. Raises ConfigError if it is a file.
    """
    if len(settings) == 1 and not target.is_dir():
        return {settings[0]: target}
    if is_stream(target) or target.is_file():
        raise ConfigError(f"{as_argument('run')} {target}: expected a folder for {len(settings)} settings, not a file.")
    return {label: target / f"{run_tag(label)}{_ENDING}" for label in (*settings, *baselines)}


def run_tag(label: str) -> str:
    """Return a label as one word, for names of files and the last column of a run."""
    return re.sub(r"\s+", "_", label)


def write_per_query(
    path: Path,
    measure: str,
    judgements: Mapping[str, Mapping[str, int]],
    columns: Mapping[str, Float64Array],
    force: bool = False,
) -> None:
    """Write a tab-separated table: query id, number of relevant documents, and `measure` (0 to 1) for each column."""
    lines = ["\t".join(["query-id", "relevant", *(f"{measure} {label}" for label in columns)])]
    for number, (query, relevances) in enumerate(judgements.items()):
        relevant = sum(value > 0 for value in relevances.values())
        lines.append("\t".join([query, str(relevant), *(f"{values[number]:.6f}" for values in columns.values())]))
    write_output(path, ("\n".join(lines) + "\n").encode(), as_argument("per_query"), force)


@dataclass(frozen=True)
class Run:
    """The hits of a setting for every query, and the transform of its vectors."""

    setting: Setting
    found: list[SearchResult]
    dimensions: int
    transform: str  # sha256
    note: str = ""  # on a fit that deviates from the request
    at: Mapping[int, list[SearchResult]] = field(default_factory=dict)  # k -> hits of a search for k
    hybrids: Sequence[list[SearchResult]] = ()  # hits of each of `Asked.fusions`


@dataclass(frozen=True)
class Asked:
    """The queries, the number of hits to search for, and the fusions with BM25 to measure.

    `names` identify queries in `states`, `texts` are for BM25. `lengths` are the tokens of each encoded query; a query
    without tokens is answered by BM25 alone.
    """

    names: Sequence[str]
    states: TextEmbeddings
    texts: Sequence[str]
    depth: int
    fusions: Sequence[HybridConfig] = ()
    lengths: Sequence[int] | None = None

    def vectors(self, transform: Transform, setting: Setting) -> Vectors:
        """Return the vectors of the queries, (n, k)."""
        return transform.transform(self.states.of(self.names, setting.key), "query")


def runs_of_settings(
    collection: SearchedCorpus,
    settings: Sequence[Setting],
    asked: Asked,
    places: RowIds,
    words: BM25Ranking | None = None,
) -> Iterator[Run]:
    """Yield the run of each setting, fitted on the collection and searched exactly; fusions need `words`."""
    for setting in settings:
        queries = collection.query_moments(setting.key) if setting.whitening.centres_by_role else None
        transform = fit_setting(setting, collection.material(setting.key), queries)
        vectors, rows = asked.vectors(transform, setting), ComparedRows(collection, setting.key, transform)
        hits = exact_top_k(vectors, rows.blocks(), places, asked.depth, collection.document_of)
        hybrids: list[list[SearchResult]] = []
        if words is not None and asked.fusions:
            both = candidates_of(rows, vectors, hits, words.scored(asked.texts, asked.depth))
            hybrids = [_fused(both, config, asked, places) for config in asked.fusions]
        note = transform.settings()["note"]
        yield Run(setting, hits, transform.dim, transform_hash(transform), note, hybrids=hybrids)


def run_of_index(index: Index, setting: Setting, asked: Asked, cutoffs: Sequence[int]) -> Run:
    """Return the run of an index with its own transform and segments, ties by id as in the engine.

    A larger depth makes an approximate index probe more, so the first ten of a thousand hits can differ from a search
    for ten. It is therefore also searched for each of `cutoffs` below the depth.
    """
    vectors, depth = asked.vectors(index.transform, setting), asked.depth
    exact = all(ann.is_exact(entry.factory) for entry in index.manifest.segments)
    at = {k: ask_index(index, vectors, k) for k in cutoffs if k < depth and not exact}
    digest = index.manifest.files[index.manifest.transform["file"]].sha256
    queries, options = EncodedQueries(vectors, None, asked.texts, asked.lengths), SearchOptions(depth, hybrid=True)
    hybrids = [_numbers(DocumentRanker(index, config).rank(queries, options)) for config in asked.fusions]
    return Run(setting, ask_index(index, vectors, depth), index.transform.dim, digest, at=at, hybrids=hybrids)


def ask_index(index: Index, vectors: npt.NDArray[np.float32], depth: int) -> list[SearchResult]:
    """Return the first `depth` documents of an index for each vector (n, dim), as its engine ranks them."""
    return _numbers(DocumentRanker(index).rank(EncodedQueries(vectors), SearchOptions(depth)))


def _numbers(answers: Sequence[Sequence[RankedDocument]]) -> list[SearchResult]:
    return [
        (np.array([hit.score for hit in ranked], np.float32), np.array([hit.document for hit in ranked], np.int64))
        for ranked in answers
    ]


def hybrid_label(setting: str, fusion: HybridConfig) -> str:
    """Return the label of a setting fused with BM25."""
    return f"hybrid {fusion_name(fusion_parameters(fusion))} {setting}"


# Fusion with BM25 by exact search: `search.ranking.hybrid` for a setting without an index. The scores equal those of an
# index of the setting: every candidate is scored in both lists, and the same rows serve as random documents.


@dataclass(frozen=True)
class ComparedRows:
    """The vectors of a collection by a fitted transform, computed on each read."""

    collection: SearchedCorpus
    key: PoolingKey
    transform: Transform

    def blocks(self) -> Iterator[Vectors]:
        """Yield all vectors in order, (m, k)."""
        return (self.transform.transform(block, "document") for block in self.collection.blocks(self.key))

    def drawn(self) -> Vectors:
        """Return the vectors of the random documents, (m, k)."""
        rows, selected, first = drawn_rows(sum(map(len, self.collection.blocks(self.key)))), [], 0
        for block in self.collection.blocks(self.key):
            selected.append(block[rows[(rows >= first) & (rows < first + len(block))] - first])
            first += len(block)
        return self.transform.transform(np.concatenate(selected), "document")


@dataclass(frozen=True)
class Candidates:
    """The documents of either list of a query, (m,), and their scores; `near` and `words` are the lists."""

    documents: RowIds
    scores: BothScores
    near: RowIds
    words: RowIds

    def fused(self, config: HybridConfig, places: RowIds, depth: int) -> SearchResult:
        """Return the best `depth` documents by one fusion, ties by id."""
        if config.fusion == "rrf":
            ranked = reciprocal_rank_fusion([self.near.tolist(), self.words.tolist()], list_depth(depth))
            documents = np.array([document for _, document in ranked], np.int64)
            scores = np.array([score for score, _ in ranked])
        else:
            hits = self.scores.found(config)
            documents, scores = self.documents[hits], self.scores.combined(config)[hits]
        best = np.lexsort((places[documents], -scores))[:depth]
        return scores[best].astype(np.float32), documents[best]


def candidates_of(
    rows: ComparedRows, vectors: Vectors, near: Sequence[SearchResult], words: Iterator[WordScores]
) -> list[Candidates]:
    """Return the hits `near` of the vectors (n, k) of queries and the hits of BM25, scored in both lists."""
    lists, documents, bm25 = [], [], []
    for hits, (_, numbers) in zip(words, near, strict=True):
        documents.append(np.unique(np.concatenate([numbers, hits.best])))
        lists.append(hits.best)
        bm25.append((hits.scores[documents[-1]], Spread.of(hits.scores)))
    scored = exact_scores(vectors, rows.blocks(), documents, rows.collection.document_of)
    drawn = rows.drawn().astype(np.float64)
    candidates = []
    for query, (_, numbers) in enumerate(near):
        chance = Spread.of(np.einsum("nd,d->n", drawn, vectors[query].astype(np.float64)))
        scores = BothScores(scored[query], bm25[query][0], chance, bm25[query][1])
        candidates.append(Candidates(documents[query], scores, numbers, lists[query]))
    return candidates


def _fused(both: Sequence[Candidates], config: HybridConfig, asked: Asked, places: RowIds) -> list[SearchResult]:
    """Return the hits of one fusion for every query; of BM25 alone for queries without tokens."""
    bm25_only, hits = replace(config, weight=0.0), []
    for query, candidates in enumerate(both):
        if asked.lengths is None or asked.lengths[query]:
            hits.append(candidates.fused(config, places, asked.depth))
        else:
            hits.append(replace(candidates, near=candidates.near[:0]).fused(bm25_only, places, asked.depth))
    return hits
