"""Retrieval quality on judged queries: `retrieval` is the entry, `corpus` what is searched, `metrics` the measures."""
