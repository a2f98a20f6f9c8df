"""Near-duplicates: all pairs above a threshold, which documents stay, and a proof.

settings         what is asked for, and how it runs
pairs            a scored pair, and the one score that decides
origin           what a file of ours was made from
vectors          vectors on disk for the time of one run
distinct         equal vectors, equal texts, windows of one document
inputs           what is compared
codes            short codes, whose products bound scores from above
join             all pairs above a threshold
approximate      most of them, and how many
greedy           who stays, and who stands for whom
priority         which of two duplicates stays
duplicates_file  the file of duplicates
pairs_file       the file of pairs
kept             the surviving corpus
deduplicate      from an index to its duplicates
brute_force, findings, verify        the proof of a file of duplicates
chance, pair_counts, labelled, suggest   choosing a threshold
"""
# TODO-DOC search.dedup:
# TODO-DOC Near-duplicates: all pairs above a threshold, which documents stay, and a proof.
# TODO-DOC
# TODO-DOC settings       what is asked for, and how it runs
# TODO-DOC scores         the one score that decides, equal on every path
# TODO-DOC pairs          what a source of pairs is
# TODO-DOC scratch        vectors on disk for the time of one run
# TODO-DOC material       what a deduplication works on
# TODO-DOC deduplication  from an index to its duplicates
# TODO-DOC joining, deciding, files, proving, choosing, keeping: see there
# TODO-DOC
# TODO-DOC search.dedup.proving:
# TODO-DOC The proof of a file of duplicates, by a way of its own.
# TODO-DOC search.dedup.keeping:
# TODO-DOC The surviving corpus, in its input format with all columns.
# TODO-DOC search.dedup.joining:
# TODO-DOC All pairs that score at least a threshold.
# TODO-DOC
# TODO-DOC join        the exact join; approximate  the one that may miss pairs, and says how many
# TODO-DOC basis       how much of a vector goes into its code
# TODO-DOC codes       short codes, whose products bound scores from above
# TODO-DOC tiles       comparing codes tile by tile
# TODO-DOC workers     threads whose results wait in a bounded queue
# TODO-DOC cells       neighbourhoods, for the approximate join
# TODO-DOC
# TODO-DOC search.dedup.files:
# TODO-DOC What is written: the dropped documents, and pairs for other thresholds; each says what it was made from.
# TODO-DOC search.dedup.deciding:
# TODO-DOC Which documents stay, and who stands for the others.
# TODO-DOC
# TODO-DOC greedy      the rule; claims  what kept documents say of the marks of others
# TODO-DOC collection  what the rule needs to know of the documents
# TODO-DOC order       which of two duplicates stays
# TODO-DOC distinct    vectors that are the same, byte by byte
# TODO-DOC texts       texts that are the same after normalisation
# TODO-DOC
# TODO-DOC search.dedup.choosing:
# TODO-DOC Choosing a threshold: what chance would give, what is there, pairs to read, and labelled pairs.
