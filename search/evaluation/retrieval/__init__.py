"""Retrieval quality on judged queries: `retrieval` evaluates, `corpus` is searched, `metrics` are the measures."""
