"""Measurement of windows without labels: a sentence of a document is the query, the document without it the answer.

Each document loses some of its sentences; line breaks, headings and everything else stay, so that windows by structure
find the structure. All windows of all sampled documents are encoded for each setting. The score of a setting is the
mean reciprocal rank of each question's document, by its best window. nDCG@10 is shown as well.
"""

import dataclasses
import heapq
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from indexer.arrays import Float64Array
from indexer.corpus.document import Document
from indexer.encoders.document_windows import DocumentChunker, open_chunker
from indexer.errors import ConfigError, EvaluationError, as_argument
from indexer.hashing import hash_id
from indexer.moments import Moments
from indexer.progress import NoProgress, Progress
from indexer.recipe.corpus_config import STRUCTURE_TOKENS, ChunkConfig
from search.evaluation.bootstrap import draw_counts, mean_difference, mean_interval
from search.evaluation.embeddings import EmbeddingSource
from search.evaluation.result import Clock, Result, how_built
from search.evaluation.sweep import fit_setting
from search.evaluation.target import Subject, Target
from search.evaluation.tune.choice import is_better
from search.evaluation.tune.tune import TuneOptions, default_cache, tuned_documents
from search.evaluation.tune.unlabelled import LEAST_PAIRS, reciprocal_ranks
from search.formatting import counted

_SENTENCE = re.compile(r"[^\W\d_](?:[^.!?\n]|[.!?](?!\s)|\n(?!\s*\n))*[.!?](?=\s|$)")
_WORDS = range(6, 31)  # of a question
_PLAIN = 0.85  # of a question's characters are letters or spaces: no code, no table
_DEPTH = 10  # of nDCG


@dataclass(frozen=True)
class MeasuredChunks:
    """A setting of windows with the reciprocal rank of each question's document, and its number of vectors."""

    chunk: ChunkConfig
    values: Float64Array
    rows: int

    @property
    def label(self) -> str:
        """The setting in words."""
        if not self.chunk.tokens:
            return "no windows"
        headings = " with headings" if self.chunk.headings else ""
        return f"{self.chunk.tokens} tokens, by {self.chunk.by}" + (headings if self.chunk.by == "structure" else "")

    @property
    def score(self) -> float:
        """The mean reciprocal rank."""
        return float(self.values.mean())

    @property
    def ndcg(self) -> float:
        """nDCG@10; a question has one relevant document."""
        ranks = 1 / self.values
        return float(np.where(ranks <= _DEPTH, 1 / np.log2(1 + ranks), 0).mean())


@dataclass(frozen=True)
class DrawnSentences:
    """Documents without the sentences that became questions, and the number of each question's document."""

    documents: list[Document]
    queries: list[str]
    answers: list[int]


def draw_sentences(documents: Iterable[Document], size: int, questions: int) -> DrawnSentences:
    """Draw about `questions` sentences from the `size` documents with the smallest hashes of their ids.

    Documents without a sentence to draw stay, as wrong answers. Raises EvaluationError for fewer than `LEAST_PAIRS`.
    """
    chosen = heapq.nsmallest(size, documents, key=lambda document: (hash_id(document.id), document.id))
    each = max(1, -(-questions // max(1, len(chosen))))
    kept, queries, answers = list[Document](), list[str](), list[int]()
    for number, document in enumerate(chosen):
        # Derived from the id, so that every run draws the same.
        chance = random.Random(hash_id(document.id))  # noqa: S311
        found = [match for match in _SENTENCE.finditer(document.text) if _is_question(match[0])]
        drawn = sorted(chance.sample(found, min(each, len(found) // 3)), key=lambda match: match.start())
        text, last = list[str](), 0
        for match in drawn:
            text.append(document.text[last : match.start()])
            last = match.end()
            queries.append(" ".join(match[0].split()))
            answers.append(number)
        kept.append(dataclasses.replace(document, text="".join([*text, document.text[last:]])))
    if len(queries) < LEAST_PAIRS:
        raise EvaluationError(
            f"only {counted(len(queries), 'sentence')} of {counted(len(chosen), 'document')} can be questions; "
            f"expected {LEAST_PAIRS}. Fix: measure windows on more or longer documents."
        )
    return DrawnSentences(kept, queries, answers)


def _is_question(sentence: str) -> bool:
    plain = sum(character.isalpha() or character.isspace() for character in sentence)
    return len(sentence.split()) in _WORDS and plain >= _PLAIN * len(sentence)


def measure_chunks(
    subject: Target, drawn: DrawnSentences, source: EmbeddingSource, candidates: Sequence[ChunkConfig]
) -> Iterator[MeasuredChunks]:
    """Yield the scores of each setting of windows, with the recipe's transform fitted on its windows."""
    columns, key = subject.config.corpus.text, subject.own.key
    queries = source.encode(drawn.queries, "query").of(drawn.queries, key)
    mean = Moments(len(queries), queries.mean(axis=0, dtype=np.float64), np.zeros((0, 0)))
    for chunk in candidates:
        cut = DocumentChunker(subject.spec, chunk, columns)(drawn.documents)
        rows = source.encode(cut.texts, "document").of(cut.texts, key)
        transform = fit_setting(subject.own, Moments.of(rows), mean)
        of_row = np.arange(len(rows)) if cut.windows is None else cut.windows.document
        starts = np.searchsorted(of_row, np.arange(len(drawn.documents)))
        sides = transform.transform(queries, "query"), transform.transform(rows, "document")
        yield MeasuredChunks(chunk, reciprocal_ranks(*sides, starts, np.array(drawn.answers)), len(rows))


def tune_chunks(
    subject: Subject, task: TuneOptions, cache: Path | None = None, progress: Progress | None = None
) -> Result:
    """Measure windows on `task.sample` documents and as many questions; the key "command" builds the best.

    Raises as `run_tune`.
    """
    clock, subject, progress = Clock(), Target.of(subject), progress or NoProgress()
    if not subject.spec.traits.encodes_texts or task.beir or task.objective != "retrieval" or task.rerank is not None:
        raise ConfigError(
            f"{as_argument('chunks')} measures windows by drawn questions, with an encoder of texts. Fix: leave out "
            "judgements, reranker and objective."
        )
    progress.phase("reading", None)
    drawn = draw_sentences(tuned_documents(task, subject), task.sample, task.sample)
    source = subject.states([subject.own], cache or default_cache(), progress)
    measured = list(measure_chunks(subject, drawn, source, candidates_of(subject)))
    counts, own = draw_counts(len(drawn.queries), "chunks"), measured[0]
    taken = _chosen(measured, counts)
    protocol = {"measure": "MRR", "kind": "sentences drawn from the documents", "questions": len(drawn.queries)}
    return Result(
        "chunks",
        clock.provenance(subject.spec, {}, **how_built(subject.config, subject.index), protocol=protocol),
        [_row(each, counts) | {"chosen": "yes" if each is taken else ""} for each in measured],
        [_compared(own, each, counts) for each in measured[1:]],
        [f"{counted(len(drawn.queries), 'question')} for {counted(len(drawn.documents), 'document')}"],
        {"command": _command(taken.chunk)},
    )


def candidates_of(subject: Target) -> list[ChunkConfig]:
    """Return the settings to compare, the recipe's own first: no windows, by tokens, by structure without and with
    headings. They have the recipe's size, by default `STRUCTURE_TOKENS`, or the room of the encoder."""
    own = subject.config.chunk
    tokens = own.tokens or STRUCTURE_TOKENS
    chunker = open_chunker(subject.spec, ChunkConfig(tokens, min(own.overlap, tokens // 4), by="structure"))
    tokens, overlap = chunker.tokens, min(own.overlap, chunker.tokens // 4)
    others = [
        ChunkConfig(by="tokens"),
        ChunkConfig(tokens, overlap, by="tokens"),
        ChunkConfig(tokens, overlap, by="structure", headings=False),
        ChunkConfig(tokens, overlap, by="structure"),
    ]
    return list({_essence(chunk): chunk for chunk in [own, *others]}.values())


def _essence(chunk: ChunkConfig) -> tuple[int, str, bool]:
    """Return what tells two settings of windows apart."""
    return chunk.tokens, chunk.by if chunk.tokens else "", chunk.headings and chunk.by == "structure"


def _chosen(measured: Sequence[MeasuredChunks], counts: Float64Array) -> MeasuredChunks:
    """Return the recipe's own windows (the first) unless the best are significantly better.

    Then return the fewest vectors that the best windows do not beat significantly; of equally many, the best.
    """
    own, best = measured[0], max(measured, key=lambda each: each.score)
    if not is_better(mean_difference(own.values, best.values, counts)):
        return own
    tied = [each for each in measured if not is_better(mean_difference(each.values, best.values, counts))]
    return min(tied, key=lambda each: (each.rows, -each.score))


def _row(measured: MeasuredChunks, counts: Float64Array) -> dict[str, Any]:
    return {
        "setting": measured.label,
        "vectors": measured.rows,
        "MRR": round(measured.score, 4),
        "nDCG@10": round(measured.ndcg, 4),
        "interval": mean_interval(measured.values, counts).to_dict(),
    }


def _compared(own: MeasuredChunks, other: MeasuredChunks, counts: Float64Array) -> dict[str, Any]:
    return {
        "setting": other.label,
        "against": own.label,
        **mean_difference(own.values, other.values, counts).to_dict("difference"),
    }


def _command(chunk: ChunkConfig) -> str:
    settings = [f"chunk.by={chunk.by}", f"chunk.tokens={chunk.tokens}"]
    if chunk.tokens:
        settings.append(f"chunk.overlap={chunk.overlap}")
    if chunk.by == "structure":
        settings.append(f"chunk.headings={str(chunk.headings).lower()}")
    return " ".join(["isotrope build CORPUS INDEX", *(f"--set {setting}" for setting in settings)])
