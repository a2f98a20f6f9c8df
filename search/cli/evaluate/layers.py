"""`isotrope evaluate layers`."""

from pathlib import Path
from typing import Any

import click

from search.cli.evaluate.options import check_places, deliver, output_options, subject_of, subject_options


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
@click.option("--plot", type=click.Path(path_type=Path), help="Draw both figures into this file (.png, .svg, .pdf).")
@subject_options
@output_options
def command(
    sources: tuple[str, ...],
    pooling: Any,
    strength: str,
    protocol: Any,
    up_to: int,
    **options: Any,
) -> None:
    """Every combination of layers on STS: a heat map and the best of n.

    SOURCE as for `isotrope evaluate sts`. Layers count from 0, the embedding output; 1 is the first block. Every
    sentence passes through the encoder once. Figures are Spearman's correlation times 100, averaged over the tasks.

    \b
    Examples:
      isotrope evaluate layers sts-folder --plot layers.png
      isotrope evaluate layers sts-folder --strength 1 --up-to 2 -o layers.json
    """
    from search.cli.progress import BuildProgress
    from search.evaluation.plots.drawing import check_plot
    from search.evaluation.plots.layers import plot_layers
    from search.evaluation.settings import parse_strength
    from search.evaluation.sts.data import read_tasks
    from search.evaluation.sts.layers import LayersOptions, evaluate_layers

    check_places(options, *sources)
    if plot := options["plot"]:
        check_plot(plot, options["force"])
    plan = LayersOptions(pooling, parse_strength(strength), protocol, up_to)
    with BuildProgress(options["quiet"]) as progress:
        result = evaluate_layers(subject_of(options), read_tasks(*sources), plan, options["cache"], progress)
    if plot:
        plot_layers(result, plot, options["force"])
    deliver(result, options)
