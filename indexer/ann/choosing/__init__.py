"""Choice of an index: the cost of a query, the recall, and the cheapest kind and parameters."""
