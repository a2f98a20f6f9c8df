"""Measurement of STS and retrieval quality and of an index's recall, and tuning of settings.

target      the recipe or index that is measured
sweep       the compared settings and their transforms
embeddings  embeddings for all settings from one forward pass per text
bootstrap   confidence intervals
result      results and their files, shown by `tables`
"""
