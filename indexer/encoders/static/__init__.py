"""Encoders that look up token vectors in a table: word vectors and model2vec folders."""
