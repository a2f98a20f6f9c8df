"""Readers of formats: the text of a file from its bytes. They run in worker processes, since files can be hostile."""
