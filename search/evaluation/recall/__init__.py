"""Recall and latency of an index: `evaluation` is the entry, `held_out` the queries, `exact` the truth."""
