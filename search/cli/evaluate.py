"""`isotrope evaluate` and its commands; those of the papers are in `search.papers.commands`."""

from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import click

from search.cli import LazyGroup
from search.cli.options import (
    PATH,
    centre_option,
    check_output_options,
    draw_options,
    encoder_options,
    k_option,
    on_error_option,
    query_source,
    recipe_reads,
    rerank_options,
    rerank_task,
    result_options,
    run_options,
    sweep_of,
    sweep_options,
    target_of,
    target_options,
)

_HERE, _PAPERS = "search.cli.evaluate", "search.papers.commands"
COMMANDS = {
    "sts": (f"{_HERE}:sts", "Spearman's correlation with human similarity scores, seven STS tasks."),
    "layers": (f"{_PAPERS}:layers", "Every combination of layers on STS: a heat map and the best of n."),
    "retrieval": (f"{_HERE}:retrieval", "nDCG, MAP, recall and MRR on a BEIR folder, with BM25."),
    "recall": (f"{_HERE}:recall", "Recall and latency of an index against exact search."),
    "whiteningbert": (f"{_PAPERS}:whiteningbert", "Table 1 of WhiteningBERT next to our own figures."),
    "methods": (f"{_PAPERS}:methods", "Every method compared with mean pooling, on STS."),
    "rte": (f"{_PAPERS}:rte", "Entailment by a threshold on the cosine (RTE)."),
    "words": (f"{_PAPERS}:words", "Static word vectors: similarity, analogies, categories."),
}
command = LazyGroup(
    "evaluate",
    commands_at=COMMANDS,
    help="Measure quality: similarity, retrieval, recall.\n\nExample:\n\n  isotrope evaluate sts sts-folder",
)
_RECALLS = {
    "cosine": "search.evaluation.recall.recall:evaluate_recall",
    "js": "search.papers.divergence_recall:evaluate_divergence",
}
protocols_option = click.option("--protocol", "protocols", multiple=True, type=click.Choice(["mean", "wmean", "all"]),
                                help="Figure for a task of several subsets: the mean of their correlations (the "
                                "default, as in the paper), the mean weighted by pairs, or one correlation over all "
                                "pairs; repeatable.")  # fmt: skip


@click.command("sts")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@target_options
@sweep_options
@protocols_option
@click.option("--fit", default="", metavar="task|corpus:PATH|index", help="Data that the whitening is fitted on: the "
              "task's own sentences (as in the paper, transductive), another corpus (whitening.sample of its documents)"
              ", or the embeddings of --index. Default: index with --index, otherwise task.")  # fmt: skip
@result_options
def sts(sources: tuple[str, ...], protocols: tuple[Any, ...], fit: str, **options: Any) -> None:
    """Spearman's correlation with human similarity scores, seven STS tasks.

    SOURCE is a folder of TSV files (score, sentence1, sentence2; such as sts12.MSRpar.tsv, a subset of STS12), a
    SentEval download, or the id of a Hugging Face data set. Every sentence is encoded once for all settings. Tables
    show figures x 100, JSON shows them from 0 to 1, both with 95 % bootstrap intervals. Figures of different protocols
    or fits are not comparable.

    \b
    Examples:
      isotrope evaluate sts sts-folder
      isotrope evaluate sts sts-folder --layers -1 --layers 1,-1 --strength none --strength 1 -o sts.json
      isotrope evaluate sts sts-folder --index demo/index --protocol mean --protocol all
      isotrope evaluate sts sts-folder --fit corpus:demo/stdlib.jsonl --set whitening.sample=2000
    """
    from search.cli.output import print_measured
    from search.evaluation.sts.data import read_tasks
    from search.evaluation.sts.sts import StsOptions, evaluate_sts

    check_output_options(options, *sources, fit.partition("corpus:")[2])
    target = target_of(options)
    plan = StsOptions(target.settings(sweep_of(options)), protocols or ("mean",), fit)
    tasks = read_tasks(*sources)
    print_measured(options, lambda progress: evaluate_sts(target, tasks, plan, options["cache"], progress))


@click.command("retrieval")
@click.argument("folder", type=PATH, metavar="BEIR_FOLDER")
@target_options
@sweep_options
@centre_option
@click.option("-k", "cutoffs", multiple=True, type=int, default=(10, 100), show_default=True, metavar="K",
              help="Rank to cut at; repeatable. Intervals in the table and --per-query are of nDCG at the "
              "first rank.")  # fmt: skip
@click.option("--split", default="test", show_default=True, help="Judgements to use: qrels/SPLIT.tsv.")
@click.option("--per-query", type=PATH, metavar="FILE.tsv", help="Write the first nDCG of every query here, one column "
              "per setting.")  # fmt: skip
@click.option("--run", type=PATH, metavar="FILE|FOLDER", help="Write the rankings as TREC runs: a file for one "
              "setting, a folder for several and BM25.")  # fmt: skip
@click.option("--compare", is_flag=True, help="Also print paired differences: to raw embeddings, other centres, BM25; "
              "for hybrids also to their vectors.")  # fmt: skip
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
def retrieval(folder: Path, **options: Any) -> None:
    """nDCG, MAP, recall and MRR on a BEIR folder, with BM25.

    BEIR_FOLDER contains corpus.jsonl, queries.jsonl and qrels/test.tsv. A recipe is measured as the index it would
    build: the corpus is encoded once for all settings. --index measures that index and reads no corpus.jsonl; if
    settings are given, it refits the stored embeddings. Measures are trec_eval's, with 95 % bootstrap intervals over
    queries. Tables show them x 100, JSON shows them from 0 to 1.

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
    from search.cli.output import print_measured, print_note, print_plot
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
        options["on_error"] or "fail",
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
    elif plot:
        print_plot(options)


@click.command("recall")
@click.argument("index", type=PATH)
@k_option("Answers compared per query.")
@draw_options
@click.option("--similarity", type=click.Choice(list(_RECALLS)), default="cosine", show_default=True, help="js: "
              'recall of the ranking by Jensen-Shannon divergence, for pooling "latte-mix".')  # fmt: skip
@encoder_options
@result_options
def recall(index: Path, k: int, **options: Any) -> None:
    """Recall and latency of an index against exact search.

    INDEX is a path or a URL in object storage (s3://, gs:// or az://).
    For a query drawn from a document, neither that document nor its duplicates count. Latencies are of single queries,
    so measure on an idle machine. The index stays unchanged.

    \b
    Examples:
      isotrope evaluate recall demo/index
      isotrope evaluate recall demo/index -k 100 --queries questions.txt -o recall.json
    """
    from search.cli.output import print_measured
    from search.engine import SearchEngine
    from search.evaluation.recall.drawn_queries import SAMPLE

    queries, draw, size = query_source(options, SAMPLE)
    check_output_options(options, index, queries, *recipe_reads(None, index))
    engine = SearchEngine(index, options["model"], run_options(options))
    measure = resolve_name(_RECALLS[options["similarity"]])
    print_measured(options, lambda progress: measure(engine, k, queries, draw, size, progress))
