"""Options of how a build or a query runs: devices, processes, threads. None is stored in an index."""

from dataclasses import dataclass
from typing import Literal

from indexer.errors import ConfigError
from indexer.executors import Executor, WorkerPool
from indexer.typed_arguments import checked

Backend = Literal["auto", "torch", "openvino", "numpy"]
MOST_THREADS = 4096  # or processes: more than any machine runs


@checked
@dataclass(frozen=True)
class RunOptions:
    """Options of how a build or a query runs. They affect results by rounding only, and none is stored."""

    device: str = "auto"  # auto, cpu, cuda, cuda:N, mps
    backend: Backend = "auto"  # auto: the fastest installed one that computes the recipe's precision
    texts: Literal["many", "few"] = "many"  # few: for one or two queries, the backend with the fastest start
    workers: int = 1  # encoding processes
    threads: int = 0  # CPU threads in all; 0: one a core
    requests: int = 8  # at once to an embedding server, of each worker
    half: Literal["auto", "bfloat16", "float16"] = "auto"  # how precision class bfloat16 is computed on CUDA
    compile: bool = False  # run torch's compiler over the model first; pays for long runs on a GPU
    overwrite: bool = False  # publish the next generation over a complete index of another recipe or corpus
    executor: Executor = "auto"  # workers as processes of this machine, or on a Ray cluster
    ray_address: str = ""  # of a running cluster, or "auto"; empty: starts Ray on this machine
    gpus_per_worker: float = 0.0  # reserved by Ray for each worker
    quarantine: bool = False  # list and leave out documents that crash the encoder, instead of failing
    allow_low_recall: bool = False  # publish an approximate index that misses index.recall, with the measured recall

    def __post_init__(self) -> None:
        if not 1 <= self.workers <= MOST_THREADS:
            raise ConfigError(f"workers is {self.workers}; expected 1 to {MOST_THREADS:,}.")
        if not 1 <= self.requests <= MOST_THREADS:
            raise ConfigError(f"requests is {self.requests}; expected 1 to {MOST_THREADS:,}.")
        if not 0 <= self.threads <= MOST_THREADS:
            raise ConfigError(f"threads is {self.threads}; expected 0 (all cores) to {MOST_THREADS:,}.")
        _ = self.pool  # raises for invalid worker settings

    @property
    def pool(self) -> WorkerPool:
        """The workers."""
        return WorkerPool(self.workers, self.executor, self.ray_address, self.gpus_per_worker, threads=self.threads)
