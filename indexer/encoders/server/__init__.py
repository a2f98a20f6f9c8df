"""`encoder.kind = "server"`: embeddings of an OpenAI-compatible server."""
