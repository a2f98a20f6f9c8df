"""`isotrope serve` and `isotrope mcp`."""

import errno
import logging
import os
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Any, TextIO

import click

from indexer.errors import written_for
from search.cli.options import PATH, all_of, encoder_options, given_flags, query_encoder_option, run_options
from search.formatting import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from search.engine import SearchEngine
    from search.server.app import ServedIndex
    from search.server.generations import OnChange
    from search.server.settings import ServerSettings

    Serve = Callable[[SearchEngine, ServerSettings, OnChange], ServedIndex]

server_options = all_of(
    click.option("--api-key-file", type=PATH, metavar="FILE", help="Keys that clients must send, one per line. "
                 "Required if other machines can reach --host."),
    click.option("--name", metavar="NAME", help="Name of the index for clients. Default: its folder's name."),
    click.option("--recall", type=float, help="Target recall@10 of the search, instead of the recipe's."),
    click.option("--max-pending", type=int, default=256, show_default=True, help="Most concurrent requests; others get "
                 "429."),
    click.option("--deadline", type=float, default=30.0, show_default=True, help="Seconds that a request may take."),
    click.option("--link", metavar="TEMPLATE", help="Address of a file for hits, such as "
                 '"https://host/{path}#L{line}"; also {folder}, {id} and {page}.'),
    query_encoder_option,
    encoder_options,
)  # fmt: skip
"""--api-key-file, --name, --recall, --max-pending, --deadline, --link, --encoder and `encoder_options`"""


@click.command("serve")
@click.argument("index", type=PATH)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=int, default=8080, show_default=True, help="Port to listen on; 0: any free port.")
@click.option("--admin-key-file", type=PATH, metavar="FILE", help="Keys for /admin/reload, one per line.")
@click.option("--access-log", is_flag=True, help="Log each request: address, method, path and status.")
@server_options
def serve(index: Path, **options: Any) -> None:
    """Serve an index over HTTP, with a search page.

    INDEX is a path or a URL in object storage (s3://, gs:// or az://).
    The page is at /, the API below /v1, its description at /openapi.json. The server loads new generations of the
    index while it runs. SIGTERM stops it after open requests are answered.

    \b
    Examples, on the index of `make demo`:
      isotrope serve demo/index
      isotrope serve demo/index --host 0.0.0.0 --port 80 --api-key-file keys.txt
      isotrope serve notes-index --link "https://git.example.org/notes/blob/main/{path}#L{line}"
    """
    require_server()
    from search.server.app import serve_engine

    listen(index, options, serve_engine)


def listen(index: Path, options: dict[str, Any], serve: "Serve", path: str = "", what: str = "request") -> None:
    """Answer requests or calls (`what`) over HTTP until a signal. `path` is appended to the printed URL."""
    from search.server.http.listener import Listener

    log_to_stderr()
    settings = settings_of(index, options)
    listener = Listener(serve(engine_of(index, options), settings, note), settings)
    port = listener.url.rpartition(":")[2]
    others = f", and to other machines at http://{gethostname()}:{port}{path}" if listener.is_on_all_addresses else ""
    with written_for("library"):  # answers name the fields of requests
        cut = listener.listen(
            lambda url: click.echo(f"{settings.name} is served at {url}{path}{others} (Ctrl-C stops).")
        )
    note("stopped; " + (f"{counted(cut, f'open {what}')} cut off" if cut else f"all open {what}s were answered"))


def note(line: str, level: int = logging.INFO) -> None:
    """Write a note to the server's log."""
    from indexer.errors import as_shown
    from search.formatting import escape

    logging.getLogger("isotrope.server").log(level, "%s", escape(as_shown(line)))


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes the log to stderr, and discards it once the reader of stderr has gone: the server keeps running."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's own name
        """Leave nothing in stderr's buffer: flushing it at the end would fail and change the exit code.

        A full disk is different, because it can have room again.
        """
        error = sys.exception()
        if isinstance(error, OSError) and error.errno not in (errno.ENOSPC, errno.EDQUOT):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stderr.fileno())
            os.close(nowhere)
        else:
            super().handleError(record)


def log_to_stderr() -> None:
    """Log notes and faults of the server, a line each with its time, and requests if there is an access log.

    Clients' mistakes are counted, not logged, because there can be many.
    """
    logging.basicConfig(
        format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING, handlers=[_StderrHandler()]
    )
    for name in ("isotrope.server", "uvicorn.access"):  # uvicorn writes an access log only with `access_log`
        logging.getLogger(name).setLevel(logging.INFO)
    uvicorn = logging.getLogger("uvicorn.error")
    uvicorn.setLevel(logging.ERROR)
    uvicorn.addFilter(lambda record: "without completing response" not in record.getMessage())  # the client has left


def require_server() -> None:
    """Raise MachineError if a package of the server is not installed."""
    from indexer.errors import MachineError
    from indexer.lazy_imports import install_line

    for name in ("fastapi", "prometheus_client", "uvicorn", "httptools"):
        if find_spec(name) is None:
            raise MachineError(f"The server needs the package {name}. Install it: {install_line('serve')}.")


def settings_of(index: Path, options: dict[str, Any]) -> "ServerSettings":
    """Return the settings of the server. Raises ConfigError."""
    from indexer.errors import as_shown
    from search.server.links import LinkTemplate
    from search.server.settings import Keys, ServerLimits, ServerSettings, is_readable_by_others, open_connections

    keys = {}
    for name in ("api_key_file", "admin_key_file"):
        file = options.get(name)
        if file and is_readable_by_others(file):
            note(f"{file} can be read by other users of this machine. Fix: chmod 600 {file}", logging.WARNING)
        keys[name] = Keys.read(file) if file else Keys()
    limits = ServerLimits(pending=options["max_pending"], deadline=options["deadline"])
    connections = open_connections(limits.connections)
    if connections < limits.connections:
        note(
            f"{connections:,} connections can be open at once, not {limits.connections:,}: this process may open only "
            f"{2 * connections:,} files. Raise the limit with ulimit -n, or LimitNOFILE= of systemd."
        )
        limits = replace(limits, connections=connections)
    name = options["name"]
    if name is None:
        name = as_shown(str(index.resolve())).rstrip("/").rpartition("/")[2]
    listed = options.get("access_log", False)
    api, admin = keys["api_key_file"], keys["admin_key_file"]
    link = None if options["link"] is None else LinkTemplate(options["link"])
    return ServerSettings(name, options["host"], options["port"], api, admin, limits, listed, link)


def engine_of(index: Path, options: dict[str, Any]) -> "SearchEngine":
    """Return the engine that answers."""
    from search.engine import SearchEngine

    engine = SearchEngine(index, options["model"], run_options(options), recall=options["recall"])
    if options["query_encoder"] is not None:
        engine.encode_queries_by(options["query_encoder"])
    recorded, chosen = engine.index.config.queries.encoder, options["query_encoder"]
    if encoder := recorded if chosen is None else chosen:
        note(f"questions are encoded by {encoder}")
    return engine


@click.command("mcp")
@click.argument("index", type=PATH)
@click.option("--http", is_flag=True, help="Answer over HTTP at /mcp instead of over standard input and output.")
@click.option("--host", default="127.0.0.1", show_default=True, help="With --http: address to listen on.")
@click.option("--port", type=int, default=8081, show_default=True, help="With --http: port to listen on; 0: any free.")
@server_options
def mcp(index: Path, **options: Any) -> None:
    """Serve an index to agents over the Model Context Protocol.

    INDEX is a path or a URL in object storage (s3://, gs:// or az://).
    An agent's program starts this command and talks to it over standard input and output, until it closes the input;
    notes go to standard error. The tools are search, fetch and search_documents. `isotrope serve` answers agents at
    /mcp too.

    \b
    Examples, on the index of `make demo`:
      isotrope mcp demo/index
      isotrope mcp demo/index --http --port 8081
    """
    if not options["http"] and (given := given_flags(("host", "port", "api_key_file"))):
        raise click.UsageError(f"{given[0]} is for a server over HTTP. Fix: add --http.")
    require_agents()
    if options["http"]:
        from search.server.app import serve_agents

        listen(index, options, serve_agents, "/mcp", "call")
    else:
        _serve_standard_streams(index, options)


def require_agents() -> None:
    """Raise MachineError if a package of the agent server is not installed."""
    from indexer.errors import MachineError
    from indexer.lazy_imports import install_line

    require_server()
    try:
        import mcp  # noqa: F401
    except ImportError as error:
        raise MachineError(
            f"The agent server needs the package {error.name}. Install it: {install_line('mcp')}."
        ) from error


def _serve_standard_streams(index: Path, options: dict[str, Any]) -> None:
    from search.server.mcp.standard_streams import take_standard_streams

    streams = take_standard_streams()  # before anything else, because loading the index may print
    from search.server.app import speak

    log_to_stderr()
    settings = settings_of(index, options)
    engine = engine_of(index, options)
    note(f"{settings.name} is open for an agent on standard input and output")
    speak(engine, settings, streams, note)
