"""Measuring settings on questions drawn from the documents themselves: nothing but the sampled pairs is encoded."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from indexer.config import Role
from indexer.corpus.document import Document
from indexer.encoders.chunker import DocumentChunker
from indexer.encoders.identity import PoolingKey
from indexer.moments import Moments
from indexer.progress import NoProgress, Progress
from search.evaluation.settings import Setting, state_keys
from search.evaluation.states import Rows
from search.evaluation.subject import Subject
from search.evaluation.tune.objective import Measured, Questions, measure
from search.evaluation.tune.pairs import Pair, draw_copies, draw_pairs

Objective = Literal["retrieval", "sts"]


@dataclass
class LabelFree:
    """Pairs of a corpus, encoded once for every layer and pooling of `settings`.

    For retrieval a piece of a document asks for the rest of it; for STS two broken copies of a document ask for
    each other, and both sides are treated as documents. Where documents are chunked, what is asked for is, and counts
    by its best window; the broken copies stay whole.
    """

    subject: Subject
    documents: Callable[[], Iterable[Document]]
    objective: Objective
    size: int
    cache: Path | None = None
    progress: Progress = field(default_factory=NoProgress)

    def prepare(self, settings: Sequence[Setting]) -> None:
        """Draw the pairs and encode them."""
        draw = draw_pairs if self.objective == "retrieval" else draw_copies
        self.progress.phase("reading", None)
        self.pairs: list[Pair] = draw(self._watched(), self.subject.config.corpus.text, self.size)
        role: Role = "query" if self.objective == "retrieval" else "document"
        self.source = self.subject.states(list(settings), self.cache, self.progress)
        queries, answers = [pair.query for pair in self.pairs], [pair.document for pair in self.pairs]
        starts = np.arange(len(answers))
        if self.objective == "retrieval":
            answers, starts = self._rows(answers)
        asked, rest = self.source.encode(queries, role), self.source.encode(answers, "document")
        keys = state_keys(settings)
        documents = {key: rest.of(answers, key) for key in keys}
        fits = self._fits(keys, documents)
        self.questions = Questions({key: asked.of(queries, key) for key in keys}, documents, starts, fits, role)

    @property
    def protocol(self) -> dict[str, Any]:
        """What provenance says of the measure."""
        return {"measure": "MRR", "kind": "questions drawn from the documents", "questions": len(self.pairs)}

    @property
    def data(self) -> dict[str, str]:
        """Nothing but the corpus was read."""
        return {}

    @property
    def notes(self) -> list[str]:
        """What is not as asked."""
        found = []
        if len(self.pairs) < self.size:
            short = "the other documents cannot be cut in two, or repeat one that is taken"
            found.append(f"{len(self.pairs):,} questions instead of {self.size:,}: {short}")
        if cut := self.source.log.truncated:
            found.append(f"{cut:,} texts were cut at {self.source.spec.identity.max_length} tokens")
        return found

    def measure(self, settings: Sequence[Setting]) -> Iterator[Measured]:
        """Every setting on the same pairs."""
        self.progress.phase("comparing settings", len(settings))
        for setting in settings:
            yield from measure(self.questions, [setting])
            self.progress.advance(1)

    def _fits(self, keys: Sequence[PoolingKey], documents: Mapping[PoolingKey, Rows]) -> dict[PoolingKey, Moments]:
        """Of the index's own embeddings where it has them; else of what the pairs ask for, or of whole documents."""
        opened, own = self.subject.opened, self.subject.own.key
        found = {own: self.subject.moments} if opened is not None and own in keys else {}
        if missing := [key for key in keys if key not in found]:
            texts, _ = self._rows([pair.fitted_on for pair in self.pairs])
            rows = self.source.encode(texts).rows if self.pairs[0].whole else documents
            found |= {key: Moments.of(rows[key]) for key in missing}
        return found

    def _rows(self, texts: list[str]) -> tuple[list[str], npt.NDArray[np.int64]]:
        """The texts, or their windows, as a build encodes them, and where those of each text start."""
        cut = DocumentChunker(self.subject.spec, self.subject.config.chunk)(texts)
        if cut.windows is None:
            return cut.texts, np.arange(len(texts))
        return cut.texts, np.searchsorted(cut.windows.document, np.arange(len(texts)))

    def _watched(self) -> Iterator[Document]:
        for document in self.documents():
            self.progress.advance(1)
            yield document
