"""`isotrope plan`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from search.cli.options import force_option, json_option, output_option, recipe_options

if TYPE_CHECKING:
    from search.plan.ledger import Line
    from search.plan.plan import Plan
    from search.plan.settings import PlanSettings

_SECTIONS = {
    "encode": "Encoding",
    "build": "Building, beside it",
    "storage": "Storage, by layer of the index directory",
    "serve": "Serving",
    "dedup": "Near-duplicates, on CPU cores",
    "money": "Money",
}


@click.command("plan")
@click.option("--documents", required=True, metavar="N", help="Documents of the corpus, such as 63905, 20M or 1e9.")
@click.option("--tokens", type=float, default=128, show_default=True, help="Mean tokens of a document.")
@click.option("--text-bytes", type=float, default=0, metavar="B", help="Mean bytes of a document's text; 0: as many a "
              "token as in what was measured.")  # fmt: skip
@click.option(
    "--model", metavar="NAME|FOLDER", help="Encoder, by a known name or by its folder. Default: the recipe's."
)
@recipe_options
@click.option("--dim", type=int, help="Leading directions kept, at most as many as the model's dimensions; as "
              "whitening.dim.")  # fmt: skip
@click.option("--embeddings", type=click.Choice(["float32", "float16"]), help="As store.embeddings.")
@click.option("--chunk", type=int, metavar="TOKENS", help="Windows of so many tokens, as chunk.tokens.")
@click.option("--gpus", type=int, default=0, show_default=True, help="GPUs that encode; 0: the cores do.")
@click.option("--gpu", default="", metavar="KIND", help="h100 (the default), h200, b200, a100, l40s, l4, a10, v100 or "
              "t4.")  # fmt: skip
@click.option("--cores", type=int, default=0, show_default=True, help="CPU cores; 0: 8 a GPU, or 8.")
@click.option("--amx", is_flag=True, help="The cores multiply in bfloat16 by instructions of their own.")
@click.option("--memory", default="0", show_default=True, metavar="SIZE", help="Memory of a host that serves, such as "
              "256G; 0: no limit.")  # fmt: skip
@click.option("--gpu-price", type=float, default=0, help="Money for an hour of a GPU.")
@click.option("--core-price", type=float, default=0, help="Money for an hour of a core.")
@click.option("--storage-price", type=float, default=0, help="Money for a GB (10^9 bytes) of storage and month.")
@click.option("--ram-price", type=float, default=0, help="Money for a GB of memory and month.")
@output_option("Write the plan to this file as JSON.")
@force_option
@json_option
def command(**options: Any) -> None:
    """Estimate time, storage, hosts and cost for a corpus of any size.

    Nothing is run: every figure is arithmetic on constants, and is shown with it. Constants were measured on builds
    and joins of this project, with date and machine, or are said to be extrapolated. Memory is in powers of 1024,
    figures in powers of 1000.

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
    from search.plan.settings import Hardware, PlanSettings, Prices, parse_count

    given = {"encoder.model": options["model"] and json.dumps(options["model"]), "whitening.dim": options["dim"],
             "store.embeddings": options["embeddings"], "chunk.tokens": options["chunk"]}  # fmt: skip
    short = [f"{name}={value}" for name, value in given.items() if value is not None]
    config = recipe_of({**options, "assignments": (*options["assignments"], *short)})
    hardware = Hardware(
        options["gpus"], options["gpu"], options["cores"], options["amx"], parse_memory(options["memory"])
    )
    prices = Prices(**{name: options[f"{name}_price"] for name in ("gpu", "core", "storage", "ram")})
    documents = parse_count(options["documents"])
    return PlanSettings(documents, options["tokens"], options["text_bytes"], config, hardware, prices)


def _show(plan: "Plan") -> None:
    """Sections of figures, each with its arithmetic below; then the constants, and what is not known."""
    asked = plan.settings
    click.echo(f"{asked.documents:,} documents of {asked.tokens:g} tokens, {plan.shape.name}, {asked.rows:,} vectors")
    for section, title in _SECTIONS.items():
        lines = [line for line in plan.ledger.lines if line.key.startswith(f"{section}.")]
        if lines:
            click.echo(f"\n{click.style(title, bold=True)}")
            _show_lines(lines)
    used = list(plan.ledger.used())
    click.echo(f"\n{click.style('Constants', bold=True)} (* above: extrapolated)")
    rows = [[one.name, f"{one.shown}{_per(one.unit)}", one.source] for one in used]
    _show_columns(rows)
    for note in plan.notes:
        click.echo(f"note: {note}", err=True)


def _show_lines(lines: "list[Line]") -> None:
    width = max(len(line.title) for line in lines)
    for line in lines:
        mark = " *" if line.extrapolated else ""
        click.echo(f"  {line.title:<{width}}  {click.style(line.shown + mark, bold=True)}")
        click.echo(f"      = {line.arithmetic}")


def _per(unit: str) -> str:
    """What a constant is for one of: " a row"."""
    rest = unit.partition(" ")[2]
    return f" {rest}" if rest else ""


def _show_columns(rows: list[list[str]]) -> None:
    widths = [max(len(row[place]) for row in rows) for place in (0, 1)]
    for name, value, source in rows:
        click.echo(f"  {name:<{widths[0]}}  {value:<{widths[1]}}  {source}")
