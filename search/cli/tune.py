"""`isotrope tune`."""

from pathlib import Path
from typing import Any

import click

from search.cli.options import (
    centre_option,
    check_output_options,
    force_option,
    sweep_of,
    sweep_options,
    target_options,
)

_SHOWN = 8  # best settings in the table, beside the controls


@click.command("tune")
@click.argument("sources", nargs=-1, required=True, metavar="INDEX|CORPUS...")
@click.option("--objective", type=click.Choice(["retrieval", "sts"]), default="retrieval", show_default=True, help=
              "What vectors are for: short queries that look for documents, or texts that are compared with each "
              "other.")  # fmt: skip
@click.option("--on-error", type=click.Choice(["fail", "skip"]), default="fail", help="What to do with a bad row of "
              "the corpus.")  # fmt: skip
@click.option("--qrels", type=click.Path(path_type=Path), metavar="BEIR_FOLDER", help="Choose by nDCG@10 on these "
              "queries and judgements (queries.jsonl, qrels/test.tsv) instead of without labels.")  # fmt: skip
@click.option("--split", default="test", show_default=True, help="Which judgements: qrels/SPLIT.tsv.")
@click.option("--sample", type=int, default=1500, show_default=True, help="Documents that questions are drawn "
              "from, without --qrels.")  # fmt: skip
@click.option("--bytes", "most_bytes", type=int, default=0, help="Most bytes a vector may take; 0: no limit.")
@target_options
@sweep_options
@centre_option
@click.option("--format", "format_", default="", metavar="NAME", help="Format of the corpus; default by file name.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write the recipe here; to a "
              "name that ends in .json the whole result.")  # fmt: skip
@force_option
@click.option("--quiet", is_flag=True, help="No progress bars.")
def command(sources: tuple[str, ...], output: Path | None, as_json: bool, **options: Any) -> None:
    """Pick whitening settings for a corpus, without labels or with them.

    Pieces of the documents ask for the rest of them. Raw embeddings are taken unless the best setting is better in
    90 % of the resamples; else a setting near the best. That chooses, and is less than "decided", for which the 95 %
    interval of the difference must leave out 0. Only --sample pairs are encoded, once for all layers, and kept in
    --cache (by default a folder in ~/.cache). Raw embeddings and strength 0 are always among what is tried.

    \b
    Examples:
      isotrope tune my-index -o tuned.toml
      isotrope tune docs.jsonl --layers -1 --layers 1,-1 --sample 500 -o tuned.toml --force
    """
    from indexer.store.layout import is_index
    from search.cli.output import print_json, print_note, stdout_free_for
    from search.cli.progress import ProgressBar
    from search.evaluation.tune.tune import TuneOptions, run_tune, write_recipe
    from search.files import write_result

    task = TuneOptions(
        tuple(sources),
        options["objective"],
        options["sample"],
        options["qrels"],
        options["split"],
        options["most_bytes"],
        options["format_"],
        options["on_error"],
    )
    index = options["index"] or next(filter(is_index, sources), None)
    check_output_options(options | {"output": output, "index": index}, *sources, options["qrels"])
    with ProgressBar(options["quiet"]) as progress:
        result = run_tune(task, _subject(sources, options), sweep_of(options), options["cache"], progress)
    for note in result["notes"]:
        print_note(note)
    if output and output.suffix == ".json":
        write_result(output, result, options["force"])
    elif output:
        write_recipe(output, result, options["force"])
    with stdout_free_for(output):
        if as_json:
            print_json(result)
        else:
            _show(result, output)


def _subject(sources: tuple[str, ...], options: dict[str, Any]) -> Any:
    from indexer.errors import ConfigError
    from indexer.store.layout import is_index
    from search.cli.options import target_of

    if options["index"]:
        raise ConfigError("an index to tune is named as the source: isotrope tune INDEX. Leave out --index.")
    indexes = [source for source in sources if is_index(source)]
    if not indexes:
        return target_of(options)
    if len(sources) > 1:
        raise ConfigError(f"{indexes[0]} is an index; it is tuned alone. Leave out the other sources.")
    if options["format_"]:
        raise ConfigError("--format says how to read a corpus; an index needs none.")
    return target_of(options | {"index": Path(indexes[0])})


def _show(result: dict[str, Any], output: Path | None) -> None:
    from search.cli.output import print_table

    choice, protocol = result["choice"], result["provenance"]["protocol"]
    name = protocol["measure"]
    ranked = sorted(result["results"], key=lambda row: -row["value"])
    wide = [row for row in ranked if row["dim"] is None]
    controls = [row for row in wide if row["strength"] in ("none", 0.0) or row["taken"]]
    narrowed = [row for row in ranked if row["taken"] and row["dim"] is not None]
    shown = [row for row in wide if row in wide[:_SHOWN] or row in controls] + narrowed
    click.echo(f"{protocol['questions']:,} {protocol['kind']}; {name} x 100, 95 % bootstrap interval")
    print_table(
        ["layers", "pooling", "strength", "centre", "shrinkage", name, "interval", "dims", ""],
        [[*_setting(row), _score(row), _interval(row), f"{row['dimensions']:,}", _mark(row)] for row in shown],
    )
    click.echo(f"\nFrontier: {name} by bytes a vector")
    print_table(
        ["bytes", "dims", "layers", "strength", "centre", name, "interval"],
        [
            [f"{row['bytes']:,}", f"{row['dimensions']:,}", *_brief(row), _score(row), _interval(row)]
            for row in result["frontier"]
        ],
    )
    gain = choice["gain"]
    click.echo(f"\ntaken: {choice['setting']}, because {choice['reason']}")
    if gain["value"]:
        decided = "decided" if gain["decided"] else "not decided"
        ends = f"[{_signed(gain['low'])}, {_signed(gain['high'])}]"
        click.echo(
            f"over raw: {_signed(gain['value'])} {ends}, {decided}; flattered a little by having been chosen on it"
        )
    if enough := choice["enough"]:
        click.echo(
            f"as far as the questions can tell, {enough['dim']:,} dimensions ({enough['bytes']:,} bytes) do as well"
        )
    click.echo(f"written to {output}" if output else f"use it: isotrope build CORPUS INDEX {choice['options']}")


def _setting(row: dict[str, Any]) -> list[str]:
    layers = ",".join(map(str, row["layers"]))
    if row["strength"] == "none":
        return [layers, row["pooling"], "raw", "", ""]
    return [layers, row["pooling"], f"{row['strength']:g}", row["centre"], f"{row['shrinkage']:g}"]


def _brief(row: dict[str, Any]) -> list[str]:
    layers, _, strength, centre, _ = _setting(row)
    return [layers, strength, centre]


def _score(row: dict[str, Any]) -> str:
    return f"{100 * row['value']:.2f}"


def _interval(row: dict[str, Any]) -> str:
    if row["low"] is None:
        return "undefined"
    return f"{100 * row['low']:.1f} to {100 * row['high']:.1f}"


def _mark(row: dict[str, Any]) -> str:
    return "taken" if row["taken"] else "tied" if row["tied"] else ""


def _signed(value: float | None) -> str:
    return "undefined" if value is None else f"{100 * value:+.2f}"
