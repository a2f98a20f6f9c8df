"""Choosing an index: what a query costs, what recall it reaches, and which kind and parameters are cheapest."""
