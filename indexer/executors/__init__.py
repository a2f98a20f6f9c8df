"""Where tasks run: in this process, in others beside it, or on a Ray cluster. The results do not depend on it."""

from indexer.executors.processes import run_tasks as run_tasks

__all__ = ["run_tasks"]
