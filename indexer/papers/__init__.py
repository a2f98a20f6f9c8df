"""The methods of papers: poolings and transforms, each imported when a recipe or an index names it."""
