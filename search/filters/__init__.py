"""Filters: SQL conditions on metadata, and the documents that match."""
