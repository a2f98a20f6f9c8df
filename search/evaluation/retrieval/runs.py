"""A run: what a setting, by exact search, or an index as it ships ranks for every query.

Files of one query at a time: TREC runs, which other tools can judge, and a table of scores per query.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from indexer import ann
from indexer.arrays import Float64Array, RowIds, SearchResult
from indexer.errors import ConfigError
from indexer.output_files import is_stream
from indexer.transforms import Transform
from search.evaluation.embeddings import TextEmbeddings
from search.evaluation.retrieval.corpus import SearchedCorpus
from search.evaluation.settings import Setting, fit_setting, transform_hash
from search.files import write_output
from search.index import Index
from search.ranking.exact import exact_top_k
from search.ranking.ranker import DocumentRanker, EncodedQueries, SearchOptions

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


def runs_of_settings(
    collection: SearchedCorpus, settings: Sequence[Setting], states: TextEmbeddings, queries: Sequence[str], depth: int,
    places: RowIds,
) -> Iterator[Run]:  # fmt: skip
    """Each setting fitted on the collection and searched exactly. `states` hold the embeddings of `queries`."""
    for setting in settings:
        transform = _fitted(collection, setting)
        vectors = transform.transform(states.of(queries, setting.key), "query")
        blocks = (transform.transform(block, "document") for block in collection.blocks(setting.key))
        found = exact_top_k(vectors, blocks, places, depth, collection.document_of)
        yield Run(setting, found, transform.dim, transform_hash(transform), transform.settings()["note"])


def run_of_index(
    index: Index, setting: Setting, states: TextEmbeddings, queries: Sequence[str], depth: int, cutoffs: Sequence[int]
) -> Run:
    """The index itself is asked: its own transform and its own segments, ties by id as the engine puts them.

    An approximate index looks further when it is asked for more, so that its first ten of a thousand hits are not
    the ten it gives: it is also asked for each of `cutoffs` that is less than `depth`.
    """
    vectors = index.transform.transform(states.of(queries, setting.key), "query")
    exact = all(ann.is_exact(entry.factory) for entry in index.manifest.segments)
    at = {k: ask_index(index, vectors, k) for k in cutoffs if k < depth and not exact}
    digest = index.manifest.files[index.manifest.transform["file"]].sha256
    return Run(setting, ask_index(index, vectors, depth), index.transform.dim, digest, at=at)


def ask_index(index: Index, vectors: npt.NDArray[np.float32], depth: int) -> list[SearchResult]:
    """The `depth` documents that an index gives for each vector (n, dim), as its engine ranks them."""
    found = []
    for ranked in DocumentRanker(index).rank(EncodedQueries(vectors), SearchOptions(depth)):
        scores = np.array([one.score for one in ranked], np.float32)
        found.append((scores, np.array([one.document for one in ranked], np.int64)))
    return found


def _fitted(collection: SearchedCorpus, setting: Setting) -> Transform:
    queries = collection.query_moments(setting.key) if setting.whitening.centres_by_role else None
    return fit_setting(setting, collection.material(setting.key), queries)


def hybrid_label(setting: str) -> str:
    """What the hybrid of a setting is called."""
    return f"hybrid {setting}"
