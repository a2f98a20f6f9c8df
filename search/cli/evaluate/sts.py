"""`isotrope evaluate sts`."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from search.cli.evaluate.methods_options import methods_options
from search.cli.evaluate.options import (
    check_places,
    deliver,
    output_options,
    subject_of,
    subject_options,
    sweep_of,
    sweep_options,
)

if TYPE_CHECKING:
    from search.evaluation.result import Result


@click.command("sts")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@subject_options
@sweep_options
@click.option(
    "--protocol",
    "protocols",
    multiple=True,
    type=click.Choice(["mean", "wmean", "all"]),
    help="How a task of several subsets becomes one figure: the mean of their correlations (the default, as in the "
    "paper), the mean weighted by pairs, or one correlation over all pairs; repeatable.",
)
@click.option(
    "--fit",
    default="",
    metavar="task|corpus:PATH|index",
    help="What the whitening is fitted on: the task's own sentences (the paper's, transductive), another corpus (a "
    "sample of whitening.sample documents), or the embeddings of --index. Default: index with --index, else task.",
)
@click.option(
    "--table",
    type=click.Choice(["paper"]),
    help="Print our figures beside the published ones of WhiteningBERT, Table 1; models that are not on this machine "
    "are fetched if the hub can be reached.",
)
@methods_options
@output_options
def command(sources: tuple[str, ...], protocols: tuple[str, ...], fit: str, table: str | None, **options: Any) -> None:
    """Spearman's correlation with human similarity scores, seven STS tasks.

    SOURCE is a folder of TSV files (score, sentence1, sentence2; such as sts12.MSRpar.tsv, a subset of STS12), a
    SentEval download, or the id of a Hugging Face data set. Every sentence passes through the encoder once,
    however many settings are measured. Figures are times 100, with 95 % bootstrap intervals; those of different
    protocols or fits are not comparable.

    \b
    Examples:
      isotrope evaluate sts sts-folder
      isotrope evaluate sts sts-folder --layers -1 --layers 1,-1 --strength none --strength 1 -o sts.json
      isotrope evaluate sts sts-folder --index my-index --protocol mean --protocol all
      isotrope evaluate sts sts-folder --fit corpus:docs.jsonl --set whitening.sample=2000
      isotrope evaluate sts sts-folder --table paper
      isotrope evaluate sts sts-folder --methods sif --methods latte-mix --train sentences.txt
    """
    from search.cli.progress import BuildProgress

    check_places(options, *sources, fit.partition("corpus:")[2])
    measure = _chosen(table, options)
    with BuildProgress(options["quiet"]) as progress:
        result = measure(sources, protocols, fit, options, progress)
    deliver(result, options)


def _chosen(table: str | None, options: dict[str, Any]) -> Callable[..., "Result"]:
    """What measures."""
    if options["methods"]:
        from search.cli.evaluate.sts_methods import measure_methods

        if table:
            raise click.UsageError("--table paper and --methods print tables of their own; give one of them.")
        return measure_methods
    if options["train"] or options["train_documents"] or options["seeds"] is not None:
        raise click.UsageError("--train, --train-documents and --seeds belong to --methods.")
    return _paper if table else _sweep


def _sweep(
    sources: Sequence[str], protocols: Sequence[Any], fit: str, options: dict[str, Any], progress: Any
) -> "Result":
    from search.evaluation.sts.data import read_tasks
    from search.evaluation.sts.sts import StsOptions, evaluate_sts

    subject = subject_of(options)
    plan = StsOptions(subject.settings(sweep_of(options)), protocols or ("mean",), fit)
    return evaluate_sts(subject, read_tasks(*sources), plan, options["cache"], progress)


def _paper(
    sources: Sequence[str], protocols: Sequence[Any], fit: str, options: dict[str, Any], progress: Any
) -> "Result":
    from search.evaluation.papers.whiteningbert import refuse_other_protocols, whiteningbert_table
    from search.evaluation.sts.data import read_tasks

    refuse_other_protocols(protocols, fit, bool(options["index"]), sweep_of(options))
    return whiteningbert_table(subject_of(options), read_tasks(*sources), options["cache"], progress)
