"""`isotrope plan`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from search.cli.options import force_option, json_option, output_option, recipe_options

if TYPE_CHECKING:
    from search.plan.ledger import Line
    from search.plan.plan import Plan
    from search.plan.request import PlanSettings

_SECTIONS = {
    "encode": "Encoding",
    "build": "Building, in parallel",
    "storage": "Storage, by layer of the index directory",
    "serve": "Serving",
    "dedup": "Near-duplicates, on CPU cores",
    "money": "Money",
}


@click.command("plan")
@click.option("--documents", required=True, metavar="N", help="Documents of the corpus, such as 63905, 20M or 1e9.")
@click.option("--tokens", type=float, default=128, show_default=True, help="Mean tokens of a document.")
@click.option("--text-bytes", type=float, default=0, metavar="B", help="Mean bytes of a document's text; 0: the "
              "measured bytes per token.")  # fmt: skip
@click.option("--model", metavar="NAME|FOLDER", help="Encoder: a known name or a folder. Default: the recipe's.")
@recipe_options
@click.option("--dim", type=int, help="Leading directions kept, at most the model's dimensions; as whitening.dim.")
@click.option("--embeddings", type=click.Choice(["float32", "float16"]), help="As store.embeddings.")
@click.option("--chunk", type=int, metavar="TOKENS", help="Tokens of a window, as chunk.tokens.")
@click.option("--gpus", type=int, default=0, show_default=True, help="GPUs that encode; 0: encode on the cores.")
@click.option("--gpu", default="", metavar="KIND", help="h100 (the default), h200, b200, a100, l40s, l4, a10, v100 or "
              "t4.")  # fmt: skip
@click.option("--cores", type=int, default=0, show_default=True, help="CPU cores; 0: 8 per GPU, or 8 without GPUs.")
@click.option("--amx", is_flag=True, help="The cores have bfloat16 instructions.")
@click.option("--memory", default="0", show_default=True, metavar="SIZE", help="Memory of a host that serves, such as "
              "256G; 0: no limit.")  # fmt: skip
@click.option("--gpu-price", type=float, default=0, help="Price of a GPU per hour.")
@click.option("--core-price", type=float, default=0, help="Price of a core per hour.")
@click.option("--storage-price", type=float, default=0, help="Price of a GB (10^9 bytes) of storage per month.")
@click.option("--ram-price", type=float, default=0, help="Price of a GB of memory per month.")
@click.option("--price-per-million-tokens", "tokens_price", type=float, default=0, help="Price of 10^6 tokens of an "
              "embedding server (encoder.kind=server).")  # fmt: skip
@output_option("Write the plan to this file as JSON.")
@force_option
@json_option
def command(**options: Any) -> None:
    """Estimate time, storage, hosts and cost for a corpus of any size.

    Nothing runs: every figure is computed from constants and shown with its arithmetic. Constants were measured on
    builds and joins of this project, with date and machine, or are marked as extrapolated. --memory is in powers of
    1024, figures are in powers of 1000.

    \b
    Examples:
      isotrope plan --documents 1e9 --tokens 128 --model bert-base-uncased --gpus 8
      isotrope plan --documents 20M --tokens 90 --cores 64 --memory 32G --core-price 0.04
      isotrope plan --documents 63905 --tokens 85 --model potion-base-4M --json
    """
    from search.cli.options import check_written
    from search.cli.output import write_and_print
    from search.plan.plan import make_plan

    if options["output"]:
        check_written({"-o": options["output"]}, [options["recipe"]], options["force"])
    plan = make_plan(_settings(options))
    write_and_print(plan.to_dict(), options, lambda _: _show(plan))


def _settings(options: Mapping[str, Any]) -> "PlanSettings":
    import json

    from search.cli.options import recipe_of
    from search.dedup.settings import parse_memory
    from search.plan.request import Hardware, PlanSettings, Prices, parse_count

    given = {"encoder.model": options["model"] and json.dumps(options["model"]), "whitening.dim": options["dim"],
             "store.embeddings": options["embeddings"], "chunk.tokens": options["chunk"]}  # fmt: skip
    short = [f"{name}={value}" for name, value in given.items() if value is not None]
    config = recipe_of({**options, "assignments": (*options["assignments"], *short)})
    hardware = Hardware(
        options["gpus"], options["gpu"], options["cores"], options["amx"], parse_memory(options["memory"])
    )
    prices = Prices(**{name: options[f"{name}_price"] for name in ("gpu", "core", "storage", "ram", "tokens")})
    documents = parse_count(options["documents"])
    return PlanSettings(documents, options["tokens"], options["text_bytes"], config, hardware, prices)


def _show(plan: "Plan") -> None:
    """Print the sections of figures with their arithmetic, then the constants and the notes."""
    corpus = plan.settings
    click.echo(
        f"{corpus.documents:,} documents of {corpus.tokens:g} tokens, {plan.shape.name}, {corpus.rows:,} vectors"
    )
    for section, title in _SECTIONS.items():
        lines = [line for line in plan.ledger.lines if line.key.startswith(f"{section}.")]
        if lines:
            click.echo(f"\n{click.style(title, bold=True)}")
            _show_lines(lines)
    click.echo(f"\n{click.style('Constants', bold=True)} (* above: extrapolated)")
    # `shown` contains only the first word of a unit such as "bytes a row".
    constants = [(item, " ".join([item.shown, *item.unit.split(" ")[1:]])) for item in plan.ledger.used()]
    names, values = max(len(item.name) for item, _ in constants), max(len(value) for _, value in constants)
    for item, value in constants:
        click.echo(f"  {item.name:<{names}}  {value:<{values}}  {item.source}")
    for note in plan.notes:
        click.echo(f"note: {note}", err=True)


def _show_lines(lines: "list[Line]") -> None:
    width = max(len(line.title) for line in lines)
    for line in lines:
        mark = " *" if line.extrapolated else ""
        click.echo(f"  {line.title:<{width}}  {click.style(line.shown + mark, bold=True)}")
        click.echo(f"      = {line.arithmetic}")
