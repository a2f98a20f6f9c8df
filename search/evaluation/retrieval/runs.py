"""A run: what a setting, by exact search, or an index as it ships ranks for every query.

Files of one query at a time: TREC runs, which other tools can judge, and a table of scores per query.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from indexer import ann
from indexer.arrays import Float64Array, RowIds, SearchResult, Vectors
from indexer.errors import ConfigError
from indexer.recipe.ranking import HybridConfig
from indexer.system.output_files import is_stream
from indexer.transforms import Transform
from search.evaluation.embeddings import TextEmbeddings
from search.evaluation.retrieval.corpus import SearchedCorpus
from search.evaluation.retrieval.exact_fusion import Candidates, ComparedRows, candidates_of
from search.evaluation.settings import Setting, fit_setting, transform_hash
from search.files import write_output
from search.index import Index
from search.ranking.bm25 import BM25Ranking
from search.ranking.documents import RankedDocument
from search.ranking.exact import exact_top_k
from search.ranking.fusion import fusion_name, fusion_parameters
from search.ranking.options import SearchOptions
from search.ranking.ranker import DocumentRanker, EncodedQueries

_ENDING = ".run"


def run_files(target: Path, settings: Sequence[str], baselines: Sequence[str]) -> dict[str, Path]:
    """Label -> the file of its run.

    A single setting's run is `target` itself, unless that is a folder; several, and then those of `baselines`
    too, each have a file in the folder `target`. Raises ConfigError when it is a file.
    """
    if len(settings) == 1 and not target.is_dir():
        return {settings[0]: target}
    if is_stream(target) or target.is_file():
        raise ConfigError(f"--run {target} is no folder, but there are {len(settings)} settings; name a folder.")
    return {label: target / f"{run_tag(label)}{_ENDING}" for label in (*settings, *baselines)}


def run_tag(label: str) -> str:
    """A label as one word, for names of files and the last column of a run."""
    return re.sub(r"\s+", "_", label)


def write_per_query(
    path: Path,
    measure: str,
    judgements: Mapping[str, Mapping[str, int]],
    columns: Mapping[str, Float64Array],
    force: bool = False,
) -> None:
    """Tab-separated: query id, relevant documents, then `measure` from 0 to 1 for each of `columns` (label -> (n,))."""
    lines = ["\t".join(["query-id", "relevant", *(f"{measure} {label}" for label in columns)])]
    for number, (query, relevances) in enumerate(judgements.items()):
        relevant = sum(value > 0 for value in relevances.values())
        lines.append("\t".join([query, str(relevant), *(f"{values[number]:.6f}" for values in columns.values())]))
    write_output(path, ("\n".join(lines) + "\n").encode(), "--per-query", force)


@dataclass(frozen=True)
class Run:
    """What one setting found for every query, and the transform that made its vectors."""

    setting: Setting
    found: list[SearchResult]
    dimensions: int
    transform: str  # sha256
    note: str = ""  # what the fit could not do as asked
    at: Mapping[int, list[SearchResult]] = field(default_factory=dict)  # k -> what was found when asked for k hits
    hybrids: Sequence[list[SearchResult]] = ()  # what each of `Asked.fusions` found


@dataclass(frozen=True)
class Asked:
    """The queries, how many documents are wanted of each, and the fusions with BM25 that are measured beside vectors.

    `names` are what queries go by in `states`, `texts` are what BM25 reads. `lengths` are tokens of each, as
    `EncodeStats` has them, where texts were encoded: BM25 alone answers what the encoder knows nothing of.
    """

    names: Sequence[str]
    states: TextEmbeddings
    texts: Sequence[str]
    depth: int
    fusions: Sequence[HybridConfig] = ()
    lengths: Sequence[int] | None = None

    def vectors(self, transform: Transform, setting: Setting) -> Vectors:
        """Of the queries, (n, k)."""
        return transform.transform(self.states.of(self.names, setting.key), "query")


def runs_of_settings(
    collection: SearchedCorpus,
    settings: Sequence[Setting],
    asked: Asked,
    places: RowIds,
    words: BM25Ranking | None = None,
) -> Iterator[Run]:
    """Each setting fitted on the collection and searched exactly; `words` are needed for fusions."""
    for setting in settings:
        transform = _fitted(collection, setting)
        vectors, rows = asked.vectors(transform, setting), ComparedRows(collection, setting.key, transform)
        found = exact_top_k(vectors, rows.blocks(), places, asked.depth, collection.document_of)
        hybrids: list[list[SearchResult]] = []
        if words is not None and asked.fusions:
            both = candidates_of(rows, vectors, found, words.scored(asked.texts, asked.depth))
            hybrids = [_fused(both, config, asked, places) for config in asked.fusions]
        note = transform.settings()["note"]
        yield Run(setting, found, transform.dim, transform_hash(transform), note, hybrids=hybrids)


def run_of_index(index: Index, setting: Setting, asked: Asked, cutoffs: Sequence[int]) -> Run:
    """The index itself is asked: its own transform and its own segments, ties by id as the engine puts them.

    An approximate index looks further when it is asked for more, so that its first ten of a thousand hits are not
    the ten it gives: it is also asked for each of `cutoffs` that is less than the depth.
    """
    vectors, depth = asked.vectors(index.transform, setting), asked.depth
    exact = all(ann.is_exact(entry.factory) for entry in index.manifest.segments)
    at = {k: ask_index(index, vectors, k) for k in cutoffs if k < depth and not exact}
    digest = index.manifest.files[index.manifest.transform["file"]].sha256
    queries, options = EncodedQueries(vectors, None, asked.texts, asked.lengths), SearchOptions(depth, hybrid=True)
    hybrids = [_numbers(DocumentRanker(index, config).rank(queries, options)) for config in asked.fusions]
    return Run(setting, ask_index(index, vectors, depth), index.transform.dim, digest, at=at, hybrids=hybrids)


def ask_index(index: Index, vectors: npt.NDArray[np.float32], depth: int) -> list[SearchResult]:
    """The `depth` documents that an index gives for each vector (n, dim), as its engine ranks them."""
    return _numbers(DocumentRanker(index).rank(EncodedQueries(vectors), SearchOptions(depth)))


def _fused(both: Sequence[Candidates], config: HybridConfig, asked: Asked, places: RowIds) -> list[SearchResult]:
    """What one fusion finds for every query; for one that the encoder knows nothing of, by words alone."""
    of_words, found = replace(config, weight=0.0), []
    for query, one in enumerate(both):
        if asked.lengths is None or asked.lengths[query]:
            found.append(one.fused(config, places, asked.depth))
        else:
            found.append(replace(one, near=one.near[:0]).fused(of_words, places, asked.depth))
    return found


def _numbers(answers: Sequence[Sequence[RankedDocument]]) -> list[SearchResult]:
    found = []
    for ranked in answers:
        scores = np.array([one.score for one in ranked], np.float32)
        found.append((scores, np.array([one.document for one in ranked], np.int64)))
    return found


def _fitted(collection: SearchedCorpus, setting: Setting) -> Transform:
    queries = collection.query_moments(setting.key) if setting.whitening.centres_by_role else None
    return fit_setting(setting, collection.material(setting.key), queries)


def hybrid_label(setting: str, fusion: HybridConfig) -> str:
    """What a setting fused with BM25 is called."""
    return f"hybrid {fusion_name(fusion_parameters(fusion))} {setting}"
