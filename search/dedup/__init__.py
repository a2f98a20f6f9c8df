"""Near-duplicates: all pairs above a threshold, which documents stay, and a proof.

settings       what is asked for, and how it runs
scores         the one score that decides, equal on every path
pairs          what a source of pairs is
scratch        vectors on disk for the time of one run
material       what a deduplication works on
deduplication  from an index to its duplicates
joining, deciding, files, proving, choosing, keeping: see there
"""
