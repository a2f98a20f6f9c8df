"""From vectors and words to ranked documents.

options       the options of a search
ranker        the documents that answer a query
documents     from rows to documents: the best row of each, one per group, ties by id
exact         exact top k over blocks of vectors
bm25          BM25 over texts, or over an open index
fusion        one ranking from several
reranker      the first hits in the order of a cross-encoder
similarities  similarities other than the inner product, from `search.papers`
"""
