"""`isotrope evaluate`: its subcommands and where each lies."""

from search.cli import LazyGroup

COMMANDS = {
    "sts": ("search.cli.evaluate.sts:command", "Spearman's correlation with human similarity scores, seven STS tasks."),
    "layers": (
        "search.cli.evaluate.layers:command",
        "Every combination of layers on STS: a heat map and the best of n.",
    ),
    "rte": ("search.cli.evaluate.rte:command", "Entailment by a threshold on the cosine (RTE)."),
    "words": ("search.cli.evaluate.words:command", "Static word vectors: similarity, analogies, categories."),
    "retrieval": ("search.cli.evaluate.retrieval:command", "nDCG, MAP, recall and MRR on a BEIR folder, beside BM25."),
    "recall": ("search.cli.evaluate.recall:command", "Recall and latency of an index against exact search."),
}
command = LazyGroup(
    "evaluate",
    commands_at=COMMANDS,
    help="Measure quality: similarity, retrieval, recall.\n\nExample:\n\n  isotrope evaluate sts sts-folder",
)
