"""Windows by structure against windows of equal length, by questions drawn from a folder of files.

    python -m benchmarks.chunks FOLDER [--config static] [--set SECTION.KEY=VALUE ...] [--tokens 160 ...]

A question is the first sentence of a paragraph, at most five from each file. The sentences are removed from the texts,
and every setting indexes the same rest. "file" is the mean reciprocal rank of the question's file among ten hits.
"passage" is the share of questions whose first hit is a window with the place of the removed sentence. The intervals are
95 % bootstrap intervals of the paired difference from windows of equal length.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click
import numpy as np

from indexer import BuildConfig, Document, read_corpus
from indexer.corpus.document import joined_text
from indexer.hashing import hash_id
from indexer.recipe.corpus_config import ChunkConfig, CorpusConfig
from search import SearchEngine
from search.cli.options import recipe_of, recipe_options
from search.cli.output import print_table
from search.evaluation.bootstrap import draw_counts

_MOST = 5  # questions from a file
_WORDS = range(6, 31)
_PARAGRAPH = re.compile(r"(?:^|\n[ \t]*\n)([A-Z][^\n.?!]*(?:\n[^\n.?!]+)*[.?!])\s+(?=\w)")
_HITS = 10


@dataclass(frozen=True)
class Question:
    """A sentence that was removed from a document, and its place in the rest."""

    text: str
    document: str
    at: int


def draw(document: Document) -> tuple[Document, list[Question]]:
    """Return a document without some sentences, and the sentences."""
    found = [match for match in _PARAGRAPH.finditer(document.text) if len(match[1].split()) in _WORDS]
    chosen = sorted(sorted(found, key=lambda match: hash_id(match[1]))[:_MOST], key=lambda match: match.start())
    text, last, questions = "", 0, list[Question]()
    for match in chosen:
        text += document.text[last : match.start(1)]
        questions.append(Question(" ".join(match[1].split()), document.id, len(text)))
        last = match.end()
    return replace(document, text=text + document.text[last:]), questions


def measure(
    documents: Sequence[Document], questions: Sequence[Question], config: BuildConfig
) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the reciprocal rank of the file and whether the first hit is the passage, for each question, and rows."""
    with SearchEngine.from_texts(documents, config=config) as engine:
        rows, answers = engine.index.numbering.rows, engine.search_many([each.text for each in questions], k=_HITS)
    ranks, passages = np.zeros(len(questions)), np.zeros(len(questions))
    for number, (question, hits) in enumerate(zip(questions, answers, strict=True)):
        ranks[number] = next((1 / rank for rank, hit in enumerate(hits, 1) if hit.id == question.document), 0.0)
        window = hits[0].window if hits else None
        start, end = window.columns.get("text", (0, -1)) if window else (0, len(hits[0].text) if hits else -1)
        passages[number] = hits[0].id == question.document and start <= question.at <= end if hits else 0.0
    return ranks, passages, rows


def _settings(tokens: Sequence[int]) -> Iterator[tuple[str, ChunkConfig]]:
    for limit in tokens:
        yield f"equal length {limit}", ChunkConfig(tokens=limit, by="tokens")
        yield f"structure {limit}, no headings", ChunkConfig(tokens=limit, by="structure", headings=False)
        yield f"structure {limit}", ChunkConfig(tokens=limit, by="structure")


def _interval(values: np.ndarray, base: np.ndarray) -> str:
    counts = draw_counts(len(values), "chunks")
    low, high = np.percentile(counts @ (values - base) / len(values), [2.5, 97.5])
    return f"{100 * low:+.1f} to {100 * high:+.1f}"


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@recipe_options
@click.option("--tokens", multiple=True, type=int, default=(160,), help="Most tokens of a window.")
def main(folder: Path, tokens: tuple[int, ...], **options: object) -> None:
    config = recipe_of(options)
    drawn = [draw(each) for each in read_corpus(folder, config=CorpusConfig(documents="files"))]
    documents = [document for document, _ in drawn if joined_text(document, ("title", "text")).strip()]
    questions = [question for _, found in drawn for question in found]
    lines, base = [], (np.zeros(0), np.zeros(0))
    for name, chunk in _settings(tokens):
        ranks, passages, rows = measure(documents, questions, replace(config, chunk=chunk))
        base = (ranks, passages) if chunk.by == "tokens" else base
        cells = [f"{100 * ranks.mean():.1f}", _interval(ranks, base[0]), f"{100 * passages.mean():.1f}"]
        lines.append([name, f"{rows:,}", *cells, _interval(passages, base[1])])
    title = f"{len(documents):,} files, {len(questions):,} questions (scores x 100)"
    print_table(("windows", "rows", "file", "difference", "passage", "difference"), lines, title)


if __name__ == "__main__":
    main()
