"""Clients of `isotrope serve`, with the methods of `SearchEngine`. They load no numerical library."""
