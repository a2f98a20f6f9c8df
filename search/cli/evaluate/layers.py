"""`isotrope evaluate layers`."""

from pathlib import Path
from typing import Any

import click

from search.cli.options import check_output_options, result_options, target_of, target_options


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
@target_options
@result_options
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
    from search.cli.output import print_note, write_and_print
    from search.cli.progress import ProgressBar
    from search.evaluation.plots.drawing import check_plot
    from search.evaluation.plots.layers import plot_layers
    from search.evaluation.settings import parse_strength
    from search.evaluation.sts.data import read_tasks
    from search.evaluation.sts.layers import LayersOptions, evaluate_layers

    check_output_options(options, *sources)
    if plot := options["plot"]:
        check_plot(plot, options["force"])
    plan = LayersOptions(pooling, parse_strength(strength), protocol, up_to)
    with ProgressBar(options["quiet"]) as progress:
        result = evaluate_layers(target_of(options), read_tasks(*sources), plan, options["cache"], progress)
    for note in result["notes"]:
        print_note(note)
    if plot:
        plot_layers(result, plot, options["force"])
    write_and_print(result, options, _show)


def _show(result: dict[str, Any]) -> None:
    """The grid of two layers, its lower half, and the best combination of each size."""
    from search.cli.output import print_table
    from search.evaluation.plots.layers import grid_of
    from search.evaluation.settings import shortest

    layers, paper = [str(layer) for layer in result["layers"]], result["paper"]
    grid = grid_of(result)
    rows = [[layer, *(f"{value:.2f}" for value in grid[row, : row + 1])] for row, layer in enumerate(layers)]
    whitening = (
        "no whitening" if paper["strength"] == "none" else f"strength {shortest(paper['strength'])}, fit {paper['fit']}"
    )
    title = f"Spearman x100 of two layers averaged ({paper['pooling']}, {whitening}, protocol {paper['protocol']})"
    print_table(["layer", *layers], rows, title)
    click.echo()
    against = {row["setting"]: row for row in result["comparisons"]}
    cells = [
        ["+".join(map(str, row["layers"])), f"{row['spearman']:.2f}", _ends(row), *_less(against.get(row["setting"]))]
        for row in result["best"]
    ]
    name = "+".join(map(str, paper["layers"]))
    title = f"Best of n layers, and less the paper's choice ({name}: {paper['spearman']:.2f})"
    print_table(["layers", "Avg", "95 %", "difference", "95 %", "decided"], cells, title)


def _less(row: dict[str, Any] | None) -> tuple[str, str, str]:
    if row is None:
        return "", "", ""
    return f"{row['difference']:+.2f}", _ends(row), "yes" if row["decided"] else "no"


def _ends(row: dict[str, Any]) -> str:
    return "undefined" if row["low"] is None else f"{row['low']:.2f} to {row['high']:.2f}"
