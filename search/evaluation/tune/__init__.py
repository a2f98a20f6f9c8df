"""Whitening settings for a corpus, picked without labels (`pairs`, `objective`) or by judgements; `choice` decides."""
