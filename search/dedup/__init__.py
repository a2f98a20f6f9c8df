"""Near-duplicates: pairs above a threshold, the documents to keep, and a proof of the result."""
