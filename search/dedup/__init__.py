"""Near-duplicates: all pairs above a threshold, which documents stay, and a proof.

settings         what is asked for, and how it runs
pairs            a scored pair, the one score that decides, and what a source of pairs is
origin           what a file of ours was made from
vectors          vectors on disk for the time of one run
distinct         equal vectors, equal texts, windows of one document
inputs           what is compared
join             all pairs above a threshold, or most of them
greedy           who stays, and who stands for whom
priority         which of two duplicates stays
duplicates_file  the file of duplicates
pairs_file       the file of pairs
kept             the surviving corpus
deduplicate      from an index to its duplicates
corpus           from a corpus to its duplicates

brute_force, findings, verify  the proof of a file of duplicates, by a way of its own
suggest                        choosing a threshold
"""
