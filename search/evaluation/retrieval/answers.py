"""What settings find: each one's ranking for every query, by exact search or by the index that ships."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from indexer import ann
from indexer.arrays import RowIds, SearchResult
from indexer.transforms import Transform
from search.evaluation.fits import fit_setting, transform_hash
from search.evaluation.retrieval.collection import Collection
from search.evaluation.settings import Setting
from search.evaluation.states import States
from search.finding import Finder
from search.opened import OpenIndex
from search.ranking import rank_blocks
from search.request import Request

_QUERIES = 256  # an index is asked at once


@dataclass(frozen=True)
class Answers:
    """What one setting found for every query, and the transform that made its vectors."""

    setting: Setting
    found: list[SearchResult]
    dimensions: int
    transform: str  # sha256
    note: str = ""  # what the fit could not do as asked
    at: Mapping[int, list[SearchResult]] = field(default_factory=dict)  # k -> what was found when asked for k hits


def fitted_answers(
    collection: Collection, settings: Sequence[Setting], states: States, queries: Sequence[str], depth: int,
    places: RowIds,
) -> Iterator[Answers]:  # fmt: skip
    """Each setting fitted on the collection and searched exactly. `states` hold the embeddings of `queries`."""
    for setting in settings:
        transform = _fitted(collection, setting)
        vectors = transform.transform(states.of(queries, setting.key), "query")
        blocks = (transform.transform(block, "document") for block in collection.blocks(setting.key))
        found = rank_blocks(vectors, blocks, places, depth, collection.document_of)
        yield Answers(setting, found, transform.dim, transform_hash(transform), transform.settings()["note"])


def index_answers(
    opened: OpenIndex, setting: Setting, states: States, queries: Sequence[str], depth: int, cutoffs: Sequence[int]
) -> Answers:
    """The index itself is asked: its own transform and its own segments, ties by id as the engine puts them.

    An approximate index looks further when it is asked for more, so that its first ten of a thousand hits are not
    the ten it gives: it is also asked for each of `cutoffs` that is less than `depth`.
    """
    vectors = opened.transform.transform(states.of(queries, setting.key), "query")
    exact = all(ann.is_exact(entry.factory) for entry in opened.manifest.segments)
    at = {k: ask_index(opened, vectors, k) for k in cutoffs if k < depth and not exact}
    digest = opened.manifest.files[opened.manifest.transform["file"]].sha256
    return Answers(setting, ask_index(opened, vectors, depth), opened.transform.dim, digest, at=at)


def ask_index(opened: OpenIndex, vectors: npt.NDArray[np.float32], depth: int) -> list[SearchResult]:
    """The `depth` documents that an index gives for each vector (n, dim), as its engine ranks them."""
    finder, found = Finder(opened), []
    for start in range(0, len(vectors), _QUERIES):
        for ranked in finder.find(vectors[start : start + _QUERIES], Request(depth), None):
            scores = np.array([place.score for place in ranked], np.float32)
            found.append((scores, np.array([place.document for place in ranked], np.int64)))
    return found


def _fitted(collection: Collection, setting: Setting) -> Transform:
    queries = collection.query_moments(setting.key) if setting.whitening.centres_by_role else None
    return fit_setting(setting, collection.material(setting.key), queries)
