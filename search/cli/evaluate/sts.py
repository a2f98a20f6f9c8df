"""`isotrope evaluate sts` and `isotrope evaluate layers`."""

from typing import Any

import click

from search.cli.options import (
    PATH,
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
    from search.cli.output import print_result
    from search.cli.progress import ProgressBar
    from search.evaluation.sts.data import read_tasks
    from search.evaluation.sts.sts import StsOptions, evaluate_sts

    check_output_options(options, *sources, fit.partition("corpus:")[2])
    target = target_of(options)
    plan = StsOptions(target.settings(sweep_of(options)), protocols or ("mean",), fit)
    with ProgressBar(options["quiet"]) as progress:
        result = evaluate_sts(target, read_tasks(*sources), plan, options["cache"], progress)
    print_result(result, options)


@click.command("layers")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("--pooling", type=click.Choice(["mean", "cls"]), help="Pooling over the tokens. Default: the recipe's.")
@click.option(
    "--strength",
    default="none",
    show_default=True,
    metavar="S",
    help='Whitening strength, 0 to 1, fitted on each task\'s own sentences; or "none" for no transform at all.',
)
@click.option(
    "--protocol",
    type=click.Choice(["mean", "wmean", "all"]),
    default="mean",
    show_default=True,
    help="How a task of several subsets becomes one figure, as in `isotrope evaluate sts`.",
)
@click.option(
    "--up-to",
    type=int,
    default=0,
    metavar="N",
    help="Largest number of layers combined. Default: all for models of up to 6 blocks, else 3.",
)
@click.option("--plot", type=PATH, metavar="FILE", help="Draw both figures into this file (.png, .svg, .pdf).")
@target_options
@result_options
def layers(sources: tuple[str, ...], **options: Any) -> None:
    """Every combination of layers on STS: a heat map and the best of n.

    SOURCE as for `isotrope evaluate sts`. Layers count from 0, the embedding output; 1 is the first block. Every
    sentence passes through the encoder once. Figures are Spearman's correlation, averaged over the tasks: times 100
    in tables, from 0 to 1 in JSON.

    \b
    Examples:
      isotrope evaluate layers sts-folder --plot layers.png
      isotrope evaluate layers sts-folder --strength 1 --up-to 2 -o layers.json
    """
    from search.cli.output import print_result
    from search.cli.progress import ProgressBar
    from search.evaluation.plots.drawing import check_plot
    from search.evaluation.plots.layers import plot_layers
    from search.evaluation.settings import parse_strength
    from search.evaluation.sts.data import read_tasks
    from search.evaluation.sts.layers import LayersOptions, evaluate_layers

    check_output_options(options, *sources)
    if plot := options["plot"]:
        check_plot(plot, options["force"])
    plan = LayersOptions(options["pooling"], parse_strength(options["strength"]), options["protocol"], options["up_to"])
    with ProgressBar(options["quiet"]) as progress:
        result = evaluate_layers(target_of(options), read_tasks(*sources), plan, options["cache"], progress)
    if plot:
        plot_layers(result, plot, options["force"])
    print_result(result, options)
