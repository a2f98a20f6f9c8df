"""`isotrope evaluate retrieval`."""

from pathlib import Path
from typing import Any

import click

from search.cli.options import (
    PATH,
    centre_option,
    check_output_options,
    on_error_option,
    rerank_options,
    rerank_task,
    result_options,
    sweep_of,
    sweep_options,
    target_of,
    target_options,
)


@click.command("retrieval")
@click.argument("folder", type=PATH, metavar="BEIR_FOLDER")
@target_options
@sweep_options
@centre_option
@click.option("-k", "cutoffs", multiple=True, type=int, default=(10, 100), show_default=True, metavar="K",
              help="Rank to cut at; repeatable. Intervals in the table and --per-query are of nDCG at the "
              "first.")  # fmt: skip
@click.option("--split", default="test", show_default=True, help="Which judgements: qrels/SPLIT.tsv.")
@click.option("--per-query", type=PATH, metavar="FILE.tsv", help="Write the first nDCG of every query here, a column a "
              "setting.")  # fmt: skip
@click.option("--run", type=PATH, metavar="FILE|FOLDER", help="Write the rankings as TREC runs: a file for one "
              "setting; several, and BM25's, go into a folder.")  # fmt: skip
@click.option("--compare", is_flag=True, help="Print paired differences too: to raw embeddings, other centres, BM25; "
              "of a hybrid to its vectors.")  # fmt: skip
@click.option("--plot", type=PATH, metavar="FILE", help="Draw the first nDCG against whitening strength into this file "
              "(.png, .svg, .pdf).")  # fmt: skip
@click.option("--hybrid", is_flag=True, help="Measure each setting fused with BM25 too: as query --hybrid searches, "
              "and by reciprocal ranks.")  # fmt: skip
@click.option("--hybrid-weight", "hybrid_weights", multiple=True, type=float, metavar="W", help="With --hybrid: weight "
              "of the vectors, 0 to 1, in place of the recipe's; repeatable.")  # fmt: skip
@rerank_options("Measure each ranking with its first hits in the order of this cross-encoder too.")
@click.option("--query-vectors", type=PATH, metavar="FILE.npy", help="Embeddings of the queries, beside FILE.ids.txt "
              "with their ids: nothing is encoded. With an index only.")  # fmt: skip
@click.option("--no-bm25", is_flag=True, help="Leave out the BM25 baseline.")
@on_error_option
@result_options
def command(folder: Path, **options: Any) -> None:
    """nDCG, MAP, recall and MRR on a BEIR folder, beside BM25.

    BEIR_FOLDER holds corpus.jsonl, queries.jsonl and qrels/test.tsv. A recipe is measured as the index it would
    build: the corpus is encoded once for all settings. An --index is asked itself, or, where settings are given, its
    stored embeddings are fitted again. Measures are trec_eval's, with 95 % bootstrap intervals over queries: times
    100 in tables, from 0 to 1 in JSON.

    \b
    Examples:
      isotrope evaluate retrieval scifact --index my-index
      isotrope evaluate retrieval scifact --index my-index --hybrid --compare
      isotrope evaluate retrieval scifact --index my-index --hybrid --hybrid-weight 0.3 --hybrid-weight 0.5
      isotrope evaluate retrieval scifact --index my-index --hybrid --rerank ./cross-encoder --rerank-depth 50
      isotrope evaluate retrieval scifact --strength none --strength 0.25 --centre role --centre common --compare
      isotrope evaluate retrieval scifact --layers -1 --layers 1,-1 --cache cache -o scifact.json
      isotrope evaluate retrieval scifact --strength none --strength 0 --strength 0.5 --strength 1 --plot scifact.svg
    """
    from search.cli.output import print_measured, print_note
    from search.evaluation.plots.drawing import check_plot
    from search.evaluation.plots.retrieval import plot_retrieval
    from search.evaluation.retrieval.retrieval import RetrievalOptions, evaluate_retrieval

    plot, force = options["plot"], options["force"]
    task = RetrievalOptions(
        folder,
        options["split"],
        tuple(dict.fromkeys(options["cutoffs"])),
        not options["no_bm25"],
        options["run"],
        options["per_query"],
        options["on_error"],
        options["hybrid"],
        tuple(dict.fromkeys(options["hybrid_weights"])),
        options["query_vectors"],
        force,
        {flag: options[name] for name, flag in (("output", "-o"), ("plot", "--plot")) if options[name]},
        rerank_task(options),
    )
    check_output_options(options, folder)
    if plot:
        check_plot(plot, force)
    target, sweep = target_of(options), sweep_of(options)
    result = print_measured(
        options,
        lambda progress: evaluate_retrieval(target, task, sweep, options["cache"], progress),
        options["compare"],
    )
    if plot and (note := plot_retrieval(result, plot, force)):
        print_note(note)
