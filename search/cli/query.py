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
    quiet_option,
    recipe_reads,
    run_options,
    search_options,
)
from search.cli.query_server import (
    answers_of_server,
    check_options,
    queries_of_file,
    server_of,
    server_options,
)

if TYPE_CHECKING:
    from search.cli.query_server import ReadAnswer
    from search.engine import SearchEngine
    from search.hits import Answer, Hit
    from search.ranking.options import SearchOptions
    from search.shards import ShardOptions

Show = Callable[[str, "Answer[Hit] | None"], None]
_FEW = 8  # questions for which starting quickly is worth more than encoding quickly
_MOST_AHEAD = 64 << 20  # bytes of a manifest that is read to hash weights ahead
_BATCH = 64  # lines of standard input answered together
_BLANK = "the query is blank; expected some text"


@click.command("query")
@click.argument("words", nargs=-1, metavar="INDEX [TEXT]...")
@search_options
@click.option("--rerank", metavar="MODEL", help="Rerank by this cross-encoder, a hub id or folder, not the recipe's.")
@click.option("--no-rerank", is_flag=True, help="Leave the hits in the order they were found in.")
@click.option("--like", metavar="ID", help="Neighbours of a stored document instead of a text.")
@click.option(
    "--queries",
    type=PATH,
    metavar="FILE|BEIR_FOLDER",
    help="Queries of a file: one a line, queries.jsonl, or a .npy of their embeddings; - as TEXT reads standard input.",
)
@click.option("--recall", type=float, help="Search as far as this recall@10 takes, instead of the recipe's.")
@click.option("--shards", type=click.Choice(["ray"]), help="Search each segment in a process of its own, by Ray.")
@click.option("--ray-address", default="", metavar="ADDRESS", help="Ray cluster, or auto. Default: one is started.")
@server_options
@encoder_options
@output_option("Write the answers to this file as JSON lines, and print none.")
@force_option
@json_option
@quiet_option
def command(words: tuple[str, ...], **options: Any) -> None:
    """Find the documents closest to a text.

    INDEX is a folder, or the URL of one in object storage (s3://, gs:// or az://). It is left out where --url names a
    running server, which is asked in its place.
    Each TEXT is one query; - reads one query a line from standard input. Put -- before a query that starts with
    a dash. Scores are inner products of unit vectors: higher is closer. With --json every query is one line.

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
    asked, few = _asked(options), _are_few(texts, options)
    _check_output(index, options)
    answers, answered = _answers_of_index(index, texts, options, few) if index else _served(texts, options, asked), 0
    with _shown(options) as show:
        for query, hits in answers:
            show(query, hits)
            answered += hits is not None
            if hits is not None and hits.partial:
                _print_missing(query, hits)
        if not answered:
            raise ConfigError("no query was answered: all were blank, or there was none.")


def _index_and_texts(words: tuple[str, ...], options: dict[str, Any]) -> tuple[Path | None, tuple[str, ...]]:
    """The index that is asked, None for a server, and the texts as they were typed. Raises UsageError."""
    if options["url"] is not None:
        return None, words
    context, argument = click.get_current_context(), click.Argument(["index"], type=NamedPath(path_type=Path))
    if not words:
        raise click.MissingParameter(ctx=context, param=argument)
    if words[0].lower().startswith(("http://", "https://")):
        raise click.UsageError(f"{words[0]} is the address of a server: name it by --url {words[0]}", context)
    index: Path = argument.type.convert(words[0], argument, context)
    return index, words[1:]


def _asked(options: dict[str, Any]) -> "SearchOptions":
    """Return the options of the search. Raises ConfigError for options that are invalid for every index."""
    from search.ranking.options import SEARCH_OPTIONS, SearchOptions

    asked = {option.name: options[option.name] for option in SEARCH_OPTIONS}
    return SearchOptions(**asked | ({"rerank_depth": 0} if options["no_rerank"] else {}))


def _shards(options: dict[str, Any]) -> "ShardOptions | None":
    """Where segments are searched, if not here. Raises UsageError for options that are then of no use."""
    if options["shards"] is None:
        for name in ("ray_address", "partial"):
            if options[name]:
                raise click.UsageError(f"--{name.replace('_', '-')} is for an index whose segments --shards gives out.")
        return None
    from search.shards import ShardOptions

    return ShardOptions(options["shards"], options["ray_address"])


def _print_missing(query: str, hits: "Answer[Hit]") -> None:
    from search.cli.output import print_note

    gone = ", ".join(f"{one.file} (rows {one.first_row:,} to {one.first_row + one.rows - 1:,})" for one in hits.missing)
    print_note(f'the answer to "{query[:40]}" is partial: nothing came from {gone}')


def _are_few(texts: tuple[str, ...], options: dict[str, Any]) -> bool:
    """Whether there are few questions, for which starting quickly is worth more. Raises UsageError without any."""
    if options["recall"] is not None and options["exact"]:
        raise click.UsageError("--recall sets how far an approximate search reaches; --exact finds everything anyway.")
    if bool(texts) + (options["like"] is not None) + (options["queries"] is not None) != 1:
        raise click.UsageError("Give TEXT, or --like, or --queries: one of the three.")
    return options["queries"] is None and "-" not in texts and len(texts) <= _FEW


def _check_output(index: Path | None, options: dict[str, Any]) -> None:
    if options["output"]:
        reads = [index, options["queries"], options["model"], options["api_key_file"], *recipe_reads(None, index)]
        check_written({"-o": options["output"]}, reads, options["force"])


def _served(
    texts: tuple[str, ...], options: dict[str, Any], asked: "SearchOptions"
) -> "Iterator[tuple[str, Answer[Hit] | None]]":
    """(query, hits) in order, from a server; None for a blank query."""
    with server_of(options) as client:
        if options["like"] is not None:
            _refuse_hybrid(asked, "--like")
            yield f"like {options['like']}", client.neighbours(options["like"], asked)
            return
        file = options["queries"]
        stream: Iterable[str] = queries_of_file(file, 0).texts if file else _queries(texts)
        yield from _in_batches(stream, asked.hybrid, partial(answers_of_server, client, asked))


def _answers_of_index(
    index: Path, texts: tuple[str, ...], options: dict[str, Any], few: bool
) -> "Iterator[tuple[str, Answer[Hit] | None]]":
    """(query, hits) in order, from an index that is opened here; None for a blank query."""
    if few and options["model"] is None:
        _hash_weights_ahead(index)
    gc.disable()  # loaded modules stay: searching them for garbage takes a twentieth of the time
    try:
        from search.engine import SearchEngine

        run = run_options(options, texts="few" if few else "many")
        engine = SearchEngine(index, options["model"], run, bool(texts), options["recall"], _shards(options))
        if options["rerank"] is not None:
            engine.rerank_by(options["rerank"])
    finally:
        gc.enable()
    return _answers(engine, texts, options, _asked(options))


def _hash_weights_ahead(index: Path) -> None:
    """Begin to hash the weights that the index names, while libraries are imported: either takes about as long.

    Only a start is made here. Whatever is wrong is found, and told, where the encoder is opened.
    """
    from indexer.hashing import hash_ahead
    from indexer.store.layout import MANIFESTS
    from indexer.system.regular_files import read_regular

    try:
        newest = max((index / MANIFESTS).glob("*.json"))
        manifest = json.loads(read_regular(newest, _MOST_AHEAD, follow_links=False))
        folder, names = manifest["encoder"]["folder"], manifest["encoder"]["identity"]["weights"]
        if not folder:
            from indexer.models.hub import folder_at_hand

            folder = folder_at_hand(manifest["config"]["encoder"]["model"])
        if folder:
            hash_ahead([Path(folder) / name for name in names if Path(name).name == name])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return


def _answers(
    engine: "SearchEngine", texts: tuple[str, ...], options: dict[str, Any], asked: "SearchOptions"
) -> "Iterator[tuple[str, Answer[Hit] | None]]":
    """(query, hits) in order; None for a blank query."""
    if options["like"] is not None:
        _refuse_hybrid(asked, "--like")
        yield f"like {options['like']}", engine.neighbours(options["like"], asked)
        return
    stream: Iterable[str] = _queries(texts)
    if options["queries"]:
        given = queries_of_file(options["queries"], int(engine.index.manifest.encoder["dim"]))
        if given.embeddings is not None:
            _refuse_hybrid(asked, "embeddings")
            names = (f"{options['queries'].name}:{number}" for number in given.ids)
            yield from zip(names, engine.search_vectors(given.embeddings, asked), strict=True)
            return
        stream = given.texts
    if asked.hybrid:
        _prepare_hybrid(engine, asked, options["quiet"])
    yield from _in_batches(stream, asked.hybrid, partial(_of_engine, engine, asked))


def _require_rerankable(options: dict[str, Any]) -> None:
    """Raises UsageError for options of reranking that contradict one another, or where there is no text."""
    asked = [name for name in ("rerank", "rerank_depth") if options[name] is not None]
    if asked and options["no_rerank"]:
        raise click.UsageError(f"--no-rerank leaves hits as they are found; leave out --{asked[0].replace('_', '-')}.")
    if asked and options["like"] is not None:
        raise click.UsageError(
            "--rerank needs TEXT: a cross-encoder reads the question, and there is none with --like."
        )


def _refuse_hybrid(asked: "SearchOptions", what: str) -> None:
    if asked.hybrid:
        raise click.UsageError(f"--hybrid needs TEXT: it compares words, and there are none with {what}.")


def _prepare_hybrid(engine: "SearchEngine", asked: "SearchOptions", quiet: bool) -> None:
    from search.cli.progress import ProgressBar

    engine.check(asked)
    with ProgressBar(quiet) as progress:
        engine.prepare_hybrid(progress)


def _queries(texts: tuple[str, ...]) -> Iterator[str]:
    """Arguments one by one; `-` stands for the lines of standard input. Raises ConfigError for what is not UTF-8."""
    for text in texts:
        if text == "-":
            from indexer.corpus.query_file import read_query_lines  # with numpy, which a server's user can do without
            from indexer.errors import ConfigError

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


def _in_batches(
    stream: Iterable[str], hybrid: bool, ask: "Callable[[list[str]], Sequence[ReadAnswer]]"
) -> "Iterator[tuple[str, Answer[Hit] | None]]":
    """(query, hits) in order, None for a blank query. Queries that were cut are named on stderr."""
    from search.cli.output import note_length

    for batch in _batches(iter(stream)):
        texts = [query for query in batch if query.strip()]
        answers = ask(texts)
        for query, (_, tokens, limit) in zip(texts, answers, strict=True):
            note_length(query, tokens, limit, hybrid)
        found = (hits for hits, _, _ in answers)
        for query in batch:
            yield query, next(found) if query.strip() else None


def _of_engine(engine: "SearchEngine", asked: "SearchOptions", texts: list[str]) -> "Sequence[ReadAnswer]":
    """The answers of an index that is opened here."""
    from indexer.encoders.protocol import EncodeStats

    log = EncodeStats()
    answers = engine.search_many(texts, asked, log)
    limits = [engine.index.encoder.max_length] * len(texts)
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
    from search.files import to_json
    from search.text import counted

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
        missing = [{"segment": one.file, "first_row": one.first_row, "rows": one.rows} for one in hits.missing]
        return record | {"partial": True, "missing": missing}
    return record


def _print_for_people(query: str, hits: "Answer[Hit] | None", group_by: str | None) -> None:
    from search.cli.output import print_hits

    if hits is None:
        click.echo(f"error: {_BLANK}", err=True)
    else:
        print_hits(query, hits, group_by)
