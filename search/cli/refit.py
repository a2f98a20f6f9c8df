"""`isotrope refit`."""

from pathlib import Path
from typing import Any

import click

from search.cli.options import PATH, change_options, run_options


@click.command("refit")
@click.argument("index", type=PATH)
@click.option("--config", "recipe", type=PATH, metavar="NAME|FILE", help="Use whitening, index, hybrid and rerank "
              "of this recipe, such as that of tune -o; its other settings must equal the index's.")  # fmt: skip
@click.option("--set", "assignments", multiple=True, metavar="SECTION.KEY=VALUE", help="Change a setting of whitening, "
              "index, hybrid or rerank; the others stay.")  # fmt: skip
@change_options
def command(
    index: Path, assignments: tuple[str, ...], model: Path | None, as_json: bool, quiet: bool, **options: Any
) -> None:
    """Refit the whitening, or choose the index type again.

    INDEX is a path or a URL in object storage (s3://, gs:// or az://).
    Uses the stored embeddings of the documents that are in the index now: no document is encoded again. Without
    --config and --set, the recipe stays and the whitening is fitted to the current documents.

    \b
    Examples, on the index of `make demo`:
      isotrope refit demo/index
      isotrope refit demo/index --set whitening.strength=0.5
      isotrope refit demo/index --set index.type=HNSW32 --set index.recall=0.99
      isotrope refit demo/index --set hybrid.weight=0.4
      isotrope refit demo/index --set rerank.model=./cross-encoder --set rerank.depth=20
    """
    from indexer import BuildConfig, refit_index
    from search.cli.output import print_facts, print_report
    from search.cli.progress import ProgressBar
    from search.describe import index_type_in_words

    recipe = BuildConfig.load(options["recipe"]) if options["recipe"] else None
    run = run_options(options, allow_low_recall=options["allow_low_recall"])
    with ProgressBar(quiet) as progress:
        report = refit_index(index, assignments, run, progress, model, recipe)
    if print_report(report, as_json):
        return
    print_facts(
        [
            ("index", f"{report.index}, generation {report.generation}"),
            ("documents", f"{report.documents:,}, none encoded again"),
            ("dimensions", f"{report.dim:,}"),
            ("search", index_type_in_words(report.quality)),
        ]
    )
