"""`isotrope build`."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from indexer.config import BuildConfig
    from indexer.corpus import CorpusReport
    from indexer.pipeline import BuildReport


@click.command("build")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.argument("index", type=click.Path(path_type=Path))
@click.option(
    "--config",
    "recipe",
    type=click.Path(path_type=Path),
    help="Recipe file (TOML). Default: the settings of configs/minilm.toml, built in.",
)
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    help="Override one setting of the recipe.",
)
@click.option(
    "--format",
    "format_",
    default="",
    metavar="NAME",
    help="jsonl, csv, tsv, parquet, arrow or text; default by file name.",
)
@click.option("--id-column", default="", help="Column with ids. Default: _id, id or docid.")
@click.option("--title-column", default="", help="Column with titles. Default: title.")
@click.option("--text-column", default="", help="Column with texts. Default: text, contents or document_text.")
@click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="NAME:TYPE",
    help="Read a metadata column as this type, such as year:int.",
)
@click.option("--drop-column", "drop", multiple=True, metavar="NAME", help="Leave a metadata column out.")
@click.option("--on-error", type=click.Choice(["fail", "skip"]), default="fail", help="What to do with a bad row.")
@click.option(
    "--rejects", type=click.Path(path_type=Path), help="File for rows left out. Default: INDEX.rejects.jsonl."
)
@click.option("--overwrite", is_flag=True, help="Publish over a complete index of another recipe or corpus.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, cuda:N or mps.")
@click.option(
    "--half",
    type=click.Choice(["auto", "bfloat16", "float16"]),
    default="auto",
    help="16-bit type on CUDA for precision bfloat16.",
)
@click.option("--workers", type=int, default=1, show_default=True, help="Encoding processes; one a GPU.")
@click.option("--threads", type=int, default=0, help="CPU threads in all; 0 takes every core.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--quiet", is_flag=True, help="No progress bars.")
def command(
    sources: tuple[str, ...],
    index: Path,
    recipe: Path | None,
    assignments: tuple[str, ...],
    format_: str,
    on_error: str,
    rejects: Path | None,
    as_json: bool,
    quiet: bool,
    **rest: Any,
) -> None:
    """Build an index from a corpus, or continue an interrupted build.

    SOURCE is a file, a quoted glob, a folder, a BEIR folder, or - for standard input (with --format). INDEX is
    the folder to make. Running the same command again continues an interrupted build and leaves a finished one
    as it is.

    \b
    Examples:
      isotrope build docs.jsonl my-index
      isotrope build "dumps/*.parquet" my-index --text-column body --set whitening.strength=0.5
      zcat notes.txt.gz | isotrope build - my-index --format text
    """
    from indexer import RunOptions, build_index, read_corpus
    from search.cli.progress import BuildProgress

    config = _config(recipe, assignments, rest)
    options = RunOptions(
        device=rest["device"],
        workers=rest["workers"],
        threads=rest["threads"],
        half=rest["half"],
        overwrite=rest["overwrite"],
    )
    corpus = read_corpus(
        *sources,
        config=config.corpus,
        format=format_,
        on_error="skip" if on_error == "skip" else "fail",
        rejects=(rejects or index.with_name(f"{index.name}.rejects.jsonl")) if on_error == "skip" else None,
    )
    with BuildProgress(quiet) as progress:
        report = build_index(corpus, index, config, options, progress)
    _print(report, corpus.report, as_json)


def _config(recipe: Path | None, assignments: tuple[str, ...], rest: dict[str, Any]) -> "BuildConfig":
    from indexer.config import BuildConfig

    config = BuildConfig.load(recipe) if recipe else BuildConfig()
    names = {name: rest[name] for name in ("id_column", "title_column", "text_column") if rest[name]}
    return config.with_columns(names, rest["columns"], rest["drop"]).with_overrides(assignments)


def _print(report: "BuildReport", read: "CorpusReport", as_json: bool) -> None:
    from search.cli.output import number, print_facts, print_json, print_note

    for line in _remarks(report, read):
        print_note(line)
    if as_json:
        corpus = {name: value for name, value in vars(read).items() if value}
        print_json(asdict(report) | {"index": str(report.index), "corpus": corpus})
        return
    if report.up_to_date:
        click.echo(f"{report.index} is up to date: {report.documents:,} documents, generation {report.generation}.")
        return
    print_facts(
        [
            ("index", f"{report.index}, generation {report.generation}"),
            ("documents", number(report.documents)),
            ("dimensions", number(report.dim)),
            ("parts", f"{report.parts_encoded:,} encoded, {report.parts_kept:,} kept"),
            ("texts", f"{report.rows_encoded:,} encoded, {report.rows - report.rows_encoded:,} known before"),
            ("tokens", number(report.tokens)),
            ("self-hit", number(report.quality["self_hit"]["value"])),
        ]
    )


def _remarks(report: "BuildReport", read: "CorpusReport") -> list[str]:
    remarks = list(report.notes)
    if report.truncated:
        share = report.truncated / report.rows
        remarks.append(
            f"{report.truncated:,} documents ({share:.1%}) were longer than encoder.max_length and cut there"
        )
    if report.rows_reused:
        remarks.append(f"{report.rows_reused:,} embeddings were taken over from the generation before, by their text")
    if report.retries:
        remarks.append(f"{report.retries:,} batches ran out of memory and were halved; scores may differ by rounding")
    if read.made_ids:
        remarks.append(f"{read.made_ids:,} documents had no id; theirs are made of file name and line number")
    if read.blank_lines:
        remarks.append(f"blank lines left out: {read.blank_lines:,}")
    if read.rejected:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(read.rejected.items()))
        remarks.append(f"{sum(read.rejected.values()):,} rows were left out ({reasons}); see {read.rejects_file}")
    if read.ignored_files:
        shown = ", ".join(read.ignored_files[:5])
        remarks.append(f"{len(read.ignored_files):,} files or folders that are no corpus were left out: {shown}")
    if read.unused_columns:
        names = ", ".join(f'"{name}"' for name in read.unused_columns)
        remarks.append(f"no row has a column {names}, which the settings name")
    return remarks
