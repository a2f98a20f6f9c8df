"""Pictures written to files."""
