"""Commands before a build: `isotrope recipe`, `isotrope demo-corpus`, `isotrope convert` and `isotrope train`."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from search.cli.options import (
    PATH,
    beside,
    corpus_of,
    corpus_options,
    force_option,
    hardware_options,
    json_option,
    output_option,
    quiet_option,
    recipe_of,
    run_options,
)

if TYPE_CHECKING:
    from indexer import TrainReport


@click.command("recipe")
@click.argument("name", default="")
@json_option
def recipe(name: str, as_json: bool) -> None:
    """List the recipes that --config takes by name, or print one.

    A recipe is printed as it is, with its comments. To change it, write it to a file with isotrope recipe NAME > FILE,
    and pass --config FILE. With --json, a recipe is printed with every setting.

    \b
    Examples:
      isotrope recipe
      isotrope recipe e5
    """
    from indexer.recipe.config import BuildConfig
    from indexer.recipe.loading import recipe_names, recipe_path, recipe_summary, recipe_text
    from search.cli.output import print_facts, print_json

    if name:
        config, text = BuildConfig.load(name), recipe_text(recipe_path(name))
        if as_json:
            print_json(config.to_dict())
        else:
            click.echo(text, nl=False)
        return
    recipes = [
        {
            "name": each,
            "model": BuildConfig.load(each).encoder.model,
            "about": recipe_summary(recipe_text(recipe_path(each))),
        }
        for each in recipe_names()
    ]
    if as_json:
        print_json(recipes)
    else:
        print_facts([(each["name"], f"{each['model']}\n{each['about']}") for each in recipes])


@click.command("demo-corpus")
@output_option("File to write, JSON lines; - is standard output.", required=True)
@force_option
@json_option
def demo_corpus(output: Path, force: bool, as_json: bool) -> None:
    """Write the standard library's docstrings as a corpus.

    Every public module, class and function of this machine's Python standard library (without its tests) becomes one
    JSON line with id, text, module, kind and line.

    \b
    Example:
      isotrope demo-corpus -o stdlib.jsonl
    """
    from search.cli.demo_corpus import write_stdlib_corpus
    from search.cli.output import print_json, stdout_free_for

    with stdout_free_for(output):
        documents = write_stdlib_corpus(output, force)
        if as_json:
            print_json({"path": str(output), "documents": documents})
        else:
            click.echo(f"{output}: {documents:,} documents.")


@click.command("convert")
@click.argument("source", type=PATH)
@output_option("Folder to write.", metavar="FOLDER", required=True)
@json_option
def convert(source: Path, output: Path, as_json: bool) -> None:
    """Convert pytorch_model.bin weights to safetensors.

    Writes the weights of SOURCE as model.safetensors into a new folder, with copies of the model's other files. Links
    out of SOURCE are not followed. The .bin file is read with weights_only=True, so no code in it can run.

    \b
    Example:
      isotrope convert old-model -o new-model
    """
    from indexer.system.output_files import check_output_folder
    from search.cli.output import print_json
    from search.export.convert import convert_to_safetensors

    check_output_folder(output)
    convert_to_safetensors(source, output)
    if as_json:
        print_json({"path": str(output)})
    else:
        click.echo(f"{output}: model with safetensors weights.")


_TRAINED = {"int8": {"precision": "int8"}, "latte-mix": {"pooling": "latte-mix"}, "sif": {"pooling": "sif"}}


@click.command("train")
@click.argument("kind", type=click.Choice(list(_TRAINED)))
@click.argument("sources", nargs=-1, required=True, metavar="CORPUS...")
@output_option("Folder to write.", metavar="FOLDER", required=True)
@click.option("--documents", type=int, default=0, help="Documents used, by hash of id. Default: all; 300 for int8.")
@corpus_options
@hardware_options
@json_option
@quiet_option
def train(kind: str, sources: tuple[str, ...], output: Path, documents: int, as_json: bool, **options: Any) -> None:
    """Fit an encoder to a corpus before builds, without labels.

    int8 calibrates the recipe's encoder in 8 bits, sif counts tokens for pooling sif, and latte-mix trains the
    auto-encoder of pooling latte-mix (experimental; settings in [papers.latte_mix]). The folder contains the result
    and a recipe to build with: isotrope build CORPUS INDEX --config FOLDER/recipe.toml

    \b
    Examples, on the corpus of `make demo`:
      isotrope train sif demo/stdlib.jsonl -o sif
      isotrope train latte-mix demo/stdlib.jsonl -o mix --documents 1000
      isotrope train latte-mix demo/stdlib.jsonl -o mix-of-layer-1 --set encoder.layers=[1] --documents 1000
    """
    from indexer import train_encoder
    from indexer.system.output_files import check_output_folder
    from search.cli.output import print_facts, print_json, print_note, remarks_on
    from search.cli.progress import ProgressBar

    config = recipe_of(options)
    changed: dict[str, Any] = {"fitted": "", **_TRAINED[kind]}
    config = replace(config, encoder=replace(config.encoder, **changed))
    check_output_folder(output, or_empty=True)
    corpus = corpus_of(sources, config, options, beside(output, ".rejects.jsonl"))
    with ProgressBar(options["quiet"]) as progress:
        report = train_encoder(corpus, output, config, run_options(options), progress, documents)
    for line in remarks_on(corpus.report):
        print_note(line)
    if as_json:
        print_json(asdict(report) | {"folder": str(output)})
    else:
        print_facts(_facts(report, output))


def _facts(report: "TrainReport", output: Path) -> list[tuple[str, str]]:
    from search.formatting import number

    tokens = f", {number(report.tokens)} tokens" if report.tokens else ""
    return [
        ("folder", str(output)),
        ("documents", number(report.documents)),
        ("texts", f"{number(report.texts)}{tokens}"),
        *([("steps", number(report.steps))] if report.losses else []),
        *_losses(report.losses),
        ("build with", f"isotrope build CORPUS INDEX --config {output / 'recipe.toml'}"),
    ]


def _losses(rows: Sequence[Sequence[float]]) -> list[tuple[str, str]]:
    if not rows:
        return []
    pairs = zip(("reconstruction", "KL"), rows[0][1:3], rows[-1][1:3], strict=True)
    return [(name, f"{first:.2f} at first, {last:.2f} at last") for name, first, last in pairs]
