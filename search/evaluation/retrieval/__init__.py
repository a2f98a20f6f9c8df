"""Retrieval quality on judged queries: `evaluation` is the entry, `collection` what is searched."""
