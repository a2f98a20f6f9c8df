"""How a build or a query runs: devices, processes, threads. None of it is stored in an index."""

from dataclasses import dataclass
from typing import Literal, get_args

from indexer.errors import ConfigError
from indexer.executors import Executor, WorkerPool
from indexer.recipe.loading import describe_type

Backend = Literal["auto", "torch", "openvino", "numpy"]
MOST_THREADS = 4096  # or processes: more than any machine runs at once


@dataclass(frozen=True)
class RunOptions:
    """HOW a build or a query runs. None of it changes the result beyond rounding, and none of it is stored."""

    device: str = "auto"  # auto, cpu, cuda, cuda:N, mps
    backend: Backend = "auto"  # auto: the fastest installed one that computes the recipe's precision
    texts: Literal["many", "few"] = "many"  # few: for one question or two, the backend that starts quickest
    workers: int = 1  # encoding processes
    threads: int = 0  # CPU threads in all; 0: as many as there are cores
    half: Literal["auto", "bfloat16", "float16"] = "auto"  # how precision class bfloat16 is computed on CUDA
    compile: bool = False  # run torch's compiler over the model first; pays for long runs on a GPU
    overwrite: bool = False  # publish the next generation over a complete index of another recipe or corpus
    executor: Executor = "auto"  # where workers run: processes of this machine, or a Ray cluster
    ray_address: str = ""  # of a running cluster, or "auto"; empty: Ray is started on this machine
    gpus_per_worker: float = 0.0  # that Ray reserves for each worker
    set_aside: bool = False  # leave documents out that kill the encoder, and name them, instead of failing
    allow_low_recall: bool = False  # publish an approximate index that misses index.recall, with what it reached

    def __post_init__(self) -> None:
        if self.backend not in get_args(Backend):
            raise ConfigError(f'backend is "{self.backend}"; expected {describe_type(Backend)}.')
        if not 1 <= self.workers <= MOST_THREADS:
            raise ConfigError(f"workers is {self.workers}; expected 1 to {MOST_THREADS:,}.")
        if not 0 <= self.threads <= MOST_THREADS:
            raise ConfigError(f"threads is {self.threads}; expected 0 (all cores) to {MOST_THREADS:,}.")
        _ = self.pool  # which refuses what is no way to run workers

    @property
    def pool(self) -> WorkerPool:
        """The workers."""
        return WorkerPool(self.workers, self.executor, self.ray_address, self.gpus_per_worker, threads=self.threads)
