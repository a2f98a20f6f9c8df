"""Run one callable over parts: in this process, or in several. Results never depend on which."""

from indexer.executors.processes import Prepare as Prepare
from indexer.executors.processes import run_parts as run_parts

__all__ = ["Prepare", "run_parts"]
