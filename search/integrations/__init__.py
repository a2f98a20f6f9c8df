"""Indexes inside frameworks for language models; each module needs the extra of its name."""
