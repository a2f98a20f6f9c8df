"""The surviving corpus, in its input format with all columns."""
