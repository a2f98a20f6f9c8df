"""The number and kind of workers."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from indexer.errors import ConfigError

Executor = Literal["auto", "processes", "ray"]


@dataclass(frozen=True)
class WorkerPool:
    """The number and kind of workers. "auto": processes, or only this process for one worker."""

    workers: int = 1
    executor: Executor = "auto"
    ray_address: str = ""  # of a running cluster, or "auto"; empty: starts Ray on this machine
    gpus_per_worker: float = 0.0  # reserved by Ray for each
    tries: int = 3  # workers that a task may kill; with 1 each task runs alone on its worker
    threads: int = 0  # CPU threads of all workers together; 0: one a core

    def __post_init__(self) -> None:
        """Raises ConfigError, also for Ray settings without Ray, which would be ignored."""
        if self.executor not in get_args(Executor):
            known = " or ".join(f'"{name}"' for name in get_args(Executor))
            raise ConfigError(f'executor is "{self.executor}"; expected {known}.')
        if not 0 <= self.gpus_per_worker < math.inf:
            raise ConfigError(f"gpus_per_worker is {self.gpus_per_worker}; expected 0 or more.")
        if self.executor == "ray":
            return
        for name in ("ray_address", "gpus_per_worker"):
            if value := getattr(self, name):
                raise ConfigError(
                    f'{name} is {value!r}, but executor is "{self.executor}"; it applies to workers of Ray only. '
                    'Fix: pass executor="ray" (--executor ray), or leave it out.'
                )

    def is_this_process(self, tasks: int) -> bool:
        """Return whether so many tasks need no other process."""
        return self.executor == "auto" and min(self.workers, tasks) <= 1
