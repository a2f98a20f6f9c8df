"""The proof of a file of duplicates, by a way of its own."""
