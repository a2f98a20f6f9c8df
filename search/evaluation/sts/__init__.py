"""Similarity of sentence pairs: `data` reads sets, `fit` fits transforms, `score` correlates, `sts` evaluates."""
