"""`isotrope demo-corpus`."""

from pathlib import Path

import click

from search.cli.output_options import force_option, stdout_free_for


@click.command("demo-corpus")
@click.argument("target", type=click.Path(path_type=Path))
@force_option
def command(target: Path, force: bool) -> None:
    """Write the standard library's docstrings as a corpus.

    Every module, class and function of the Python standard library found on this machine (its tests and private
    names left out) becomes one JSON line with id, text, module, kind and line. TARGET - is standard output.

    \b
    Example:
      isotrope demo-corpus stdlib.jsonl
    """
    from indexer.corpus.demo_corpus import write_stdlib_corpus

    with stdout_free_for(target):
        click.echo(f"{target}: {write_stdlib_corpus(target, force):,} documents.")
