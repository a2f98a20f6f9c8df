"""Comparisons with peers: each module is a command that prints a table of ratios."""
