"""`isotrope query`."""

import io
import queue
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from search.cli.options import encoder_options, run_options

if TYPE_CHECKING:
    from search.engine import Hit, SearchEngine

_FEW = 8  # questions for which starting quickly is worth more than encoding quickly
_BATCH = 64  # lines of standard input answered together
_ASKED = ("where", "group_by", "min_score", "hybrid", "exact", "similarity")
_BLANK = "the query is blank; expected some text"


@click.command("query")
@click.argument("index", type=click.Path(path_type=Path))
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option("-k", type=int, default=10, show_default=True, help="Hits a query.")
@click.option("--where", metavar="SQL", help='Only documents whose metadata match, such as "year > 2019".')
@click.option("--group-by", metavar="COLUMN", help="At most one hit for each value of a metadata column.")
@click.option("--min-score", type=float, help="Only hits that score at least this.")
@click.option("--hybrid", is_flag=True, help="Fuse with BM25 by reciprocal rank; scores are then sums of those.")
@click.option(
    "--similarity",
    type=click.Choice(["cosine", "js"]),
    default="cosine",
    help='js: rank mixtures by Jensen-Shannon divergence (pooling "latte-mix"); with --exact, proved.',
)
@click.option("--like", metavar="ID", help="Neighbours of a stored document instead of a text.")
@click.option(
    "--vector", type=click.Path(path_type=Path), metavar="FILE.npy", help="Queries encoded already, one a row."
)
@click.option("--exact", is_flag=True, help="Compare with every document instead of searching the index.")
@click.option("--recall", type=float, help="Search as far as this recall@10 takes, instead of the recipe's.")
@encoder_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object a query, one a line.")
def command(
    index: Path,
    texts: tuple[str, ...],
    k: int,
    like: str | None,
    vector: Path | None,
    recall: float | None,
    model: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Find the documents closest to a text.

    Each TEXT is one query; - reads one query a line from standard input. Put -- before a query that starts with
    a dash. Scores are inner products of unit vectors: higher is closer.

    \b
    Examples:
      isotrope query my-index "how do whales sing"
      isotrope query my-index -k 3 --json "first question" "second question"
      isotrope query my-index --where "year > 2019 AND lang = 'en'" "how do whales sing"
      isotrope query my-index --hybrid --group-by source "how do whales sing"
      isotrope query my-index --like doc17
      isotrope query my-index --json - < questions.txt
      isotrope query my-index -- "-O2 or -O3"
    """
    from indexer.corpus.query_file import read_query_vectors
    from indexer.errors import ConfigError
    from search.cli.progress import ProgressBar
    from search.engine import SearchEngine
    from search.ranking.ranker import SearchOptions

    if recall is not None and options["exact"]:
        raise click.UsageError("--recall sets how far an approximate search reaches; --exact finds everything anyway.")
    if bool(texts) + (like is not None) + (vector is not None) != 1:
        raise click.UsageError("Give TEXT, or --like, or --vector: one of the three.")
    few = "-" not in texts and len(texts) <= _FEW
    run, asked = run_options(options, texts="few" if few else "many"), {name: options[name] for name in _ASKED}
    SearchOptions(k, **asked)  # what cannot be asked of any index is told before one is opened
    engine = SearchEngine(index, model, run, ahead=bool(texts), recall=recall)
    if asked["hybrid"]:
        engine.check(k, **asked)
        if not texts:
            raise click.UsageError("--hybrid needs TEXT: words are compared, which --like and --vector have none of.")
        with ProgressBar(as_json) as progress:
            engine.prepare_hybrid(progress)
    show = _show_json if as_json else _show_table
    if like is not None:
        show(f"like {like}", engine.neighbours(like, k, **asked))
        return
    if vector is not None:
        queries = read_query_vectors(vector, int(engine.index.manifest.encoder["dim"]))
        for number, found in enumerate(engine.search_vectors(queries, k, **asked), start=1):
            show(f"{vector.name}:{number}", found)
        return
    answered = 0
    for batch in _batches(_queries(texts)):
        for query, hits in _answers(engine, batch, k, asked):
            show(query, hits)
            answered += hits is not None
    if not answered:
        raise ConfigError("no query was answered: all were blank, or there was none.")


def _queries(texts: tuple[str, ...]) -> Iterator[str]:
    """Arguments one by one; `-` stands for the lines of standard input. Raises ConfigError for what is not UTF-8."""
    from indexer.corpus.query_file import read_query_lines
    from indexer.errors import ConfigError

    for text in texts:
        if text == "-":
            for _, line in read_query_lines(_standard_input(), "standard input", ConfigError):
                yield line
        else:
            yield text


def _standard_input() -> IO[bytes]:
    """Standard input by a reader of our own: Python locks its own at exit, and aborts if a thread waits in it."""
    if sys.stdin is None:
        return io.BytesIO()
    try:
        return open(sys.stdin.fileno(), "rb", closefd=False)
    except io.UnsupportedOperation:  # no file, where another program runs the command
        return sys.stdin.buffer


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
    except Exception as error:  # noqa: BLE001  # whatever it is, `_batches` raises it
        waiting.put(error)
    else:
        waiting.put(None)


def _answers(
    engine: "SearchEngine", batch: list[str], k: int, asked: dict[str, Any]
) -> Iterator[tuple[str, "list[Hit] | None"]]:
    """(query, hits) in order; None for a blank query. Queries that were cut are named on stderr."""
    from indexer.encoders import EncodeStats
    from search.cli.output import print_note

    texts, log = [query for query in batch if query.strip()], EncodeStats()
    found = iter(engine.search_many(texts, k, log, **asked))
    limit = engine.index.encoder.max_length
    for query, length in zip(texts, log.lengths, strict=True):
        if not length:
            print_note(f'the query "{query[:40]}" holds nothing that the encoder knows; its hits mean nothing')
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
