"""The OpenAI-compatible routes: embeddings and vector stores."""
