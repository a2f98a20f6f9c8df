"""Encoders: text to embedding. `protocol` is their interface, `load` chooses the backend."""
