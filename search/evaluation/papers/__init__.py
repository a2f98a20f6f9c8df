"""Tables and methods of the papers, reproduced."""
# TODO-DOC search.evaluation.words:
# TODO-DOC Static word vectors on word-level data sets: `data` reads the sets, `vectors` the vectors, `evaluation` measures.
# TODO-DOC search.evaluation.sts.methods:
# TODO-DOC Every method of the papers on the STS tasks, one beside the other: pooling, whitening, SIF, flows, Latte-Mix.
