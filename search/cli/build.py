"""`isotrope build` and `isotrope encode-parts`."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from search.cli.options import (
    PATH,
    check_rejects,
    corpus_of,
    corpus_options,
    documents_option,
    encoder_options,
    force_option,
    hardware_options,
    json_option,
    quiet_option,
    recipe_of,
    recipe_reads,
    rejects_file,
    run_options,
    skips_bad_rows,
    worker_options,
)

if TYPE_CHECKING:
    from indexer.corpus.corpus import CorpusReport
    from indexer.pipeline.build import BuildReport
    from indexer.pipeline.pending_parts import PreparedParts


@click.command("build")
@click.argument("sources", nargs=-1, metavar="SOURCE...")
@click.argument("index", type=PATH)
@documents_option
@corpus_options
@click.option("--rejects", type=PATH, help="File for skipped rows. Default: INDEX.rejects.jsonl.")
@force_option
@click.option("--overwrite", is_flag=True, help="Replace a complete index of another recipe or corpus.")
@click.option("--queries", type=PATH, help="File of real queries, one per line, to measure recall with. The same "
              "as index.queries.")  # fmt: skip
@click.option("--transform-from", type=PATH, metavar="INDEX", help="Reuse the transform of this index, of the same "
              "encoder, instead of fitting one.")  # fmt: skip
@click.option("--allow-low-recall", is_flag=True, help="Publish although the index misses index.recall.")
@hardware_options
@click.option("--half", type=click.Choice(["auto", "bfloat16", "float16"]), default="auto", help="16-bit type on CUDA "
              "for precision bfloat16.")  # fmt: skip
@click.option("--compile", is_flag=True, help="Compile the model with torch first, for long runs on a GPU.")
@worker_options
@click.option("--prepare", is_flag=True, help="Stop before encoding: write documents, and list the parts for isotrope "
              "encode-parts.")  # fmt: skip
@json_option
@quiet_option
def build(
    sources: tuple[str, ...], index: Path, rejects: Path | None, as_json: bool, quiet: bool, **options: Any
) -> None:
    """Build an index from a corpus, or continue an interrupted build.

    SOURCE is a file, a quoted glob, a folder, a BEIR folder, or - for standard input (with --format). With --documents
    files, each file of SOURCE is a document, except hidden files and those that .gitignore or .isotropeignore
    name. INDEX is the folder to write. Both may be URLs in object storage (s3://, gs:// or az://), and SOURCE a dataset
    on the Hugging Face hub (hf://datasets/user/name/data/*.parquet). Running the same command again continues an
    interrupted build and leaves a finished index unchanged.

    \b
    Examples:
      isotrope build demo/stdlib.jsonl demo/index
      isotrope build demo/stdlib.jsonl glove-index --config static --set encoder.model=glove.6B.300d.txt
      isotrope build notes/ files-index --documents files
      isotrope build "dumps/*.parquet" dumps-index --text-column body --set whitening.strength=0.5
      zcat notes.txt.gz | isotrope build - notes-index --format text
      isotrope build demo/stdlib.jsonl workers-index --executor processes --workers 2
    """
    from indexer import build_index, prepare_parts
    from indexer.pipeline.train import train_for_index
    from indexer.recipe.loading import states_setting
    from search.cli.output import print_note, stdout_free_for
    from search.cli.progress import ProgressBar

    if not sources:
        raise click.UsageError("Missing argument SOURCE. Usage: isotrope build SOURCE... INDEX")
    if options["prepare"] and options["transform_from"]:
        raise click.UsageError("--prepare needs no transform. Fix: pass --transform-from to the build without it.")
    config = recipe_of(options)
    if options["queries"]:
        config = replace(config, index=replace(config.index, queries=str(options["queries"])))
    skip = skips_bad_rows(config, options)
    run = run_options(options, quarantine=skip)
    rejects = rejects_file(rejects, index, ".rejects.jsonl", skip)
    corpus = corpus_of(sources, config, options, rejects)
    reads = [options["recipe"], options["transform_from"], *recipe_reads(config)]
    check_rejects(rejects if skip else None, reads, {"INDEX": index})
    if not options["transform_from"]:
        with ProgressBar(quiet) as progress:
            note = train_for_index(corpus, index, config, run, progress)
        if note:
            print_note(note)
    if options["prepare"]:
        with ProgressBar(quiet) as progress:
            prepared = prepare_parts(corpus, index, config, run, progress)
        with stdout_free_for(rejects):
            _print_prepared(prepared, corpus.report, as_json)
        return
    with ProgressBar(quiet) as progress:
        report = build_index(corpus, index, config, run, progress, transform_from=options["transform_from"])
    chosen = states_setting("whitening.strength", options["recipe"], options["assignments"])
    report = replace(report, untuned=report.untuned and not chosen)
    if not skip and rejects.exists():
        print_note(f"{rejects} lists rows that an earlier run skipped; this run skipped none")
    with stdout_free_for(rejects):
        _print(report, corpus.report, as_json)


def _print_prepared(prepared: "PreparedParts", read: "CorpusReport", as_json: bool) -> None:
    from search.cli.output import print_line, print_report

    if print_report(prepared, as_json, read):
        return
    if not prepared.pending:
        print_line(f"{prepared.index}: nothing to encode. Run the same build without --prepare.")
    else:
        print_line(
            f"{prepared.index}: {prepared.documents:,} documents in {prepared.parts:,} parts, {prepared.pending:,} of "
            f"them to encode ({prepared.rows:,} texts). Run isotrope encode-parts for 0:{prepared.pending} on any "
            "machines, then the same build without --prepare."
        )


def _print(report: "BuildReport", read: "CorpusReport", as_json: bool) -> None:
    from indexer.store.quality import Quality
    from search.cli.output import print_facts, print_line, print_report
    from search.describe import index_type_in_words
    from search.formatting import number

    if print_report(report, as_json, read, _remarks(report)):
        return
    if report.up_to_date:
        print_line(f"{report.index} is up to date: {report.documents:,} documents, generation {report.generation}.")
        return
    made = "written" if report.rows_given else "encoded"
    print_facts(
        [
            ("index", f"{report.index}, generation {report.generation}"),
            ("documents", number(report.documents)),
            ("windows", number(report.rows) if report.rows != report.documents else ""),
            ("dimensions", number(report.dim)),
            ("parts", f"{report.parts_encoded:,} {made}, {report.parts_kept:,} kept"),
            ("encoder", report.backend),
            *_work(report),
            ("search", index_type_in_words(report.quality)),
            ("self-hit", number(Quality.of(report.quality).gates["self_hit"].value)),
        ]
    )
    if report.untuned:
        print_line(f"The whitening is not tuned for this model: run isotrope tune {report.index}")


def _work(report: "BuildReport") -> list[tuple[str, str]]:
    known = report.rows - report.rows_encoded - report.rows_given
    if report.rows_given:
        return [("embeddings", f"{report.rows_given:,} from the corpus, {known:,} reused")]
    return [("texts", f"{report.rows_encoded:,} encoded, {known:,} reused"), ("tokens", f"{report.tokens:,}")]


def _remarks(report: "BuildReport") -> list[str]:
    remarks = []
    if report.truncated:
        cut = f"{report.truncated:,} {'documents' if report.rows == report.documents else 'windows'}"
        remarks.append(
            f"{cut} ({report.truncated / report.rows:.1%}) were longer than encoder.max_length and cut there"
        )
    if report.rows_reused:
        remarks.append(f"{report.rows_reused:,} embeddings were reused from the previous generation, by their text")
    return remarks


class PartNumbers(click.ParamType[slice]):
    """Numbers of parts, counted from 0, in Python's slice notation."""

    name = "FIRST:END"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> slice:
        if isinstance(value, slice):
            return value
        first, colon, end = str(value).partition(":")
        if not all(number.isdecimal() or (colon and not number) for number in (first, end) if colon or number == first):
            self.fail(f'"{value}" is not a range of parts; expected FIRST:END such as 0:128, or a number.', param, ctx)
        if not colon:
            return slice(int(first), int(first) + 1)
        return slice(int(first) if first else None, int(end) if end else None)


@click.command("encode-parts")
@click.argument("index", type=PATH)
@click.option("--parts", type=PartNumbers(), default=slice(None), help="Parts to encode, from 0. Default: all.")
@click.option("--cancel", is_flag=True, help="Cancel the prepared build and remove its encoded parts.")
@encoder_options
@worker_options
@json_option
@quiet_option
def encode_parts(index: Path, parts: slice, cancel: bool, as_json: bool, quiet: bool, **options: Any) -> None:
    """Encode parts of a prepared build, on any machine.

    First, isotrope build --prepare writes the documents of INDEX and lists its parts. Then any number of these
    commands each encode some parts, for example in a batch queue. They need only the model and INDEX: a shared folder
    or a URL in object storage (s3://, gs:// or az://). Finally, the same isotrope build without --prepare reads the
    parts, encodes missing ones, and publishes the index. Complete parts are skipped. Until then no other command
    changes the index; --cancel cancels the prepared build.

    In the script of a SLURM array, --parts "$SLURM_ARRAY_TASK_ID" encodes one part per job.

    \b
    Example:
      isotrope build demo/stdlib.jsonl parts-index --prepare
      isotrope encode-parts parts-index --parts 0:128
      isotrope build demo/stdlib.jsonl parts-index
    """
    from indexer import cancel_pending, encode_pending
    from search.cli.output import print_facts, print_note, print_report
    from search.cli.progress import ProgressBar
    from search.formatting import number

    if cancel:
        if parts != slice(None):
            raise click.UsageError("--cancel cancels the whole prepared build. Fix: leave out --parts.")
        _print_cancelled(index, cancel_pending(index), as_json)
        return
    run = run_options(options)
    with ProgressBar(quiet) as progress:
        report = encode_pending(index, parts, run, progress, options["model"])
    if print_report(report, as_json):
        return
    print_facts(
        [
            ("index", str(report.index)),
            ("parts", f"{report.parts_encoded:,} encoded, {report.parts_kept:,} kept, {report.left:,} left"),
            ("encoder", report.backend),
            ("texts", f"{number(report.rows_encoded)} encoded"),
            ("tokens", number(report.tokens)),
        ]
    )
    if not report.left:
        print_note("all parts are encoded: run the same isotrope build without --prepare to publish the index")


def _print_cancelled(index: Path, removed: int, as_json: bool) -> None:
    from search.cli.output import print_facts, print_json

    if as_json:
        print_json({"index": str(index), "parts_removed": removed})
    else:
        print_facts([("index", str(index)), ("parts", f"{removed:,} removed")])
