"""Comparisons with peers. Most modules are commands that print a table; docs/benchmarks.md shows the tables."""
