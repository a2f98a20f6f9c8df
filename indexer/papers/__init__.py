"""Poolings and transforms from papers, each imported only when a recipe or an index names it."""
