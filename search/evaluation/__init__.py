"""Measuring: STS and retrieval quality, recall of an index, and settings tuned without labels.

target      what is measured: a recipe, or an index
settings    the settings that are compared, and their transforms
embeddings  embeddings for all of them from one forward pass a text
bootstrap   confidence intervals
result      results and their files; `tables` lays them out, `cells` writes figures
"""
