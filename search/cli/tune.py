"""`isotrope tune`."""

from pathlib import Path
from typing import Any

import click

from search.cli.options import (
    PATH,
    centre_option,
    check_output_options,
    documents_option,
    force_option,
    format_option,
    given_flags,
    json_option,
    on_error_option,
    output_option,
    quiet_option,
    sweep_of,
    sweep_options,
    target_options,
)


@click.command("tune")
@click.argument("sources", nargs=-1, required=True, metavar="INDEX|CORPUS...")
@click.option("--objective", type=click.Choice(["retrieval", "sts"]), default="retrieval", show_default=True, help=
              "Purpose of the vectors: short queries that find documents, or texts compared with each "
              "other.")  # fmt: skip
@on_error_option
@click.option("--beir", type=PATH, metavar="BEIR_FOLDER", help="Choose by nDCG@10 on these queries and judgements "
              "(queries.jsonl, qrels/test.tsv) instead of on drawn queries.")  # fmt: skip
@click.option("--split", default="test", show_default=True, help="Judgements to use: qrels/SPLIT.tsv.")
@click.option("--sample", type=int, default=1500, show_default=True, help="Documents that queries are drawn from, "
              "without --beir.")  # fmt: skip
@click.option("--rerank", metavar="MODEL", help="Also try reranking by this cross-encoder, a hub id or folder, at "
              "several depths.")  # fmt: skip
@click.option("--chunks", is_flag=True, help="Compare windows instead: none, by tokens, and by structure without and "
              "with headings. Encodes the sampled documents once for each.")  # fmt: skip
@click.option("--max-bytes", type=int, default=0, metavar="N", help="Most bytes per vector; 0: no limit.")
@target_options
@sweep_options
@centre_option
@documents_option
@format_option
@output_option("Write the recipe here, or the whole result if the name ends in .json.")
@force_option
@json_option
@quiet_option
def command(sources: tuple[str, ...], **options: Any) -> None:
    """Choose settings of whitening and hybrid search, with or without labels.

    INDEX and CORPUS may be URLs in object storage (s3://, gs:// or az://).
    Queries are pieces of documents that must find the rest of their document. The recipe's own setting stays unless
    another is better in 90 % of the resamples; then a setting near the best is chosen. Raw embeddings are chosen if no
    setting is better and they score no less than the recipe's own. Without --beir, another centre than the recipe's
    must be better by a wide margin. A choice is weaker than "decided", for which the 95 % interval of the difference
    must exclude 0. Then the weight of hybrid search is chosen on the same queries. Only --sample pairs are encoded,
    once for all layers, and kept in --cache (by default a folder in ~/.cache). The last line shows how to use the
    result.

    \b
    Examples:
      isotrope tune demo/index -o tuned.toml
      isotrope tune demo/index --rerank ./cross-encoder
      isotrope tune demo/stdlib.jsonl --layers -1 --layers 1,-1 --sample 500 -o tuned.toml --force
    """
    from indexer.store.manifest import published_at
    from search.cli.output import print_result, stdout_free_for
    from search.cli.progress import ProgressBar
    from search.evaluation.tune.chunks import tune_chunks
    from search.evaluation.tune.tune import TuneOptions, run_tune, write_recipe

    output: Path | None = options["output"]
    task = TuneOptions(
        tuple(sources),
        options["objective"],
        options["sample"],
        options["beir"],
        options["split"],
        options["max_bytes"],
        options["format_"],
        options["on_error"],
        options["rerank"],
        output if output and output.suffix != ".json" else None,
    )
    index = options["index"] or next(filter(None, map(published_at, sources)), None)
    check_output_options(options | {"index": index}, *sources, options["beir"])
    with ProgressBar(options["quiet"]) as progress:
        if options["chunks"]:
            _require_no_recipe(task.recipe_file)
            result = tune_chunks(_target(sources, options), task, options["cache"], progress)
        else:
            result = run_tune(_target(sources, options), task, sweep_of(options), options["cache"], progress)
    print_result(result, options, write=write_recipe if task.recipe_file else None)
    if not options["as_json"]:
        with stdout_free_for(output):
            command = result["command"] if options["chunks"] else result["choice"]["command"]
            click.echo(f"\nuse it: {command}")


def _require_no_recipe(file: Path | None) -> None:
    if file:
        from indexer.errors import ConfigError

        raise ConfigError(f"--chunks writes no recipe to {file}. Fix: name a .json file, or leave out --output.")


def _target(sources: tuple[str, ...], options: dict[str, Any]) -> Any:
    from indexer.errors import ConfigError
    from indexer.store.manifest import published_at
    from search.cli.options import target_of

    if options["index"]:
        raise ConfigError("--index does not apply here. Fix: isotrope tune INDEX.")
    indexes = [index for source in sources if (index := published_at(source))]
    if not indexes:
        return target_of(options)
    if len(sources) > 1:
        raise ConfigError(f"{indexes[0]}: an index is tuned alone. Fix: leave out the other sources.")
    if given := given_flags(["format_", "document_source"]):
        raise ConfigError(f"{given[0]} is for a corpus, not for an index. Fix: leave it out.")
    return target_of(options | {"index": indexes[0]})
