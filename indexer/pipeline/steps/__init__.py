"""The steps of a build: ingest, encode, fit the transform, write and check the segments."""
