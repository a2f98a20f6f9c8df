"""How many workers there are, and where."""

from dataclasses import dataclass
from typing import Literal

Executor = Literal["auto", "processes", "ray"]


@dataclass(frozen=True)
class WorkerPool:
    """How many workers there are, and where. "auto": processes, or this one alone where one worker is enough."""

    workers: int = 1
    executor: Executor = "auto"
    ray_address: str = ""  # of a running cluster, or "auto"; empty: Ray is started on this machine
    gpus_per_worker: float = 0.0  # that Ray reserves for each
    tries: int = 3  # workers that a task may cost; with 1 each task has its worker to itself
    threads: int = 0  # CPU threads of all workers together; 0: as many as there are cores

    def is_this_process(self, tasks: int) -> bool:
        """Whether so many tasks need no other process."""
        return self.executor == "auto" and min(self.workers, tasks) <= 1
