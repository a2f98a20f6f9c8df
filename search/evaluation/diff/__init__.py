"""The difference between two indexes, or two generations of one: in documents, and in the answers to questions."""
