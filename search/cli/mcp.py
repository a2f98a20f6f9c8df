"""`isotrope mcp`."""

from pathlib import Path
from typing import Any

import click

from search.cli.options import PATH
from search.cli.serve import engine_of, listen, log_to_stderr, note, require_server, server_options, settings_of

_OF_HTTP = ("host", "port", "api_key_file")


@click.command("mcp")
@click.argument("index", type=PATH)
@click.option("--http", is_flag=True, help="Answer over HTTP at /mcp instead of over standard input and output.")
@click.option("--host", default="127.0.0.1", show_default=True, help="With --http: address to listen on.")
@click.option("--port", type=int, default=8081, show_default=True, help="With --http: port to listen on; 0: any free.")
@server_options
def command(index: Path, **options: Any) -> None:
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
    source, default = click.get_current_context().get_parameter_source, click.core.ParameterSource.DEFAULT
    given = [name for name in _OF_HTTP if source(name) is not default]
    if given and not options["http"]:
        raise click.UsageError(f"--{given[0].replace('_', '-')} is for a server over HTTP. Fix: add --http.")
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
    note(f"{settings.name} is open for an agent on standard input and output")
    speak(engine_of(index, options), settings, streams, note)
