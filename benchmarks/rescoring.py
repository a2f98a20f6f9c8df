"""Vectors that are found, moved or marked down in other ways: what was tried for better answers.

    python -m benchmarks.rescoring --of INDEX FOLDER [--of INDEX FOLDER ...] [-o FILE]

FOLDER is a judged collection in BEIR's layout; INDEX was built from it, a document a row. nDCG@10 of the vectors alone,
in the index's own recipe, and by each way:

    feedback    the query is moved towards the mean of the documents that it finds first (Rocchio, 1971)
    hubs        a document is marked down by the mean of its ten best scores with query-like texts (Bogolin et al.,
                QB-Norm, CVPR 2022, and Chowdhury et al., NNN, 2024, in their simplest form)
    neighbours  a document is moved towards the mean of those nearest to it
    dimensions  of each query the half of the dimensions that count most in what it finds first (Faggioli et al.,
                Dimension Importance Estimation, SIGIR 2024); ECLIPSE takes off what counts in what it finds last
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
import numpy as np

from benchmarks.interleaved import machine, save
from benchmarks.judged import Collection, judged_options
from indexer.arrays import RowIds, Scores, Vectors
from indexer.corpus.document import pseudo_query
from search.cli.output import print_table

_QUERY_LIKE, _HUB_NEIGHBOURS, _LAST = 2000, 10, 10


@dataclass(frozen=True)
class Asked:
    """Queries (m, k), documents (n, k) and query-like texts (t, k), each with its document, of unit length."""

    queries: Vectors
    documents: Vectors
    likely: Vectors
    source: RowIds

    @property
    def scores(self) -> Scores:
        """Of the vectors alone, (m, n)."""
        return self.queries @ self.documents.T


def _unit(vectors: Vectors) -> Vectors:
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12), np.float32)


def _first(scores: Scores, count: int) -> RowIds:
    return np.argsort(-scores, axis=1, kind="stable")[:, :count]


def feedback(asked: Asked, documents: int, weight: float) -> Scores:
    """The query moved towards its first documents."""
    mean = asked.documents[_first(asked.scores, documents)].mean(axis=1)
    return _unit((1 - weight) * asked.queries + weight * mean) @ asked.documents.T


def hubs(asked: Asked, weight: float) -> Scores:
    """Documents marked down that are near to everything."""
    likely = asked.likely @ asked.documents.T
    likely[np.arange(len(likely)), asked.source] = -1.0  # a title is near to its own document
    best = -np.partition(-likely, _HUB_NEIGHBOURS, axis=0)[:_HUB_NEIGHBOURS]
    return np.asarray(asked.scores - np.float32(weight) * best.mean(axis=0))


def neighbours(asked: Asked, weight: float, count: int = 5) -> Scores:
    """Documents moved towards those nearest to them."""
    near = asked.documents @ asked.documents.T
    np.fill_diagonal(near, -1.0)
    mean = asked.documents[_first(near, count)].mean(axis=1)
    return asked.queries @ _unit((1 - weight) * asked.documents + weight * mean).T


def dimensions(asked: Asked, documents: int, last: float = 0.0) -> Scores:
    """Half of the dimensions of each query."""
    order = np.argsort(-asked.scores, axis=1, kind="stable")
    target = asked.documents[order[:, :documents]].mean(axis=1)
    if last:
        target = target - np.float32(last) * asked.documents[order[:, -_LAST:]].mean(axis=1)
    importance = asked.queries * target
    kept = importance >= np.median(importance, axis=1, keepdims=True)
    return np.where(kept, asked.queries, np.float32(0)) @ asked.documents.T


WAYS: dict[str, Callable[[Asked], Scores]] = {
    "vectors alone": lambda asked: asked.scores,
    **{
        f"feedback: {count} documents, weight {weight}": partial(feedback, documents=count, weight=weight)
        for count, weight in ((2, 0.1), (2, 0.4), (5, 0.1), (5, 0.4))
    },
    **{f"hubs: weight {weight}": partial(hubs, weight=weight) for weight in (0.1, 0.5, 1.0)},
    **{f"neighbours: 5, weight {weight}": partial(neighbours, weight=weight) for weight in (0.1, 0.4)},
    "dimensions: half, by 3 documents": partial(dimensions, documents=3),
    "dimensions: half, by 3 and the last 10": partial(dimensions, documents=3, last=0.5),
}


def asked_of(collection: Collection) -> Asked:
    """What the ways are tried on."""
    drawn = np.random.default_rng(0).permutation(len(collection.documents))[:_QUERY_LIKE]
    source = np.array([row for row in drawn.tolist() if pseudo_query(collection.documents[row])], np.int64)
    likely = collection.embed([pseudo_query(collection.documents[row]) for row in source.tolist()])
    return Asked(collection.embed(list(collection.questions.values())), collection.vectors, likely, source)


@click.command()
@judged_options
def main(judged: Sequence[tuple[Path, Path]], output: Path | None) -> None:
    """Vectors found, moved or marked down in other ways."""
    collections = [Collection.opened(index, folder) for index, folder in judged]
    asked = [asked_of(collection) for collection in collections]
    results = [
        {"collection": of.name, "encoder": of.model, "way": name, "nDCG@10": of.ndcg(way(each))}
        for name, way in WAYS.items()
        for of, each in zip(collections, asked, strict=True)
    ]
    figures = {(row["way"], row["collection"], row["encoder"]): f"{row['nDCG@10']:.1f}" for row in results}
    heads = [f"{of.name}, {of.model}" for of in collections]
    print_table(
        ["nDCG@10", *heads], [[name, *(figures[name, of.name, of.model] for of in collections)] for name in WAYS]
    )
    if output:
        save(output, {"machine": machine(1), "command": sys.argv[1:], "results": results})


if __name__ == "__main__":
    main()
