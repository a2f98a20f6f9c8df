"""How many workers there are, and where."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from indexer.errors import ConfigError

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

    def __post_init__(self) -> None:
        """Raises ConfigError, also for settings of Ray's workers where Ray is not asked for: they would go unheeded."""
        if self.executor not in get_args(Executor):
            known = " or ".join(f'"{name}"' for name in get_args(Executor))
            raise ConfigError(f'executor is "{self.executor}"; expected {known}.')
        if not 0 <= self.gpus_per_worker < math.inf:
            raise ConfigError(f"gpus_per_worker is {self.gpus_per_worker}; expected a number from 0 on.")
        if self.executor == "ray":
            return
        for name in ("ray_address", "gpus_per_worker"):
            if value := getattr(self, name):
                raise ConfigError(
                    f'{name} is {value!r} and executor is "{self.executor}"; it is for workers of Ray\'s alone. '
                    'Pass executor="ray" (--executor ray), or leave it out.'
                )

    def is_this_process(self, tasks: int) -> bool:
        """Whether so many tasks need no other process."""
        return self.executor == "auto" and min(self.workers, tasks) <= 1
