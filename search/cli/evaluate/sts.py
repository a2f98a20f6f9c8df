"""`isotrope evaluate sts`."""

from typing import Any

import click

from search.cli.options import (
    check_output_options,
    result_options,
    sweep_of,
    sweep_options,
    target_of,
    target_options,
)

protocols_option = click.option(
    "--protocol",
    "protocols",
    multiple=True,
    type=click.Choice(["mean", "wmean", "all"]),
    help="How a task of several subsets becomes one figure: the mean of their correlations (the default, as in the "
    "paper), the mean weighted by pairs, or one correlation over all pairs; repeatable.",
)


@click.command("sts")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@target_options
@sweep_options
@protocols_option
@click.option(
    "--fit",
    default="",
    metavar="task|corpus:PATH|index",
    help="What the whitening is fitted on: the task's own sentences (the paper's, transductive), another corpus (a "
    "sample of whitening.sample documents), or the embeddings of --index. Default: index with --index, else task.",
)
@result_options
def command(sources: tuple[str, ...], protocols: tuple[Any, ...], fit: str, **options: Any) -> None:
    """Spearman's correlation with human similarity scores, seven STS tasks.

    SOURCE is a folder of TSV files (score, sentence1, sentence2; such as sts12.MSRpar.tsv, a subset of STS12), a
    SentEval download, or the id of a Hugging Face data set. Every sentence passes through the encoder once,
    however many settings are measured. Tables show figures times 100, JSON holds them from 0 to 1, with 95 %
    bootstrap intervals; those of different protocols or fits are not comparable.

    \b
    Examples:
      isotrope evaluate sts sts-folder
      isotrope evaluate sts sts-folder --layers -1 --layers 1,-1 --strength none --strength 1 -o sts.json
      isotrope evaluate sts sts-folder --index demo/index --protocol mean --protocol all
      isotrope evaluate sts sts-folder --fit corpus:demo/stdlib.jsonl --set whitening.sample=2000
    """
    from search.cli.output import print_measured
    from search.evaluation.sts.data import read_tasks
    from search.evaluation.sts.sts import StsOptions, evaluate_sts

    check_output_options(options, *sources, fit.partition("corpus:")[2])
    target = target_of(options)
    plan = StsOptions(target.settings(sweep_of(options)), protocols or ("mean",), fit)
    tasks = read_tasks(*sources)
    print_measured(options, lambda progress: evaluate_sts(target, tasks, plan, options["cache"], progress))
