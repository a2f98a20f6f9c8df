"""Recall and latency of an index: `recall` is the entry, `drawn_queries` draws queries from documents."""
