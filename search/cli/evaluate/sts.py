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

protocols_option = click.option("--protocol", "protocols", multiple=True, type=click.Choice(["mean", "wmean", "all"]),
                                help="Figure for a task of several subsets: the mean of their correlations (the "
                                "default, as in the paper), the mean weighted by pairs, or one correlation over all "
                                "pairs; repeatable.")  # fmt: skip


@click.command("sts")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@target_options
@sweep_options
@protocols_option
@click.option("--fit", default="", metavar="task|corpus:PATH|index", help="Data that the whitening is fitted on: the "
              "task's own sentences (as in the paper, transductive), another corpus (whitening.sample of its documents)"
              ", or the embeddings of --index. Default: index with --index, else task.")  # fmt: skip
@result_options
def command(sources: tuple[str, ...], protocols: tuple[Any, ...], fit: str, **options: Any) -> None:
    """Spearman's correlation with human similarity scores, seven STS tasks.

    SOURCE is a folder of TSV files (score, sentence1, sentence2; such as sts12.MSRpar.tsv, a subset of STS12), a
    SentEval download, or the id of a Hugging Face data set. Every sentence is encoded once for all settings. Figures
    are times 100 in tables, from 0 to 1 in JSON, with 95 % bootstrap intervals. Figures of different protocols or fits
    are not comparable.

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
