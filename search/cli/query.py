"""`isotrope query`."""

import queue
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from search.cli.running_options import encoder_options, run_options

if TYPE_CHECKING:
    from search.engine import Hit, SearchEngine

_FEW = 8  # questions for which starting quickly is worth more than encoding quickly
_BATCH = 64  # lines of standard input answered together
_BLANK = "the query is blank; expected some text"


@click.command("query")
@click.argument("index", type=click.Path(path_type=Path))
@click.argument("texts", nargs=-1, required=True, metavar="TEXT...")
@click.option("-k", type=int, default=10, show_default=True, help="Hits a query.")
@click.option("--model", type=click.Path(path_type=Path), help="Folder of the model, if it has moved.")
@encoder_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object a query, one a line.")
def command(index: Path, texts: tuple[str, ...], k: int, model: Path | None, as_json: bool, **options: Any) -> None:
    """Find the documents closest to a text.

    Each TEXT is one query; - reads one query a line from standard input. Put -- before a query that starts with
    a dash. Scores are inner products of unit vectors: higher is closer.

    \b
    Examples:
      isotrope query my-index "how do whales sing"
      isotrope query my-index -k 3 --json "first question" "second question"
      isotrope query my-index --json - < questions.txt
      isotrope query my-index -- "-O2 or -O3"
    """
    from indexer.errors import ConfigError
    from search.engine import SearchEngine

    if k < 1:
        raise ConfigError(f"-k is {k}; expected at least 1.")
    few = "-" not in texts and len(texts) <= _FEW
    engine = SearchEngine(index, model, run_options(options, texts="few" if few else "many"), ahead=True)
    show = _show_json if as_json else _show_table
    answered = 0
    for batch in _batches(_queries(texts)):
        for query, hits in _answers(engine, batch, k):
            show(query, hits)
            answered += hits is not None
    if not answered:
        raise ConfigError("no query was answered: all were blank, or there was none.")


def _queries(texts: tuple[str, ...]) -> Iterator[str]:
    """Arguments one by one; `-` stands for the lines of standard input."""
    for text in texts:
        if text == "-":
            for line in sys.stdin.buffer if sys.stdin else ():
                yield line.decode("utf-8", "replace").rstrip("\r\n")
        else:
            yield text


def _batches(queries: Iterator[str]) -> Iterator[list[str]]:
    """All queries that wait, up to `_BATCH` at once: somebody who types one gets the answer before the next."""
    waiting: queue.Queue[str | BaseException | None] = queue.Queue(maxsize=4 * _BATCH)
    threading.Thread(target=_read_ahead, args=(queries, waiting), daemon=True).start()
    while True:
        taken = [waiting.get()]
        while len(taken) < _BATCH and not waiting.empty():
            taken.append(waiting.get())
        batch = [query for query in taken if isinstance(query, str)]
        if batch:
            yield batch
        end = taken[-1]
        if isinstance(end, BaseException):
            raise end
        if end is None:
            return


def _read_ahead(queries: Iterator[str], waiting: "queue.Queue[str | BaseException | None]") -> None:
    try:
        for query in queries:
            waiting.put(query)
    except (OSError, ValueError) as error:
        waiting.put(error)
    else:
        waiting.put(None)


def _answers(engine: "SearchEngine", batch: list[str], k: int) -> Iterator[tuple[str, "list[Hit] | None"]]:
    """(query, hits) in order; None for a blank query. Queries that were cut are named on stderr."""
    from indexer.encoders import EncodeLog
    from search.cli.output import print_note

    asked, log = [query for query in batch if query.strip()], EncodeLog()
    found = iter(engine.search_many(asked, k, log))
    limit = engine.opened.manifest.encoder["identity"]["max_length"]
    for query, length in zip(asked, log.lengths, strict=True):
        if length > limit:
            print_note(f'the query "{query[:40]}..." has {length:,} tokens and was cut at {limit}')
    for query in batch:
        yield query, next(found) if query.strip() else None


def _show_json(query: str, hits: "list[Hit] | None") -> None:
    from search.cli.output import print_json

    if hits is None:
        print_json({"query": query, "error": _BLANK})
        return
    ranked: list[dict[str, Any]] = [{"rank": rank} | hit.to_dict() for rank, hit in enumerate(hits, start=1)]
    print_json({"query": query, "hits": ranked})


def _show_table(query: str, hits: "list[Hit] | None") -> None:
    from search.cli.output import print_hits

    if hits is None:
        click.echo(f"error: {_BLANK}", err=True)
        return
    print_hits(query, hits)
