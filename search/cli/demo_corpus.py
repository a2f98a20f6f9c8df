"""`isotrope demo-corpus`."""

from pathlib import Path

import click


@click.command("demo-corpus")
@click.argument("target", type=click.Path(path_type=Path))
def command(target: Path) -> None:
    """Write the standard library's docstrings as a corpus.

    Every module, class and function of the Python standard library found on this machine (its tests and private
    names left out) becomes one JSON line with id, text, module, kind and line.

    \b
    Example:
      isotrope demo-corpus stdlib.jsonl
    """
    from indexer.corpus.stdlib import write_stdlib_corpus

    click.echo(f"{target}: {write_stdlib_corpus(target):,} documents.")
