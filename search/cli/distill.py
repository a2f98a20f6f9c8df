"""`isotrope distill`."""

from pathlib import Path
from typing import Any

import click

from search.cli.options import PATH, encoder_options, json_option, quiet_option, run_options


@click.command("distill")
@click.argument("index", type=PATH)
@click.option("-o", "--output", type=PATH, required=True, metavar="TABLE", help="Folder to write the table to.")
@click.option("--sample", type=int, default=100_000, show_default=True, help="Documents to fit the table to.")
@click.option("--beir", type=PATH, multiple=True, metavar="FOLDER", help="Measure the judged queries of this BEIR "
              "folder; repeatable.")  # fmt: skip
@click.option("--sts", type=PATH, multiple=True, metavar="SOURCE", help="Measure these STS pairs; repeatable.")
@click.option("--hybrid", is_flag=True, help="Also measure judged queries with BM25.")
@click.option("--tokenizer", type=PATH, metavar="FOLDER", help="Folder of a model whose tokenizer the table uses. "
              "Default: the index's own model.")  # fmt: skip
@encoder_options
@json_option
@quiet_option
def command(index: Path, output: Path, **options: Any) -> None:
    """Make a table that answers the questions of an index without its encoder.

    INDEX is a path or a URL in object storage (s3://, gs:// or az://).
    The table has a vector for each token. It is fitted to the stored vectors of the documents: no document is encoded.
    A question is the mean of its tokens, which takes less than a millisecond. The output shows what the index loses:
    the own encoder and the table answer the same questions. Documents stay as they are.

    \b
    Examples, on the index of `make demo`:
      isotrope distill demo/index -o demo/table
      isotrope query demo/index --encoder demo/table "walk a directory tree"
      isotrope refit demo/index --queries-by demo/table
      isotrope refit demo/index --queries-by ""
    """
    from search.cli.output import print_result
    from search.cli.progress import ProgressBar
    from search.distill import DistillOptions, distill_index

    task = DistillOptions(
        options["sample"], options["beir"], options["sts"], options["hybrid"], options["tokenizer"], options["model"]
    )
    with ProgressBar(options["quiet"]) as progress:
        result = distill_index(index, output, task, run_options(options), progress)
    print_result(result, {**options, "output": None}, compare=False)
    if not options["as_json"]:
        losses = [loss for pair in result.comparisons or () for loss in pair["measure"].values()]
        if all(loss["decided"] and loss["value"] < 0 for loss in losses):
            click.echo("\nthe table is worse than the own encoder on all of these questions")
        click.echo(f"\nanswer with it: {result['command']}")
