"""`isotrope evaluate`: its subcommands and their modules."""

from search.cli import LazyGroup

_ROOM, _PAPERS = "search.cli.evaluate", "search.papers.commands"
COMMANDS = {
    "sts": (f"{_ROOM}.sts:command", "Spearman's correlation with human similarity scores, seven STS tasks."),
    "layers": (f"{_PAPERS}:layers", "Every combination of layers on STS: a heat map and the best of n."),
    "retrieval": (f"{_ROOM}.retrieval:command", "nDCG, MAP, recall and MRR on a BEIR folder, with BM25."),
    "recall": (f"{_ROOM}.recall:command", "Recall and latency of an index against exact search."),
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
