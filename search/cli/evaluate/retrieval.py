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
@click.option("--split", default="test", show_default=True, help="Judgements to use: qrels/SPLIT.tsv.")
@click.option("--per-query", type=PATH, metavar="FILE.tsv", help="Write the first nDCG of every query here, one column "
              "per setting.")  # fmt: skip
@click.option("--run", type=PATH, metavar="FILE|FOLDER", help="Write the rankings as TREC runs: a file for one "
              "setting, a folder for several and BM25.")  # fmt: skip
@click.option("--compare", is_flag=True, help="Also print paired differences: to raw embeddings, other centres, BM25; "
              "for hybrids to their vectors.")  # fmt: skip
@click.option("--plot", type=PATH, metavar="FILE", help="Draw the first nDCG against whitening strength into this file "
              "(.png, .svg, .pdf).")  # fmt: skip
@click.option("--hybrid", is_flag=True, help="Also measure each setting fused with BM25: as query --hybrid searches, "
              "and by reciprocal ranks.")  # fmt: skip
@click.option("--hybrid-weight", "hybrid_weights", multiple=True, type=float, metavar="W", help="With --hybrid: weight "
              "of the vectors, 0 to 1, instead of the recipe's; repeatable.")  # fmt: skip
@rerank_options("Also measure each ranking after reranking by this cross-encoder.")
@click.option("--query-vectors", type=PATH, metavar="FILE.npy", help="Embeddings of the queries, with their ids in "
              "FILE.ids.txt next to it: nothing is encoded. Only with --index.")  # fmt: skip
@click.option("--no-bm25", is_flag=True, help="Leave out the BM25 baseline.")
@on_error_option
@result_options
def command(folder: Path, **options: Any) -> None:
    """nDCG, MAP, recall and MRR on a BEIR folder, with BM25.

    BEIR_FOLDER contains corpus.jsonl, queries.jsonl and qrels/test.tsv. A recipe is measured as the index it would
    build: the corpus is encoded once for all settings. --index measures that index, or refits its stored embeddings
    if settings are given. Measures are trec_eval's, with 95 % bootstrap intervals over queries: times 100 in tables,
    from 0 to 1 in JSON.

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
    cache, compare = options["cache"], options["compare"]
    result = print_measured(options, lambda bar: evaluate_retrieval(target, task, sweep, cache, bar), compare)
    if plot and (note := plot_retrieval(result, plot, force)):
        print_note(note)
