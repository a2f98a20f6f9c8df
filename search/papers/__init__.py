"""What the papers measured, reproduced. The rest of `search` knows these modules by name only.

layers         every combination of layers on STS; `layers_plot` draws it
whiteningbert  Table 1 of WhiteningBERT beside our own figures
methods        every method beside mean pooling, on STS; `mixtures` trains Latte-Mix and its controls
rte            entailment by a threshold on the cosine
words          static vectors of words, on word-level data sets
divergence     ranking by Jensen-Shannon divergence; `divergence_recall` measures it
sif            token weights, for exports
commands       the commands of `isotrope evaluate`
tables         their results as tables
"""
