"""Filters: SQL conditions on metadata, and the documents that match.

expressions  typed SQL expressions and the rules for comparing them
columns      the columns that a filter names; a cache of their values
functions    the allow-list of functions, operators and types
database     DuckDB without files or settings: parses and evaluates conditions
scanner      checks before parsing; error messages with positions
grammar      rewrites the syntax tree of a filter as SQL
facets       values, counts and ranges of metadata columns, for building filters
filters      matching documents of an index; deletion by filter
"""
