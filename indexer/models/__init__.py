"""Models on disk: find, download, hash and check their files; resolve the encoder that a recipe or an index names."""
