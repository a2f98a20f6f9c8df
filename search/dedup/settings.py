"""Settings of a deduplication, which decide the result, and options of a run, which do not."""

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from indexer.corpus.sources import COMPRESSIONS, format_of
from indexer.errors import ConfigError, as_argument, spelled
from indexer.executors import WorkerPool
from indexer.recipe.run_options import MOST_THREADS
from indexer.system.output_files import is_stream, output_name
from indexer.typed_arguments import checked

Method = Literal["exact", "ann"]
TextDuplicates = Literal["keep", "drop"]
IDENTICAL = 1 - 1e-6  # larger thresholds mean "identical up to rounding"


@checked
@dataclass(frozen=True)
class DedupSettings:
    """The definition of a duplicate, and which of two duplicates is kept.

    `threshold` in (-1, 1]; `prefer` is first, last, longest or column:NAME[:desc]; with `text_duplicates` "drop",
    documents of equal normalised text are duplicates at any score; `method` "ann" may miss pairs; with `only_against`,
    documents are compared only with the other index.
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
        """The lowest score of duplicates, float32 like scores."""
        return lowest_score(self.threshold)


@checked
@dataclass(frozen=True)
class JoinOptions:
    """Options of a run, which do not change the result."""

    device: str = "auto"  # auto, cpu, cuda, cuda:N; auto uses CUDA if available
    threads: int = 0  # CPU threads; 0: one a core
    memory: int = 1 << 30  # bytes of working memory, about
    pool: WorkerPool = field(default_factory=WorkerPool)  # "auto" with one worker: threads of this process

    def __post_init__(self) -> None:
        if self.device == "mps":
            raise ConfigError(
                f"device is mps, but near-duplicates need cpu or cuda. Fix: leave out {as_argument('device')}."
            )
        if not 0 <= self.threads <= MOST_THREADS:
            raise ConfigError(f"threads is {self.threads}; expected 0 (all cores) to {MOST_THREADS:,}.")
        if self.memory < 1 << 26:
            raise ConfigError(f"memory is {self.memory:,} bytes; expected at least 64 MiB ({1 << 26:,}).")


def check_threshold(threshold: float, name: str = "threshold") -> None:
    """Raise ConfigError for a threshold outside the scores of unit vectors."""
    if not (math.isfinite(threshold) and -1 < threshold <= 1):
        raise ConfigError(
            f"{name} is {threshold}; expected a number above -1 and at most 1: scores are inner products of unit "
            "vectors. Near-duplicates usually score 0.85 to 0.97; see "
            f"{spelled('suggest_thresholds(INDEX)', 'isotrope dedup INDEX --suggest')}."
        )


def lowest_score(threshold: float) -> np.float32:
    """Return the threshold as float32, at most `IDENTICAL`: a vector may score below 1 with itself."""
    return np.float32(min(threshold, IDENTICAL))


def parse_memory(written: str) -> int:
    """Return the bytes of an amount such as 512M, 8G or 1000000000. Raises ConfigError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kKmMgGtT]?)(?:i?[bB])?", written.strip())
    if not match:
        raise ConfigError(f'memory is "{written}"; expected an amount such as 512M or 8G.')
    try:
        return int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " "))
    except OverflowError:
        raise ConfigError(f"memory is {written[:20]}..., more than any machine has.") from None


@checked
@dataclass(frozen=True)
class PairFiles:
    """Files of pairs: `write` stores pairs that score at least `floor`; `read` replaces the join."""

    read: Path | None = None
    write: Path | None = None
    floor: float | None = None
    force: bool = False  # overwrite existing files

    def check(self, settings: DedupSettings) -> None:
        """Raise ConfigError for contradicting options."""
        if self.read and self.write:
            either = spelled("read or write", "--from-pairs or --save-pairs")
            raise ConfigError(f"pairs cannot be read and written in one run. Fix: pass {either}.")
        if self.floor is not None and not self.write:
            saved = spelled("write", "--save-pairs FILE")
            raise ConfigError(f"{as_argument('floor')} applies to saved pairs only. Fix: pass {saved} too.")
        if self.floor is not None:
            check_threshold(self.floor, "floor")
            if self.floor > settings.threshold:
                raise ConfigError(f"floor is {self.floor:g}, above the threshold {settings.threshold:g}.")


@checked
@dataclass(frozen=True)
class DedupFiles:
    """Output files: the list of `dropped` documents, the `kept` documents, and `pairs`."""

    dropped: Path | None = None
    kept: Path | None = None
    pairs: PairFiles = PairFiles()
    force: bool = False  # overwrite existing files

    def __post_init__(self) -> None:
        if self.dropped:
            duplicates_format(self.dropped)


def duplicates_format(path: Path) -> str:
    """Return "parquet", "csv" or "jsonl" by the suffix, parquet for a stream. Raises ConfigError for other suffixes."""
    file_format, compression = format_of(path)
    if not file_format and is_stream(path):
        return "parquet"
    if file_format in ("csv", "jsonl") or (file_format == "parquet" and not compression):
        return file_format
    raise ConfigError(
        f"{output_name()} {path}: unknown suffix for a list of duplicates; expected .parquet (for "
        f"{spelled('verify_duplicates and write_report', '--verify and report')}), .csv or "
        f".jsonl; the last two also with {', '.join(COMPRESSIONS)}. Fix: for example, name "
        f"{path.name.partition('.')[0] or 'duplicates'}.parquet."
    )
