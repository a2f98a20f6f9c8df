"""A judged collection in BEIR's layout with its index, for measurements that no command of isotrope makes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import click
import numpy as np

from indexer.arrays import Float64Array, RowIds, Scores, Vectors
from indexer.corpus.document import Document, joined_text
from indexer.recipe.config import BuildConfig
from search.engine import SearchEngine
from search.evaluation.retrieval.beir import read_judged
from search.evaluation.retrieval.metrics import measure
from search.ranking.bm25 import BM25Ranking
from search.ranking.exact import id_order


@dataclass(frozen=True)
class Collection:
    """An open index with the questions of its collection, in the order of the rows of scores (questions, documents)."""

    name: str
    engine: SearchEngine
    documents: list[Document]
    vectors: Vectors
    questions: Mapping[str, str]
    judged: Mapping[str, Mapping[str, int]]

    @classmethod
    def opened(cls, index: Path, folder: Path) -> "Collection":
        """Open an index with the judged questions of a folder. Raises UsageError unless each document is a row."""
        engine = SearchEngine(index)
        if engine.index.manifest.rows != engine.index.manifest.documents or engine.index.manifest.deleted:
            raise click.UsageError(
                f"{index}: some documents are cut into windows, or deleted; expected one row for each."
            )
        documents = list(engine.index.documents.all_documents())
        vectors = engine.index.vectors(np.arange(len(documents)))
        judged = read_judged(folder)
        questions = dict(sorted(judged.queries.items()))
        return cls(folder.resolve().name, engine, documents, vectors, questions, judged.judgements)

    @property
    def model(self) -> str:
        """The encoder's name without its folder."""
        return encoder_name(self.engine.index.config)

    @cached_property
    def rows(self) -> dict[str, int]:
        """Document id -> its number."""
        return {document.id: row for row, document in enumerate(self.documents)}

    @cached_property
    def places(self) -> RowIds:
        """The order of the documents by `id_order`."""
        return id_order([document.id for document in self.documents])

    @cached_property
    def texts(self) -> list[str]:
        """The encoded text of each document."""
        return [joined_text(document, self.engine.index.config.corpus.text) for document in self.documents]

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return vectors of texts as queries, (texts, k)."""
        return np.asarray(self.engine.embed(list(texts), "query"))

    def scores(self, texts: Sequence[str]) -> Scores:
        """Return scores of texts as queries with all documents, (texts, documents)."""
        return self.embed(texts) @ self.vectors.T

    def bm25(self, texts: Sequence[str]) -> Scores:
        """Return BM25 scores of texts with all documents, (texts, documents)."""
        ranking = BM25Ranking.of(self.texts, self.places, self.engine.index.config.hybrid, "eval")
        return np.stack(list(ranking.scores(texts)))

    def ndcg(self, scores: Scores | Float64Array) -> float:
        """Return nDCG@10 x 100 of the questions by scores (questions, documents), with ties in order of id."""
        ranked = {}
        for question, row in zip(self.questions, scores, strict=True):
            best = np.lexsort((self.places, -row))[:10]
            ranked[question] = [self.documents[number].id for number in best.tolist()]
        judgements = {question: self.judged[question] for question in self.questions}
        return 100 * float(measure(judgements, ranked, (10,))["nDCG@10"].mean())


def encoder_name(config: BuildConfig) -> str:
    """Return the name of a recipe's model without its folder."""
    path = Path(config.encoder.model.rstrip("/"))
    return path.parent.name if path.name == "model" else path.name


def judged_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options `--of INDEX FOLDER` (`judged`, repeatable) and `-o FILE` (`output`) to a command."""
    kind = (click.Path(path_type=Path), click.Path(path_type=Path))
    command = click.option("--of", "judged", type=kind, multiple=True, required=True)(command)
    return click.option("-o", "--output", type=click.Path(path_type=Path))(command)
