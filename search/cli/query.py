"""`isotrope query`."""

import gc
import io
import json
import queue
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from search.cli import NamedPath
from search.cli.options import (
    PATH,
    check_written,
    encoder_options,
    force_option,
    json_option,
    output_option,
    query_encoder_option,
    quiet_option,
    recipe_reads,
    run_options,
    search_options,
)
from search.cli.query_server import answers_of_server, check_options, queries_of_file, server_of, server_options

if TYPE_CHECKING:
    from search.cli.query_server import ReadAnswer
    from search.engine import SearchEngine
    from search.hits import Answer, Hit
    from search.ranking.options import SearchOptions
    from search.shards import ShardOptions

Show = Callable[[str, "Answer[Hit] | None"], None]
Answers = Iterator[tuple[str, "Answer[Hit] | None"]]
"""Queries in order with their hits, None for a blank query."""
_TABLES = (".csv", ".tsv", ".xlsx", ".parquet")
_FEW = 8  # queries up to which a quick start saves more time than quick encoding
_MOST_AHEAD = 64 << 20  # most bytes of a manifest that is read to hash weights ahead
_BATCH = 64  # lines of standard input answered together
_BLANK = "the query is blank; expected some text"


@click.command("query")
@click.argument("words", nargs=-1, metavar="INDEX [TEXT]...")
@search_options
@click.option(
    "--rerank", metavar="MODEL", help="Rerank by this cross-encoder, a hub id or folder, instead of the recipe's."
)
@click.option("--no-rerank", is_flag=True, help="Do not rerank.")
@click.option("--like", metavar="ID", help="Neighbours of a stored document instead of a text.")
@click.option("--queries", type=PATH, metavar="FILE|BEIR_FOLDER", help="Queries from a file: one per line, "
              "queries.jsonl, or a .npy of their embeddings; - as TEXT reads standard input.")  # fmt: skip
@query_encoder_option
@click.option("--recall", type=float, help="Target recall@10 of the search, instead of the recipe's.")
@click.option("--shards", type=click.Choice(["ray"]), help="Search each segment in a separate process, by Ray.")
@click.option("--ray-address", default="", metavar="ADDRESS", help="Ray cluster, or auto. Default: start a new one.")
@server_options
@encoder_options
@output_option("Write the answers to this file as JSON lines, and print none.")
@force_option
@json_option
@quiet_option
def command(words: tuple[str, ...], **options: Any) -> None:
    """Find the documents closest to a text.

    INDEX is a path or a URL in object storage (s3://, gs:// or az://). Leave it out if --url names a running server.
    Each TEXT is one query; - reads one query per line from standard input. Put -- before a query that starts with
    a dash. Scores are inner products of unit vectors: higher is closer. With --json, every answer is one line.

    \b
    Examples, on the index of `make demo`:
      isotrope query demo/index "shuffle a list into random order"
      isotrope query demo/index -k 3 --json "difference between two dates" "walk a directory tree"
      isotrope query demo/index --where "kind = 'function' AND module LIKE 'o%'" "walk a directory tree"
      isotrope query demo/index --hybrid --group-by module "walk a directory tree"
      isotrope query demo/index --fold 0.9 "copy a file"
      isotrope query demo/index --rerank ./cross-encoder --rerank-depth 20 "walk a directory tree"
      isotrope query demo/index --like random.Random.shuffle
      isotrope query demo/index --queries questions.txt -o answers.jsonl
      isotrope query demo/index --json - < questions.txt
      isotrope query demo/index --shards ray --partial "walk a directory tree"
      isotrope query demo/index -- "-O2 or -O3"
      isotrope query --url http://127.0.0.1:8080 "walk a directory tree"
    """
    from indexer.errors import ConfigError

    check_options(options)
    _require_rerankable(options)
    index, texts = _index_and_texts(words, options)
    if index and not texts and options["like"] is options["queries"] is None:
        _require_index(index)
    search, few = _search(options), _are_few(texts, options)
    _check_output(index, options)
    answers, answered = _answers_of_index(index, texts, options, few) if index else _served(texts, options, search), 0
    with _shown(options) as show:
        for query, hits in answers:
            show(query, hits)
            answered += hits is not None
            if hits is not None and hits.partial:
                _print_missing(query, hits)
        if not answered:
            raise ConfigError("no query was answered: all queries were blank, or there were none.")


def _index_and_texts(words: tuple[str, ...], options: dict[str, Any]) -> tuple[Path | None, tuple[str, ...]]:
    """Return the index, None for a server, and the texts as typed. Raises UsageError."""
    if options["url"] is not None:
        return None, words
    context, argument = click.get_current_context(), click.Argument(["index"], type=NamedPath(path_type=Path))
    if not words:
        raise click.MissingParameter(ctx=context, param=argument)
    if words[0].lower().startswith(("http://", "https://")):
        raise click.UsageError(f"{words[0]} is the address of a server. Fix: pass --url {words[0]}", context)
    index: Path = argument.type.convert(words[0], argument, context)
    return index, words[1:]


def _require_index(index: Path) -> None:
    """Raise UsageError if the only argument is no index: it may be the query."""
    from indexer.store.manifest import list_generations

    if not list_generations(index):
        usage = "Usage: isotrope query INDEX TEXT"
        raise click.UsageError(f"{index}: is the argument INDEX, but no such index exists. {usage}")


def _search(options: dict[str, Any]) -> "SearchOptions":
    """Return the options of the search. Raises ConfigError for options that are invalid for every index."""
    from search.ranking.options import SEARCH_OPTIONS, SearchOptions

    fields = {option.name: options[option.name] for option in SEARCH_OPTIONS}
    return SearchOptions(**fields | ({"rerank_depth": 0} if options["no_rerank"] else {}))


def _shards(options: dict[str, Any]) -> "ShardOptions | None":
    """Return the options of --shards. Raises UsageError for options that need it."""
    if options["shards"] is None:
        for name in ("ray_address", "partial"):
            if options[name]:
                raise click.UsageError(f"--{name.replace('_', '-')} needs --shards.")
        return None
    from search.shards import ShardOptions

    return ShardOptions(options["shards"], options["ray_address"])


def _print_missing(query: str, hits: "Answer[Hit]") -> None:
    from search.cli.output import print_note

    missing = (f"{part.file} (rows {part.first_row:,} to {part.first_row + part.rows - 1:,})" for part in hits.missing)
    print_note(f'the answer to "{query[:40]}" is partial: nothing came from {", ".join(missing)}')


def _are_few(texts: tuple[str, ...], options: dict[str, Any]) -> bool:
    """Return whether a quick start matters more than quick encoding. Raises UsageError without a query."""
    if options["recall"] is not None and options["exact"]:
        raise click.UsageError("--recall cannot be combined with --exact, which finds every hit.")
    if bool(texts) + (options["like"] is not None) + (options["queries"] is not None) != 1:
        raise click.UsageError("Expected exactly one of TEXT, --like and --queries.")
    return options["queries"] is None and "-" not in texts and len(texts) <= _FEW


def _check_output(index: Path | None, options: dict[str, Any]) -> None:
    if output := options["output"]:
        if output.suffix.lower() in _TABLES:
            raise click.UsageError(
                f"-o {output}: expected a file of JSON lines, such as {output.with_suffix('.jsonl').name}. "
                "For a table, write engine.search(...).to_pandas() in Python."
            )
        reads = [index, options["queries"], options["model"], options["api_key_file"], *recipe_reads(None, index)]
        check_written({"-o": output}, reads, options["force"])


def _served(texts: tuple[str, ...], options: dict[str, Any], search: "SearchOptions") -> Answers:
    with server_of(options) as client:
        if options["like"] is not None:
            _refuse_hybrid(search, "--like has none")
            yield f"like {options['like']}", client.neighbours(options["like"], search)
            return
        file = options["queries"]
        stream: Iterable[str] = queries_of_file(file, 0).texts if file else _queries(texts)
        yield from _in_batches(stream, search.hybrid, partial(answers_of_server, client, search))


def _answers_of_index(index: Path, texts: tuple[str, ...], options: dict[str, Any], few: bool) -> Answers:
    if few and options["model"] is options["query_encoder"] is None:
        _hash_weights_ahead(index)
    gc.disable()  # loaded modules stay loaded: looking for garbage among them takes 5 % of the time
    try:
        from search.engine import SearchEngine

        run = run_options(options, texts="few" if few else "many")
        chosen = options["query_encoder"]
        ahead = bool(texts) and chosen is None
        engine = SearchEngine(index, options["model"], run, ahead, options["recall"], _shards(options))
        if chosen is not None:
            engine.encode_queries_by(chosen)
        if options["rerank"] is not None:
            engine.rerank_by(options["rerank"])
    finally:
        gc.enable()
    return _answers(engine, texts, options, _search(options))


def _hash_weights_ahead(index: Path) -> None:
    """Start to hash the weights that the index names, while libraries are imported: both take about as long.

    Ignores every error, because opening the encoder reports it.
    """
    from indexer.hashing import hash_ahead
    from indexer.store.layout import MANIFESTS
    from indexer.system.regular_files import read_regular

    try:
        newest = max((index / MANIFESTS).glob("*.json"))
        manifest = json.loads(read_regular(newest, _MOST_AHEAD, follow_links=False))
        if manifest["config"].get("queries", {}).get("encoder"):
            return
        folder, names = manifest["encoder"]["folder"], manifest["encoder"]["identity"]["weights"]
        if not folder:
            from indexer.models.hub import folder_at_hand

            folder = folder_at_hand(manifest["config"]["encoder"]["model"])
        if folder:
            hash_ahead([Path(folder) / name for name in names if Path(name).name == name])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return


def _answers(
    engine: "SearchEngine", texts: tuple[str, ...], options: dict[str, Any], search: "SearchOptions"
) -> Answers:
    if options["like"] is not None:
        _refuse_hybrid(search, "--like has none", engine.index.config.encoder.traits.encodes_texts)
        yield f"like {options['like']}", engine.neighbours(options["like"], search)
        return
    stream: Iterable[str] = _queries(texts)
    if options["queries"]:
        given = queries_of_file(options["queries"], int(engine.index.manifest.encoder["dim"]))
        if given.embeddings is not None:
            _refuse_hybrid(search, "embeddings contain none", engine.index.config.encoder.traits.encodes_texts)
            names = (f"{options['queries'].name}:{number}" for number in given.ids)
            yield from zip(names, engine.search_vectors(given.embeddings, search), strict=True)
            return
        stream = given.texts
    if search.hybrid:
        from search.cli.progress import ProgressBar

        engine.check(search)
        with ProgressBar(options["quiet"]) as progress:
            engine.prepare_hybrid(progress)
    yield from _in_batches(stream, search.hybrid, partial(_of_engine, engine, search))


def _require_rerankable(options: dict[str, Any]) -> None:
    """Raise UsageError if options of reranking contradict each other, or if there is no text."""
    given = [name for name in ("rerank", "rerank_depth") if options[name] not in (None, 0)]  # depth 0: --no-rerank
    if given and options["no_rerank"]:
        raise click.UsageError(f"--no-rerank turns reranking off. Fix: leave out --{given[0].replace('_', '-')}.")
    if given and options["like"] is not None:
        raise click.UsageError("--rerank needs TEXT: a cross-encoder reads the query text, which --like lacks.")


def _refuse_hybrid(search: "SearchOptions", reason: str, text_helps: bool = True) -> None:
    if search.hybrid:
        needs = "--hybrid needs TEXT: it" if text_helps else "--hybrid"
        raise click.UsageError(f"{needs} compares words, and {reason}. Fix: leave out --hybrid.")


def _queries(texts: tuple[str, ...]) -> Iterator[str]:
    """Yield the arguments; `-` yields the lines of standard input. Raises ConfigError for invalid UTF-8."""
    for text in texts:
        if text == "-":
            from indexer.corpus.query_file import read_query_lines  # imports numpy, which --url does not need
            from indexer.errors import ConfigError

            for _, line in read_query_lines(_standard_input(), "standard input", ConfigError):
                yield line
        else:
            yield text


def _standard_input() -> IO[bytes]:
    """Open standard input again: Python locks its own reader at exit, and aborts if a thread waits in it."""
    if sys.stdin is None:
        return io.BytesIO()
    try:
        return open(sys.stdin.fileno(), "rb", closefd=False)
    except io.UnsupportedOperation:  # not a file, if another program runs the command
        return sys.stdin.buffer


def _batches(queries: Iterator[str]) -> Iterator[list[str]]:
    """Yield all waiting queries, up to `_BATCH` together, so that a typed query is answered before the next."""
    waiting: queue.Queue[str | BaseException | None] = queue.Queue(maxsize=4 * _BATCH)
    threading.Thread(target=_read_ahead, args=(queries, waiting), daemon=True).start()
    while True:
        items = [waiting.get()]
        while len(items) < _BATCH and not waiting.empty():
            items.append(waiting.get())
        batch = [query for query in items if isinstance(query, str)]
        if batch:
            yield batch
        end = items[-1]
        if isinstance(end, BaseException):
            raise end
        if end is None:
            return


def _read_ahead(queries: Iterator[str], waiting: "queue.Queue[str | BaseException | None]") -> None:
    try:
        for query in queries:
            waiting.put(query)
    except Exception as error:  # noqa: BLE001  # `_batches` raises it
        waiting.put(error)
    else:
        waiting.put(None)


def _in_batches(stream: Iterable[str], hybrid: bool, ask: "Callable[[list[str]], Sequence[ReadAnswer]]") -> Answers:
    """Yield the answers, and print a note on each query that was cut."""
    from search.cli.output import note_length

    for batch in _batches(iter(stream)):
        texts = [query for query in batch if query.strip()]
        answers = ask(texts)
        for query, (_, tokens, limit) in zip(texts, answers, strict=True):
            note_length(query, tokens, limit, hybrid)
        results = (hits for hits, _, _ in answers)
        for query in batch:
            yield query, next(results) if query.strip() else None


def _of_engine(engine: "SearchEngine", search: "SearchOptions", texts: list[str]) -> "Sequence[ReadAnswer]":
    from indexer.encoders.protocol import EncodeStats

    log = EncodeStats()
    answers = engine.search_many(texts, search, log)
    limits = [engine.longest_query] * len(texts)
    return list(zip(answers, log.lengths, limits, strict=True))


@contextmanager
def _shown(options: dict[str, Any]) -> Iterator[Show]:
    """Return the function that prints an answer, or writes it to --output."""
    from search.cli.output import print_json, stdout_free_for

    if not options["output"]:
        yield (
            (lambda query, hits: print_json(_record(query, hits)))
            if options["as_json"]
            else partial(_print_for_people, group_by=options["group_by"])
        )
        return
    from indexer.system.output_files import open_output
    from search.formatting import counted
    from search.result_files import to_json

    written = 0

    with stdout_free_for(options["output"]):
        with open_output(options["output"], "-o", options["force"]) as file:

            def write(query: str, hits: "Answer[Hit] | None") -> None:
                nonlocal written
                file.write(f"{to_json(_record(query, hits))}\n".encode("utf-8", "backslashreplace"))
                written += 1

            yield write
        click.echo(f"{options['output']}: {counted(written, 'answer')}.")


def _record(query: str, hits: "Answer[Hit] | None") -> dict[str, Any]:
    if hits is None:
        return {"query": query, "error": _BLANK}
    record = {"query": query, "hits": [hit.to_dict(rank) for rank, hit in enumerate(hits, start=1)]}
    if hits.partial:
        missing = [{"segment": part.file, "first_row": part.first_row, "rows": part.rows} for part in hits.missing]
        return record | {"partial": True, "missing": missing}
    return record


def _print_for_people(query: str, hits: "Answer[Hit] | None", group_by: str | None) -> None:
    from search.cli.hits import print_hits

    if hits is None:
        click.echo(f"error: {_BLANK}", err=True)
    else:
        print_hits(query, hits, group_by)
