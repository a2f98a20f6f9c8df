"""`isotrope evaluate sts --methods`: every method beside mean pooling."""

from collections.abc import Sequence
from typing import Any

import click

from search.cli.evaluate.sts_tables import by_protocol, cells
from search.cli.options import sweep_of, target_of


def measure_methods(
    sources: Sequence[str], protocols: Sequence[Any], fit: str, options: dict[str, Any], progress: Any
) -> dict[str, Any]:
    """The result of a comparison. Raises ConfigError for options of a sweep."""
    from indexer.errors import ConfigError
    from search.evaluation.papers.method_settings import DRAWN, SEEDS, MethodsOptions, methods_of
    from search.evaluation.papers.methods import evaluate_methods
    from search.evaluation.sts.data import read_tasks

    if not sweep_of(options).is_empty:
        raise ConfigError("--methods chooses settings itself; leave out options such as --layers and --strength.")
    subject = target_of(options)
    methods = methods_of(options["methods"], subject.spec.traits.has_layers)
    if options["seeds"] is not None and not set(methods) & set(DRAWN):
        raise ConfigError(f"--seeds: none of {', '.join(methods)} draws numbers. Leave it out.")
    plan = MethodsOptions(
        methods,
        protocols or ("mean",),
        fit,
        options["train"],
        options["train_documents"],
        SEEDS if options["seeds"] is None else options["seeds"],
    )
    return evaluate_methods(subject, read_tasks(*sources), plan, options["cache"], progress)


def show_methods(result: dict[str, Any]) -> None:
    """A table a protocol: a row a method, its tasks, the average with its interval, the spread over seeds."""
    from search.cli.output import print_table

    fit, seeds = result["provenance"]["fit"]["name"], result["provenance"]["seeds"]
    for protocol, tasks, rows in by_protocol(result):
        drawn = f"{seeds} seeds where any are drawn; 95 % over pairs and seeds"
        title = f"Spearman x100, protocol {protocol}, fit {fit}, {drawn}"
        names = ["method", *tasks, "Avg", "95 %", "sd over seeds", "less mean", "less untrained"]
        print_table(names, cells(rows, tasks, _of_average), title)
    click.echo("\nPublished (WhiteningBERT, Table 1):")
    published = [
        [
            row["method"],
            *("" if figure is None else f"{figure:.2f}" for figure in row["figures"].values()),
            row["status"],
        ]
        for row in result["published"]
    ]
    print_table(["method", *result["published"][0]["figures"], ""], published)


def _of_average(row: dict[str, Any]) -> list[str]:
    """The interval, the spread over seeds, and the difference from mean pooling with a mark where it is decided."""
    spread = row["standard_deviation"]
    interval = "undefined" if row["low"] is None else f"{row['low']:.2f} to {row['high']:.2f}"
    less = [_less(row["against_mean"]), _less(row["against_untrained"])]
    return [interval, "" if spread is None else f"{spread:.2f}", *less]


def _less(found: dict[str, Any] | None) -> str:
    return "" if found is None else f"{found['value']:+.2f}{'' if found['decided'] else ' (undecided)'}"
