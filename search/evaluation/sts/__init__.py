"""Similarity of sentence pairs: `data` reads the sets, `evaluation` measures; the rest builds on these two."""
