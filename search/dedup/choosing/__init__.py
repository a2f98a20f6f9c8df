"""Choosing a threshold: what chance would give, what is there, pairs to read, and labelled pairs."""
