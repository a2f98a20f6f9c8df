"""`isotrope migrate`."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from search.cli.options import (
    PATH,
    check_output_options,
    encoder_options,
    force_option,
    given_flags,
    json_option,
    output_option,
    quiet_option,
    recipe_reads,
    run_options,
    worker_options,
)
from search.cli.review import review_options, reviewed

if TYPE_CHECKING:
    from indexer.progress import Progress
    from search.evaluation.result import Result
    from search.migration import MigrationOptions


@click.command("migrate")
@click.argument("index", type=PATH)
@click.option("--to", "new_model", default="", metavar="MODEL", help="The new encoder: a hub id, a folder, or a file "
              "of word vectors. Default: the index's own model, with --set.")  # fmt: skip
@click.option("--set", "assignments", multiple=True, metavar="SECTION.KEY=VALUE", help="Change a setting of the "
              "recipe, such as encoder.layers=[1,-1]; repeatable.")  # fmt: skip
@click.option("--mode", type=click.Choice(["full", "rescore", "map"]), help="Change the index: encode every document "
              "by the new encoder, order the first hits by it, or map questions. Default: compare only.")  # fmt: skip
@click.option("--depth", type=int, default=100, show_default=True, help="With --mode rescore: hits to order.")
@click.option("--sample", type=int, default=1500, show_default=True, help="Documents to compare on.")
@click.option("--cache", type=PATH, metavar="DIR", help="Folder that keeps the sample's embeddings between runs.")
@click.option("--to-index", type=PATH, metavar="INDEX", help="Compare with this index of the same documents, by the "
              "judged queries of --beir.")  # fmt: skip
@click.option("--beir", type=PATH, metavar="FOLDER", help="With --to-index: BEIR folder with the judged queries.")
@click.option("--split", default="test", show_default=True, help="With --beir: judgements to use, qrels/SPLIT.tsv.")
@click.option("--query-vectors", type=PATH, metavar="FILE.npy", help="With --beir: embeddings of the queries by the "
              "model of INDEX, with their ids in FILE.ids.txt next to it.")  # fmt: skip
@click.option("--to-query-vectors", type=PATH, metavar="FILE.npy", help="With --beir: embeddings of the queries by the "
              "model of --to-index.")  # fmt: skip
@click.option("--allow-low-recall", is_flag=True, help="Publish although the index misses index.recall.")
@encoder_options
@worker_options
@review_options
@output_option("File for the result as JSON; with --mode rescore or map, the new folder for it.")
@force_option
@json_option
@quiet_option
def command(index: Path, new_model: str, assignments: tuple[str, ...], mode: str | None, **options: Any) -> None:
    """Change the encoder of an index, after a measured comparison.

    INDEX is a path or a URL in object storage (s3://, gs:// or az://).
    Without --mode nothing changes: a sample of the documents is encoded by both encoders, and a piece of each document
    must find the rest. The tables show the price of encoding every document, and the scores of the index as it is, of
    its candidates rescored by the new encoder, of new questions mapped into the old vectors, and of the new encoder
    alone. If one of them is better, the last line is the command that changes the index.

    --mode full encodes the stored documents and publishes the next generation. The index answers as before until then.
    Running the same command again continues an interrupted run. --mode rescore orders the first hits by vectors of the
    new encoder, which it makes as documents are met and keeps in the folder -o. --mode map encodes questions by the new
    encoder and maps them into the stored vectors; -o gets the map. Both compare first and encode no other document.

    --to-index compares two indexes of the same documents, such as two sets of your own vectors, on judged queries. No
    document is encoded. Queries are encoded by the model of an index, or their embeddings are read.

    \b
    Examples:
      isotrope migrate demo/index --to ./better-model
      isotrope migrate demo/index --set encoder.layers=[1,-1] -o comparison.json
      isotrope migrate my-index --to ./better-model --mode rescore --depth 50 -o my-rescorer
      isotrope migrate my-index --to ./better-model --mode full
      isotrope migrate old-index --to-index new-index --beir scifact
    """
    if mode != "rescore" and given_flags(["depth"]):
        raise click.UsageError("--depth is for --mode rescore. Fix: add it, or leave --depth out.")
    if options["to_index"] is not None:
        _compare_vectors(index, options)
    elif given := given_flags(["beir", "split", "query_vectors", "to_query_vectors"]):
        raise click.UsageError(f"{given[0]} is for a comparison with another index. Fix: name it with --to-index.")
    elif mode == "full":
        _migrate(index, new_model, assignments, options)
    else:
        _compare(index, new_model, assignments, mode, options)


def _compare(
    index: Path, model: str, assignments: tuple[str, ...], mode: str | None, options: Mapping[str, Any]
) -> None:
    """Compare the encoders, and with a mode record a map or a rescorer in the folder -o."""
    from functools import partial

    from indexer.errors import as_shown
    from indexer.system.output_files import check_output_folder
    from search.cli.output import print_measured
    from search.migration import MigrationOptions, compare_encoders, map_index, rescore_index

    if given := given_flags(["review", "fail_over", "allow_low_recall"]):
        raise click.UsageError(f"{given[0]} is for --mode full. Fix: add it, or leave {given[0]} out.")
    task = MigrationOptions(model, assignments, options["sample"], options["model"], options["cache"])
    folder, run = options["output"], run_options(options)
    if mode is not None and folder is None:
        raise click.UsageError(f"--mode {mode} writes a folder. Fix: name it with -o FOLDER.")
    if mode is not None:
        check_output_folder(folder)
    _print_price(index, task)
    if mode is None:
        check_output_options(options, index, model or None, *recipe_reads(None, index))
        _print_compared(options, lambda progress: compare_encoders(index, task, run, progress))
        return
    change = partial(map_index, index, folder, task)
    if mode == "rescore":
        change = partial(rescore_index, index, folder, task, options["depth"])
    print_measured({**options, "output": None}, lambda progress: change(run, progress))
    if not options["as_json"]:
        undo = '--queries-by ""' if mode == "map" else "--set rerank.model="
        shown = as_shown(str(index))
        click.echo(f"\n{shown}: uses {folder} from now on. Back: isotrope refit {shown} {undo}")


def _compare_vectors(index: Path, options: Mapping[str, Any]) -> None:
    from search.migration import GivenQueries, compare_vectors

    fixed = ("new_model", "assignments", "mode", "sample", "cache", "model", "review", "fail_over", "allow_low_recall")
    if given := given_flags(fixed):
        raise click.UsageError(f"{given[0]} does not apply to --to-index, which changes nothing. Fix: leave it out.")
    if options["beir"] is None:
        raise click.UsageError("--to-index compares by judged queries. Fix: name their folder with --beir FOLDER.")
    other = options["to_index"]
    task = GivenQueries(options["beir"], options["query_vectors"], options["to_query_vectors"], options["split"])
    check_output_options(options, index, other, task.folder, task.to_query_vectors)
    run = run_options(options)
    _print_compared(options, lambda progress: compare_vectors(index, other, task, run, progress))


def _print_compared(options: Mapping[str, Any], measure: "Callable[[Progress], Result]") -> None:
    """Print a comparison, and below it the use of the best way if it is better."""
    from search.cli.output import print_measured, stdout_free_for

    result = print_measured(options, measure)
    if not options["as_json"] and result["choice"]["command"]:
        with stdout_free_for(options["output"]):
            click.echo(f"\nuse it: {result['choice']['command']}")


def _print_price(index: Path, task: "MigrationOptions") -> None:
    """Print the price of encoding every document, before anything is encoded."""
    from search.cli.output import print_note
    from search.index import Index
    from search.migration.price import migration_price
    from search.migration.recipe import migrated_recipe
    from search.migration.tables import price_in_words

    opened = Index.open(index)
    price = migration_price(opened, migrated_recipe(opened, task.model, task.assignments))
    print_note(price_in_words(price.to_dict()))


def _migrate(index: Path, model: str, assignments: tuple[str, ...], options: Mapping[str, Any]) -> None:
    from search.cli.output import print_facts, print_report
    from search.cli.progress import ProgressBar
    from search.describe import index_type_in_words
    from search.formatting import number
    from search.migration import migrate_index

    if given := given_flags(["sample", "cache", "output", "force"]):
        raise click.UsageError(f"{given[0]} is for the comparison. Fix: leave it out, or leave out --mode.")
    if options["model"] and (options["review"] or options["fail_over"] is not None):
        raise click.UsageError("--review finds both models by the recipes. Fix: leave out --model.")
    with ProgressBar(options["quiet"]) as progress, reviewed(options, progress.pause):
        report = migrate_index(index, model, assignments, run_options(options), progress)
    if print_report(report, options["as_json"]):
        return
    print_facts(
        [
            ("index", f"{report.index}, generation {report.generation}"),
            ("documents", number(report.documents)),
            ("dimensions", number(report.dim)),
            ("parts", f"{report.parts_encoded:,} encoded, {report.parts_kept:,} kept"),
            ("encoder", report.backend),
            ("texts", f"{report.rows_encoded:,} encoded"),
            ("search", index_type_in_words(report.quality)),
        ]
    )
