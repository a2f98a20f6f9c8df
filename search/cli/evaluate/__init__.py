"""`isotrope evaluate`: one module a subcommand."""

from search.cli.lazy_group import LazyGroup

COMMANDS = {
    "sts": ("search.cli.evaluate.sts", "Spearman's correlation with human similarity scores, seven STS tasks."),
    "layers": ("search.cli.evaluate.layers", "Every combination of layers on STS: a heat map and the best of n."),
    "rte": ("search.cli.evaluate.rte", "Entailment by a threshold on the cosine (RTE)."),
    "words": ("search.cli.evaluate.words", "Static word vectors: similarity, analogies, categories."),
    "retrieval": ("search.cli.evaluate.retrieval", "nDCG, MAP, recall and MRR on a BEIR folder, beside BM25."),
    "recall": ("search.cli.evaluate.recall", "Recall and latency of an index against exact search."),
}
command = LazyGroup(
    "evaluate",
    commands_at=COMMANDS,
    help="Measure quality: similarity, retrieval, recall.\n\nExample:\n\n  isotrope evaluate sts sts-folder",
)
