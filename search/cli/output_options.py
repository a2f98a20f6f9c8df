"""Where a command's results go: --force, the check before work begins, and standard output kept free for a result."""

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from indexer.config import BuildConfig

force_option = click.option("--force", is_flag=True, help="Overwrite files of results that are there already.")


def check_written(
    written: Mapping[str, Path],
    reads: Iterable[str | Path | None],
    force: bool,
    made: Mapping[str, Path] | None = None,
    whole: Collection[str] = (),
) -> None:
    """`check_outputs`, with what is read as it stands on the command line: names, globs, - and hub ids."""
    from search.files import check_outputs, read_by

    check_outputs(written, read_by(*reads), force, made, whole)


def check_rejects(
    rejects: Path,
    reads: Iterable[str | Path | None],
    options: Mapping[str, Any],
    made: Mapping[str, Path] | None = None,
) -> None:
    """The same for the one file that building and adding write beside an index.

    What it may replace, and that it is no part of the corpus, `read_corpus` says.
    """
    written = {"--rejects": rejects} if options["on_error"] == "skip" else {}
    check_written(written, reads, force=True, made=made)


def recipe_reads(config: "BuildConfig | None", index: str | Path | None = None) -> list[str]:
    """Files and folders that a recipe, or that of an index, names; those of a damaged index show when it is opened."""
    from indexer.config import BuildConfig
    from indexer.errors import IsotropeError
    from indexer.store.manifest import load_manifest

    if index is not None:
        try:
            config = BuildConfig.from_dict(load_manifest(Path(index)).config)
        except IsotropeError:
            return []
    if config is None:
        return []
    encoder = config.encoder
    return [
        name for name in (encoder.model, encoder.fitted, config.whitening.query_sample, config.index.queries) if name
    ]


@contextmanager
def stdout_free_for(*written: Path | None) -> Iterator[None]:
    """While one of these is standard output, a result goes there and all that is printed to standard error."""
    from indexer.output_files import is_stdout

    if any(path is not None and is_stdout(path) for path in written):
        with redirect_stdout(sys.stderr):
            yield
    else:
        yield
