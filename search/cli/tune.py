"""`isotrope tune`."""

from pathlib import Path
from typing import Any

import click

from search.cli.evaluate.options import centre_option, check_places, deliver, subject_options, sweep_of, sweep_options
from search.cli.output_options import force_option, stdout_free_for


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
@subject_options
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
    from search.cli.progress import BuildProgress
    from search.evaluation.tune.tune import TuneOptions, run_tune, write_recipe

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
    check_places(options | {"output": output, "index": index}, *sources, options["qrels"])
    with BuildProgress(options["quiet"]) as progress:
        result = run_tune(task, _subject(sources, options), sweep_of(options), options["cache"], progress)
    recipe = output if output and output.suffix != ".json" else None
    if recipe:
        write_recipe(recipe, result, options["force"])
    deliver(result, options | {"output": None if recipe else output, "recipe_output": recipe, "as_json": as_json})
    with stdout_free_for(output):
        if not as_json:
            click.echo()
            use = f"use it: isotrope build CORPUS INDEX {result['choice']['options']}"
            click.echo(f"written to {output}" if output else use)


def _subject(sources: tuple[str, ...], options: dict[str, Any]) -> Any:
    from indexer.errors import ConfigError
    from indexer.store.layout import is_index
    from search.cli.evaluate.options import subject_of

    if options["index"]:
        raise ConfigError("an index to tune is named as the source: isotrope tune INDEX. Leave out --index.")
    indexes = [source for source in sources if is_index(source)]
    if not indexes:
        return subject_of(options)
    if len(sources) > 1:
        raise ConfigError(f"{indexes[0]} is an index; it is tuned alone. Leave out the other sources.")
    if options["format_"]:
        raise ConfigError("--format says how to read a corpus; an index needs none.")
    return subject_of(options | {"index": Path(indexes[0])})
