"""The HTTP side of the server: listener, access checks, routes and messages of /v1."""
