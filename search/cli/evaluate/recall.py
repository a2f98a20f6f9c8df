"""`isotrope evaluate recall`."""

from pathlib import Path
from typing import Any

import click

from search.cli.evaluate.options import check_places, deliver, output_options
from search.cli.output_options import recipe_reads
from search.cli.running_options import run_options, threaded_encoder_options


@click.command("recall")
@click.argument("index", type=click.Path(path_type=Path))
@click.option("-k", type=int, default=10, show_default=True, help="Answers compared a query.")
@click.option("--queries", type=click.Path(path_type=Path), help="File of queries, one a line, UTF-8, or a BEIR "
              "queries.jsonl, or a .npy file of their embeddings; all are used.")  # fmt: skip
@click.option(
    "--from",
    "origin",
    type=click.Choice(["titles", "sentences", "halves"]),
    help="Draw queries from the "
    "documents: titles, first sentences, or first halves. Default: titles if at least half have one, else "
    "sentences.",
)
@click.option("--sample", type=int, help="Queries to draw from the documents.  [default: 1000]")
@click.option(
    "--similarity",
    type=click.Choice(["cosine", "js"]),
    default="cosine",
    help='js: how exact the ranking by Jensen-Shannon divergence is, for pooling "latte-mix".',
)
@click.option("--model", type=click.Path(path_type=Path), help="Folder of the index's model, if it has moved.")
@threaded_encoder_options
@output_options
def command(
    index: Path, k: int, queries: Path | None, origin: Any, sample: int | None, similarity: str, **options: Any
) -> None:  # fmt: skip
    """Recall and latency of an index against exact search.

    A query drawn from a document does not count that document nor its duplicates. Latencies are of single queries,
    so measure on an idle machine. Nothing is written to the index.

    \b
    Examples:
      isotrope evaluate recall my-index
      isotrope evaluate recall my-index -k 100 --queries questions.txt -o recall.json
    """
    from indexer.errors import ConfigError
    from search.cli.progress import BuildProgress
    from search.engine import SearchEngine
    from search.evaluation.recall.divergence import evaluate_divergence
    from search.evaluation.recall.drawn_queries import SAMPLE
    from search.evaluation.recall.recall import evaluate_recall

    if queries and (origin or sample is not None):
        raise ConfigError("--queries brings its own queries, all of which are used; leave out --from and --sample.")
    check_places(options, index, queries, *recipe_reads(None, index))
    engine = SearchEngine(index, options["model"], run_options(options))
    measure = evaluate_divergence if similarity == "js" else evaluate_recall
    with BuildProgress(options["quiet"]) as progress:
        result = measure(engine, k, queries, origin, SAMPLE if sample is None else sample, progress)
    deliver(result, options)
