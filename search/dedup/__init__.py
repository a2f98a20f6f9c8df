"""Near-duplicates: pairs above a threshold, the documents to keep, and a proof of the result.

settings         settings, run options and output files
pairs            scored pairs, the exact score, and the PairSource protocol
origin           facts of Parquet files: the index a file was made from
vectors          temporary vectors on disk
distinct         equal vectors and texts, windows of one document
inputs           documents and vectors of one or two indexes
join             the similarity join, exact or approximate
greedy           the greedy choice of kept documents and representatives
priority         the priority order of documents
duplicates_file  the file of duplicates
pairs_file       the file of pairs
corpus_writing   documents as a corpus of any format
kept             the file of kept documents
deduplicate      deduplication of an index
corpus           deduplication of a corpus
suggest          suggestions for a threshold

brute_force, findings, verify  the proof of a file of duplicates, independent of the join
"""
