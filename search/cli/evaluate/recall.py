"""`isotrope evaluate recall`."""

from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import click

from search.cli.options import (
    PATH,
    check_output_options,
    encoder_options,
    k_option,
    recipe_reads,
    result_options,
    run_options,
)

_MEASURES = {
    "cosine": "search.evaluation.recall.recall:evaluate_recall",
    "js": "search.papers.divergence_recall:evaluate_divergence",
}


@click.command("recall")
@click.argument("index", type=PATH)
@k_option("Answers compared a query.")
@click.option("--queries", type=PATH, metavar="FILE", help="File of queries, one a line, UTF-8, or a BEIR "
              "queries.jsonl, or a .npy file of their embeddings; all are used.")  # fmt: skip
@click.option("--draw", type=click.Choice(["titles", "sentences", "halves"]), help="Draw queries from the documents: "
              "titles, first sentences, or first halves. Default: titles if at least half of the documents have one, "
              "else sentences.")  # fmt: skip
@click.option("--sample", type=int, help="Queries to draw from the documents.  [default: 1000]")
@click.option("--similarity", type=click.Choice(list(_MEASURES)), default="cosine", show_default=True, help="js: "
              'recall of the ranking by Jensen-Shannon divergence, for pooling "latte-mix".')  # fmt: skip
@encoder_options
@result_options
def command(index: Path, k: int, queries: Path | None, draw: Any, sample: int | None, **options: Any) -> None:
    """Recall and latency of an index against exact search.

    INDEX is a path or a URL in object storage (s3://, gs:// or az://).
    A query drawn from a document counts neither that document nor its duplicates. Latencies are of single queries,
    so measure on an idle machine. The index stays unchanged.

    \b
    Examples:
      isotrope evaluate recall demo/index
      isotrope evaluate recall demo/index -k 100 --queries questions.txt -o recall.json
    """
    from indexer.errors import ConfigError
    from search.cli.output import print_measured
    from search.engine import SearchEngine
    from search.evaluation.recall.drawn_queries import SAMPLE

    if queries and (draw or sample is not None):
        raise ConfigError("--queries uses all queries of its file; leave out --draw and --sample.")
    check_output_options(options, index, queries, *recipe_reads(None, index))
    engine = SearchEngine(index, options["model"], run_options(options))
    measure = resolve_name(_MEASURES[options["similarity"]])
    size = SAMPLE if sample is None else sample
    print_measured(options, lambda progress: measure(engine, k, queries, draw, size, progress))
