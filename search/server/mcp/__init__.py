"""The Model Context Protocol server: the tools of agents, over HTTP and standard streams."""
