"""What is asked of a deduplication (it decides the result) and how it runs (it does not)."""

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from indexer.corpus.sources import COMPRESSIONS, format_of
from indexer.errors import ConfigError
from indexer.executors import WorkerPool
from indexer.recipe.run_options import MOST_THREADS
from indexer.system.output_files import is_stream

Method = Literal["exact", "ann"]
TextDuplicates = Literal["keep", "drop"]
IDENTICAL = 1 - 1e-6  # from here on a threshold means "identical up to rounding"


@dataclass(frozen=True)
class DedupSettings:
    """WHAT is a duplicate and which one stays.

    `threshold` in (-1, 1]; `prefer` is first, last, longest or column:NAME[:desc]; with `text_duplicates` "drop"
    documents of equal normalised text count as duplicates whatever they score; `method` "ann" may miss pairs.
    With `only_against` documents are compared with the other index alone, not with each other.
    """

    threshold: float
    prefer: str = "first"
    method: Method = "exact"
    text_duplicates: TextDuplicates = "keep"
    only_against: bool = False

    def __post_init__(self) -> None:
        check_threshold(self.threshold)

    @property
    def lowest(self) -> np.float32:
        """The lowest score, rounded to float32 as scores are, that makes two documents duplicates."""
        return lowest_score(self.threshold)


@dataclass(frozen=True)
class JoinOptions:
    """HOW pairs are found. None of it changes the result."""

    device: str = "auto"  # auto, cpu, cuda, cuda:N; auto takes CUDA if it is there, else the CPU
    threads: int = 0  # CPU threads; 0: as many as there are cores
    memory: int = 1 << 30  # bytes of working memory, about
    pool: WorkerPool = field(default_factory=WorkerPool)  # "auto" with one worker: threads of this process

    def __post_init__(self) -> None:
        if self.device == "mps":
            raise ConfigError("device is mps; near-duplicates are found on cpu or cuda. Leave --device out.")
        if not 0 <= self.threads <= MOST_THREADS:
            raise ConfigError(f"threads is {self.threads}; expected 0 (all cores) to {MOST_THREADS:,}.")
        if self.memory < 1 << 26:
            raise ConfigError(f"memory is {self.memory:,} bytes; expected at least 64 MiB ({1 << 26:,}).")


def check_threshold(threshold: float, name: str = "threshold") -> None:
    """Raises ConfigError for a threshold that no score of unit vectors could mean."""
    if not (math.isfinite(threshold) and -1 < threshold <= 1):
        raise ConfigError(
            f"{name} is {threshold}; expected a number above -1 and at most 1: scores are inner products of unit "
            "vectors. Near-duplicates usually score 0.85 to 0.97; isotrope dedup INDEX --suggest shows where."
        )


def lowest_score(threshold: float) -> np.float32:
    """The threshold rounded to float32 as scores are; at most `IDENTICAL`: a vector with itself may score below 1."""
    return np.float32(min(threshold, IDENTICAL))


def parse_memory(written: str) -> int:
    """Bytes of an amount such as 512M, 8G or 1000000000. Raises ConfigError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kKmMgGtT]?)(?:i?[bB])?", written.strip())
    if not found:
        raise ConfigError(f'memory is "{written}"; expected an amount such as 512M or 8G.')
    try:
        return int(float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " "))
    except OverflowError:
        raise ConfigError(f"memory is {written[:20]}...; that is more than any machine has.") from None


@dataclass(frozen=True)
class PairFiles:
    """Pairs kept on disk: to `write` those that score at least `floor`, or to `read` them instead of joining."""

    read: Path | None = None
    write: Path | None = None
    floor: float | None = None
    force: bool = False  # write over a file that is there already

    def check(self, settings: DedupSettings) -> None:
        """Raises ConfigError for files that make no sense together, or with the settings."""
        if self.read and self.write:
            raise ConfigError("pairs are read from one file and written to another; do one of the two.")
        if self.floor is not None and not self.write:
            raise ConfigError("a floor is for pairs that are saved; name the file too (--save-pairs FILE).")
        if self.floor is not None:
            check_threshold(self.floor, "floor")
            if self.floor > settings.threshold:
                raise ConfigError(f"floor is {self.floor:g}, above the threshold {settings.threshold:g}.")


@dataclass(frozen=True)
class DedupFiles:
    """What is written: the file of `duplicates`, the surviving corpus (`kept`), and `pairs`, those that are named."""

    duplicates: Path | None = None
    kept: Path | None = None
    pairs: PairFiles = PairFiles()
    force: bool = False  # write over files that are there already

    def check(self) -> None:
        """Raises ConfigError if the name of the file of duplicates does not say its format."""
        if self.duplicates is not None:
            duplicates_format(self.duplicates)


def duplicates_format(path: Path) -> str:
    """Return "parquet", "csv" or "jsonl", by the suffix; a stream gets Parquet. Raises ConfigError for any other."""
    file_format, compression = format_of(path)
    if not file_format and is_stream(path):
        return "parquet"
    if file_format == "parquet" and not compression:
        return file_format
    if file_format in ("csv", "jsonl"):
        return file_format
    raise ConfigError(
        f"-o {path}: the suffix does not name a format of the list of duplicates; expected .parquet (which --verify "
        f"and report read), .csv or .jsonl; the last two also with {', '.join(COMPRESSIONS)}. Fix: name "
        f"{path.name.partition('.')[0] or 'duplicates'}.parquet, for example."
    )
