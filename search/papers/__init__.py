"""Measurements of the papers, reproduced. The rest of `search` knows these modules only by name.

layers         every combination of layers on STS; `layers_plot` draws it
whiteningbert  Table 1 of WhiteningBERT next to our own figures
methods        every method compared with mean pooling, on STS; `mixtures` trains Latte-Mix and its controls
rte            entailment by a threshold on the cosine
words          static word vectors on word-level data sets
divergence     ranking by Jensen-Shannon divergence; `divergence_recall` measures it
commands       the commands of `isotrope evaluate`
tables         their results as tables
"""
