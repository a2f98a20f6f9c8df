"""BM25 on disk, two ways: postings of counts a part, as `--hybrid` keeps them, and bm25s's own index of scores.

    python -m benchmarks.hybrid CORPUS [--documents 1000000] [--queries 100] [-o FILE]

Both make their terms with bm25s, are written to disk, hashed and memory-mapped, and find the best 1,000 documents; they
give the same scores. "Ten more" is what the next question costs after ten documents were added. Seconds and
milliseconds are of CPU time, in one thread; a corpus smaller than --documents is repeated, ids and texts changed.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import bm25s
import click

from benchmarks.interleaved import machine, save
from indexer.config import StoreConfig
from indexer.corpus import read_corpus
from indexer.corpus.document import joined_text
from indexer.encoders.model_files import file_sha256
from indexer.sampling import query_like
from search.cli.output import print_table
from search.hybrid.bm25 import Bm25
from search.hybrid.fusion import DEPTH
from search.hybrid.postings import Postings, Text
from search.hybrid.postings_file import map_postings, write_postings
from search.hybrid.terms import PARAMETERS, terms_of

_PART = StoreConfig().part_documents
_MORE = 10  # documents added
_EXTRA = "hybrid"
_COLUMNS = ("build s / 100k", "MB / 100k", "ten more s", "open s", "query ms", "slowest tenth ms")


@click.command()
@click.argument("corpus")
@click.option("--documents", type=int, default=100_000, show_default=True)
@click.option("--queries", type=int, default=100, show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path))
def main(corpus: str, documents: int, queries: int, output: Path | None) -> None:
    """Compare ways to keep BM25 on disk."""
    texts = list(islice(_repeated(corpus), documents + _MORE))
    asked = terms_of(_questions(corpus, queries), _EXTRA)
    results = [way(texts, asked) for way in (_postings, _scores)]
    rows = [[row["name"], *(f"{row[column]:,.1f}" for column in _COLUMNS)] for row in results]
    print_table([f"{documents:,} documents", *_COLUMNS], rows, "BM25 on disk, CPU time")
    about = machine(1, ("bm25s", "PyStemmer"))
    click.echo(f"{about['processor']}, {about['date']}, {about['versions']}")
    if output:
        save(output, {"machine": about, "command": sys.argv[1:], "documents": documents, "results": results})


def _postings(texts: Sequence[Text], asked: Sequence[list[str]]) -> dict[str, Any]:
    with TemporaryDirectory() as folder:

        def write(start: int, end: int) -> Path:
            path = Path(folder) / f"{start}"
            write_postings(path, Postings.of(texts[start:end], _EXTRA))
            return path

        def opened(paths: Sequence[Path]) -> Bm25:
            for path in paths:
                file_sha256(path)
            return Bm25([map_postings(path) for path in paths])

        count = len(texts) - _MORE
        build, paths = _timed(lambda: [write(n, min(n + _PART, count)) for n in range(0, count, _PART)])
        opening, index = _timed(lambda: opened(paths))
        taken = [_timed(partial(index.search, terms, DEPTH))[0] for terms in asked]
        more, _ = _timed(lambda: opened([*paths, write(count, count + _MORE)]))
        return _row("postings of counts, a part each", count, build, paths, more, opening, taken)


def _scores(texts: Sequence[Text], asked: Sequence[list[str]]) -> dict[str, Any]:
    with TemporaryDirectory() as folder:

        def write(end: int) -> list[Path]:
            index = bm25s.BM25(method=PARAMETERS["method"], k1=PARAMETERS["k1"], b=PARAMETERS["b"], backend="numpy")
            index.index(terms_of([text for _, text in texts[:end]], _EXTRA), show_progress=False)
            index.save(folder, show_progress=False)
            return list(Path(folder).iterdir())

        def opened(paths: Sequence[Path]) -> Any:
            for path in paths:
                file_sha256(path)
            return bm25s.BM25.load(folder, mmap=True)

        def search(index: Any, terms: list[str]) -> Any:
            known = [term for term in terms if term in index.vocab_dict]
            return index.retrieve([known or [""]], k=min(DEPTH, count), show_progress=False)

        count = len(texts) - _MORE
        build, paths = _timed(lambda: write(count))
        opening, index = _timed(lambda: opened(paths))
        taken = [_timed(partial(search, index, terms))[0] for terms in asked]
        row = _row("scores of bm25s, one index", count, build, paths, 0.0, opening, taken)
        return row | {"ten more s": _timed(lambda: opened(write(len(texts))))[0]}


def _row(
    name: str, count: int, build: float, paths: Sequence[Path], more: float, opening: float, taken: Sequence[float]
) -> dict[str, Any]:
    size = sum(path.stat().st_size for path in paths)
    slow = sorted(taken)[int(0.9 * len(taken))]
    figures = (build / count * 1e5, size / count / 10, more, opening, 1e3 * median(taken), 1e3 * slow)
    return {"name": name, **dict(zip(_COLUMNS, figures, strict=True))}


def _timed(run: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    result = run()
    return time.process_time() - start, result


def _repeated(corpus: str) -> Iterator[Text]:
    """Id and text of each document, again and again."""
    for document in read_corpus(corpus):
        yield document.id, joined_text(document, ("title", "text"))
    copy = 0
    while True:
        copy += 1
        for document in read_corpus(corpus):
            yield f"{document.id} {copy}", f"{joined_text(document, ('title', 'text'))} {copy}"


def _questions(corpus: str, count: int) -> list[str]:
    """What people might ask, from the titles or first sentences of documents spread through the corpus."""
    found = [text for document in read_corpus(corpus) if (text := query_like(document))]
    return found[:: max(1, len(found) // count)][:count]


if __name__ == "__main__":
    main()
