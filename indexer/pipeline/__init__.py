"""Builds: ingest -> encode -> fit -> index -> publish."""

from indexer.pipeline.build import BuildReport as BuildReport
from indexer.pipeline.build import build_index as build_index

__all__ = ["BuildReport", "build_index"]
