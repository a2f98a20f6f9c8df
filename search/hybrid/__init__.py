"""BM25 beside vectors: a lexical ranking of an index's documents, and the fusion of both rankings."""
