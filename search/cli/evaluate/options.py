"""Options that several measuring commands share, and what is made of them."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from search.cli.output_options import check_written, force_option, recipe_reads, stdout_free_for
from search.cli.running_options import run_options, threaded_encoder_options

if TYPE_CHECKING:
    from indexer.config import BuildConfig
    from search.evaluation.result import Result
    from search.evaluation.settings import Sweep
    from search.evaluation.target import Target

F = TypeVar("F", bound=Callable[..., Any])
_POOLINGS = ["mean", "cls", "max", "sif", "sbert-wk", "latte-mix"]
_SUBJECT = [
    click.option("--config", "recipe", type=click.Path(path_type=Path), help="Recipe to measure (TOML). Default: "
                 "configs/minilm.toml, built in."),
    click.option("--set", "assignments", multiple=True, metavar="SECTION.KEY=VALUE", help="Override one setting of the "
                 "recipe."),
    click.option("--index", "index", type=click.Path(path_type=Path), help="Measure this index and its recipe."),
    click.option("--model", type=click.Path(path_type=Path), help="Folder of the index's model, if it has moved."),
    threaded_encoder_options,
    click.option("--cache", type=click.Path(path_type=Path), help="Folder to keep embeddings in from run to run."),
]  # fmt: skip
_SWEEP = [
    click.option("--pooling", "poolings", multiple=True, type=click.Choice(_POOLINGS), help="Pooling to "
                 "try; repeatable, as are the next ones: every combination is measured. Default: the recipe's."),
    click.option("--layers", "layers", multiple=True, metavar="L[,L...]", help="Layers to average, such as 1,-1."),
    click.option("--strength", "strengths", multiple=True, metavar="S", help='Whitening strength, 0 to 1, or "none" '
                 "for no transform at all."),
    click.option("--dim", "dims", multiple=True, type=int, help="Leading directions kept; 0 keeps all."),
    click.option("--transform", "kinds", multiple=True, type=click.Choice(["whitening", "flow", "hellinger"]),
                 help="Kind of transform: whitening, BERT-flow, or square roots of probabilities."),
    click.option("--shrinkage", "shrinkages", multiple=True, type=float, help="Shrinkage of the covariance, 0 to 1."),
]  # fmt: skip
_CENTRE = click.option(
    "--centre", "centres", multiple=True, type=click.Choice(["role", "common", "none"]), help="Which mean is "
    "subtracted: role (queries have their own), common (one for all), none.",
)  # fmt: skip
_WRITTEN = {"output": "-o", "recipe_output": "-o", "plot": "--plot", "run": "--run", "per_query": "--per-query"}
_OUTPUT = [
    click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
    click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the result to this file as JSON."),
    force_option,
    click.option("--quiet", is_flag=True, help="No progress bars."),
]


def _all(options: list[Callable[[F], F]]) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


subject_options = _all(_SUBJECT)
"""--config, --set, --index, --model, --device, --backend, --threads, --cache"""
sweep_options = _all(_SWEEP)
"""--pooling, --layers, --strength, --dim, --transform, --shrinkage"""
centre_option = _CENTRE
"""--centre, where queries and documents differ"""
output_options = _all(_OUTPUT)
"""--json, -o, --force, --quiet"""


def check_places(options: dict[str, Any], *reads: str | Path | None) -> None:
    """Refuse what could not be written, or is read, before anything is measured: -o, --plot, --run, --per-query.

    And a --cache that could not be written. `reads` are further files and folders that the command reads. Raises
    ConfigError, ExistsError.
    """
    from search.files import check_cache

    config = recipe_of(options) if "recipe" in options and not options["index"] else None
    named = (options.get(name) for name in ("recipe", "index", "model", "train", "query_vectors"))
    check_written(_written(options), [*reads, *named, *recipe_reads(config, options.get("index"))], options["force"])
    if options.get("cache"):
        check_cache(options["cache"])


def _written(options: dict[str, Any]) -> dict[str, Path]:
    """Option -> file; runs in a folder are named after what is measured, and checked there."""
    found = {flag: options[name] for name, flag in _WRITTEN.items() if options.get(name)}
    return {flag: path for flag, path in found.items() if flag != "--run" or not path.is_dir()}


def recipe_of(options: dict[str, Any]) -> "BuildConfig":
    """The recipe that --config and --set make."""
    from indexer.config import BuildConfig

    config = BuildConfig.load(options["recipe"]) if options["recipe"] else BuildConfig()
    return config.with_overrides(options["assignments"])


def subject_of(options: dict[str, Any]) -> "Target":
    """What is measured, from `subject_options`."""
    from indexer.errors import ConfigError
    from search.evaluation.target import Target

    run = run_options(options)
    if options["index"]:
        if options["recipe"] or options["assignments"]:
            raise ConfigError("--index brings its own recipe; leave out --config and --set.")
        return Target.of_index(options["index"], options["model"], run)
    if options["model"]:
        raise ConfigError("--model says where an index's model is now; without --index use --set encoder.model=FOLDER.")
    return Target.of_recipe(recipe_of(options), run)


def sweep_of(options: dict[str, Any]) -> "Sweep":
    """What is tried, from `sweep_options` and `centre_option`."""
    from search.evaluation.settings import Sweep, parse_layers, parse_strength

    return Sweep(
        poolings=options["poolings"],
        layers=tuple(parse_layers(text) for text in options["layers"]),
        strengths=tuple(parse_strength(text) for text in options["strengths"]),
        dims=options["dims"],
        shrinkages=options["shrinkages"],
        kinds=options["kinds"],
        centres=options.get("centres", ()),
    )


def deliver(result: "Result", options: dict[str, Any], compare: bool = True) -> None:
    """Write and print a result as `output_options` ask: its notes, to the file, and as JSON or as tables.

    `compare`: with its paired differences among the tables.
    """
    from dataclasses import replace

    from search.cli.output import print_json, print_note, print_tables
    from search.evaluation.result import write_result
    from search.evaluation.tables import tables_of

    for note in result.notes:
        print_note(note)
    if options["output"]:
        write_result(options["output"], result, options["force"])
    with stdout_free_for(*_written(options).values()):
        if options["as_json"]:
            print_json(result)
        else:
            print_tables(tables_of(result if compare else replace(result, comparisons=None)))
