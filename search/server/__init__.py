"""A server of one index: HTTP API, search page, and tools for agents."""
