"""`isotrope evaluate recall`."""

from pathlib import Path
from typing import Any

import click

from search.cli.options import check_output_options, encoder_options, recipe_reads, result_options, run_options


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
@encoder_options
@result_options
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
    from search.cli.output import write_and_print
    from search.cli.progress import ProgressBar
    from search.engine import SearchEngine
    from search.evaluation.recall.divergence import evaluate_divergence
    from search.evaluation.recall.drawn_queries import SAMPLE
    from search.evaluation.recall.recall import evaluate_recall

    if queries and (origin or sample is not None):
        raise ConfigError("--queries brings its own queries, all of which are used; leave out --from and --sample.")
    check_output_options(options, index, queries, *recipe_reads(None, index))
    engine = SearchEngine(index, options["model"], run_options(options))
    measure, show = (evaluate_divergence, _show_divergence) if similarity == "js" else (evaluate_recall, _show)
    with ProgressBar(options["quiet"]) as progress:
        result = measure(engine, k, queries, origin, SAMPLE if sample is None else sample, progress)
    write_and_print(result, options, show)


def _show_divergence(result: dict[str, Any]) -> None:
    from search.cli.output import print_facts, print_note

    row = result["results"][0]
    print_facts(
        [
            (f"recall@{row['k']}", f"{row['recall']:.4f} [{row['low']:.4f}, {row['high']:.4f}] (95 % interval)"),
            ("proved", f"{row['proven']:.1%} of {row['queries']:,} queries ({row['origin']})"),
            ("candidates", f"{row['candidates']:,} of {row['rows']:,} rows, by {row['transform']}"),
        ]
    )
    for note in result["notes"]:
        print_note(note)


def _show(result: dict[str, Any]) -> None:
    from search.cli.output import print_facts, print_note, print_table
    from search.text import counted

    row = result["results"][0]
    figure = f"{row['recall']:.4f}"
    if row["exact"]:
        figure += " by construction: the index is exact, and gave the exact answers"
    else:
        figure += f" [{row['low']:.4f}, {row['high']:.4f}] (95 % bootstrap interval)"
    parameters = [f"{name} {value}" for each in row["search_parameters"] for name, value in each.items()]
    print_facts(
        [
            (f"recall@{row['k']}", figure),
            (
                "queries",
                f"{row['queries']:,} from {'the' if row['origin'] == 'file' else 'documents:'} {row['origin']}",
            ),
            ("index", ", ".join([row["index_type"], *parameters])),
            (
                "size",
                f"{counted(row['rows'], 'vector', 'vectors')} of {counted(row['dim'], 'dimension', 'dimensions')}, "
                f"{row['bytes_per_vector']:,.1f} bytes each",
            ),
        ]
    )
    names = {"search": "search", "with_encoding": "encoding and search"}
    timed = row["latency_ms"]
    rows = [[names[key], *(f"{figures[p]:.2f}" for p in ("p50", "p90", "p99"))] for key, figures in timed.items()]
    print_table(["ms a query", "p50", "p90", "p99"], rows)
    for note in result["notes"]:
        print_note(note)
