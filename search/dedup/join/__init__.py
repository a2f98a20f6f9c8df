"""The similarity join: all pairs of vectors above a threshold."""
