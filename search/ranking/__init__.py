"""From vectors and words to ranked documents.

options       what is asked
ranker        the documents that answer it
documents     from rows to documents: the best row of each, one of a group, ties by id
exact         exact top k over blocks of vectors
bm25          BM25 over texts, or over an open index
fusion        one ranking of several
reranker      the first hits in the order of a cross-encoder
similarities  other similarities than the inner product, which `search.papers` adds
"""
