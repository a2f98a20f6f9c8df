"""Options that say how a corpus is read and built, shared by the commands that take one."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from indexer.config import BuildConfig
    from indexer.corpus import Corpus, CorpusReport

Command = Callable[..., None]
_OPTIONS = (
    click.option("--config", "recipe", type=click.Path(path_type=Path),
                 help="Recipe file (TOML). Default: the settings of configs/minilm.toml, built in."),
    click.option("--set", "assignments", multiple=True, metavar="SECTION.KEY=VALUE",
                 help="Override one setting of the recipe."),
    click.option("--format", "format_", default="", metavar="NAME",
                 help="jsonl, csv, tsv, parquet, arrow or text; default by file name."),
    click.option("--id-column", default="", help="Column with ids. Default: _id, id or docid."),
    click.option("--title-column", default="", help="Column with titles. Default: title."),
    click.option("--text-column", default="", help="Column with texts. Default: text, contents or document_text."),
    click.option("--vector-column", default="", metavar="NAME",
                 help="Column with embeddings made elsewhere: no model is run. The same as encoder.kind=vectors."),
    click.option("--column", "columns", multiple=True, metavar="NAME:TYPE",
                 help="Read a metadata column as this type, such as year:int."),
    click.option("--drop-column", "drop", multiple=True, metavar="NAME", help="Leave a metadata column out."),
    click.option("--on-error", type=click.Choice(["fail", "skip"]), default="fail",
                 help="What to do with a bad row."),
)  # fmt: skip

CORPUS_NAMES = (
    "recipe", "assignments", "format_", "id_column", "title_column", "text_column", "vector_column", "columns", "drop",
    "on_error",
)  # fmt: skip
"""The names these options have in a command's arguments."""


def corpus_options(command: Command) -> Command:
    """Add the options above, in that order."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def beside(index: Path, suffix: str) -> Path:
    """A path next to an index, called as it is and a suffix."""
    whole = index.resolve() if index.name in ("", "..") else index  # "." has no name
    return whole.with_name(f"{whole.name}{suffix}")


def rejects_file(given: Path | None, index: Path, suffix: str, on_error: str) -> Path:
    """Where rows left out are listed: as --rejects says, else beside the index."""
    if given and on_error != "skip":
        raise click.UsageError("--rejects is for the rows that --on-error skip leaves out; pass both, or neither.")
    return given or beside(index, suffix)


def config_of(options: dict[str, Any]) -> "BuildConfig":
    """The recipe that these options make."""
    from indexer.config import BuildConfig

    config = BuildConfig.load(options["recipe"]) if options["recipe"] else BuildConfig()
    roles = ("id_column", "title_column", "text_column", "vector_column")
    names = {name: options[name] for name in roles if options[name]}
    return config.with_columns(names, options["columns"], options["drop"]).with_overrides(options["assignments"])


def corpus_of(
    sources: tuple[str, ...], config: "BuildConfig", options: dict[str, Any], rejects: Path | None
) -> "Corpus":
    """The corpus they name; rows left out are listed in `rejects`."""
    from indexer import read_corpus

    skip = options["on_error"] == "skip"
    return read_corpus(
        *sources,
        config=config.corpus,
        format=options["format_"],
        on_error="skip" if skip else "fail",
        rejects=rejects if skip else None,
        force=options.get("force", False),
    )


def remarks_on(read: "CorpusReport") -> list[str]:
    """What a pass over the corpus has to say."""
    remarks = []
    if read.made_ids:
        again = f"; {read.repeated:,} repeat others, told apart by -2, -3 and so on" if read.repeated else ""
        remarks.append(f"{read.made_ids:,} documents had no id; theirs are made of their content{again}")
    if read.blank_lines:
        remarks.append(f"blank lines left out: {read.blank_lines:,}")
    if read.rejected:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(read.rejected.items()))
        listed = f"; see {read.rejects_file}" if read.rejects_file else ""
        remarks.append(f"{sum(read.rejected.values()):,} rows were left out ({reasons}){listed}")
    if read.older_rejects_file:
        remarks.append(f"the list of rows that an earlier run left out is now {read.older_rejects_file}")
    if read.ignored_files:
        shown = ", ".join(read.ignored_files[:5])
        remarks.append(f"{len(read.ignored_files):,} files or folders that are no corpus were left out: {shown}")
    if read.unused_columns:
        names = ", ".join(f'"{name}"' for name in read.unused_columns)
        remarks.append(f"no row has a column {names}, which the settings name")
    return remarks
