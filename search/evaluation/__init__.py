"""Measuring: STS and retrieval quality, recall of an index, and settings tuned without labels.

subject    what is measured: a recipe, or an index
settings   the settings that are compared
states     embeddings for all of them from one forward pass a text
fits       their transforms
resampling confidence intervals
"""
