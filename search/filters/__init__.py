"""Filters: a condition on documents, in SQL, and the documents that meet it.

expressions  typed pieces of SQL, and the rules of comparing their values
columns      the columns that a filter names, and their values
functions    the functions, operators and types of filters: the allow-list
database     DuckDB with nothing but tables in memory: it parses conditions and evaluates them
scanner      checks before parsing; messages with the place of a mistake
grammar      one walk over the syntax tree of a filter, which writes the SQL anew
facets       values, counts and ranges of metadata columns, from which filters can be chosen
filters      from an index and a filter to the numbers of documents; deleting those
"""
