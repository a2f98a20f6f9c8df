"""An index in the formats of other programs: FAISS, sentence-transformers, Parquet, TREC runs.

Each function opens the newest generation, writes what is live in it and gives an `Exported`. What is written appears
whole or not at all, and its bytes depend on the index alone.
"""
