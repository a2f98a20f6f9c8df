"""Estimates of time, storage, memory and cost for a corpus of any size, calculated from measured constants."""
