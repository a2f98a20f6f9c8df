"""`isotrope query --url`: a server answers in place of an index."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from search.cli.options import PATH, all_of, given_flags
from search.ranking.options import SEARCH_OPTIONS

if TYPE_CHECKING:
    from search.client.blocking import SearchClient
    from search.hits import Answer, Hit
    from search.queries import QuerySet
    from search.ranking.options import SearchOptions

ReadAnswer = tuple["Answer[Hit]", int, int]
"""The answer to a text, the tokens of the text, and the number of tokens that the encoder reads."""
_OF_AN_INDEX = ("query_encoder", "model", "rerank", "device", "backend", "threads", "recall", "shards", "ray_address")

server_options = all_of(
    click.option("--url", metavar="URL", help="Query this server of isotrope serve instead of an INDEX."),
    click.option("--api-key-file", type=PATH, metavar="FILE", envvar="ISOTROPE_API_KEY_FILE", show_envvar=True,
                 help="With --url: a file that begins with one of the server's keys."),
)  # fmt: skip
"""--url, --api-key-file"""


def check_options(options: dict[str, Any]) -> None:
    """Raise UsageError for options that do not apply with --url, or without it."""
    if options["url"] is None:
        if given_flags(["api_key_file"]):
            raise click.UsageError("--api-key-file is for a server. Fix: add --url.")
        return
    if given := given_flags([*_OF_AN_INDEX, *(option.name for option in SEARCH_OPTIONS if not option.is_served)]):
        raise click.UsageError(f"{given[0]} is for an INDEX; the server of --url sets it.")
    if options["queries"] and options["queries"].suffix.lower() == ".npy":
        raise click.UsageError(f"--queries {options['queries']}: a server accepts texts, not embeddings.")


def server_of(options: dict[str, Any]) -> "SearchClient":
    """Return a client for the server of --url, with the key of --api-key-file."""
    from search.cli.output import print_note
    from search.client.blocking import SearchClient
    from search.server.settings import is_readable_by_others, read_keys

    key, file = None, options["api_key_file"]
    if file is not None:
        key = read_keys(file)[0]
        if is_readable_by_others(file):
            print_note(f"{file} can be read by other users of this machine: chmod 600 {file}")
    client = SearchClient(
        options["url"], key, on_wait=lambda seconds: print_note(f"the server is busy; asking again in {seconds:g} s")
    )
    if key is not None and not client.is_private:
        print_note(f"{options['url']} is not https: others on the network can read the key")
    return client


def queries_of_file(path: Path, dim: int) -> "QuerySet":
    """Return the queries of a file or a BEIR folder, and print notes on them; embeddings have `dim` numbers."""
    from search.cli.output import print_note
    from search.queries import read_queries

    given = read_queries(path, dim)
    for note in given.notes:
        print_note(note)
    return given


def answers_of_server(client: "SearchClient", search: "SearchOptions", texts: list[str]) -> "Sequence[ReadAnswer]":
    """Return the answers of a server."""
    from search.hits import Answer, Truncated

    whole, unread = Truncated(1, 1), Truncated(0, 0)
    results = client.results(texts, search)
    lengths = [unread if result.unknown else result.truncated or whole for result in results]
    return [(Answer(result.hits), length.tokens, length.limit) for result, length in zip(results, lengths, strict=True)]
