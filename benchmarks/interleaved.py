"""Timing that a busy machine distorts alike for everybody: runs take turns, medians are compared."""

import json
import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

from indexer.processor import Processor
from indexer.versions import library_versions

T = TypeVar("T")


@dataclass
class Timed(Generic[T]):
    """Seconds of each run, and what the last one gave."""

    seconds: list[float] = field(default_factory=list)
    result: T | None = None

    @property
    def median(self) -> float:
        """Median of the runs, in seconds."""
        return statistics.median(self.seconds)


def run_in_turns(runners: Mapping[str, Callable[[], T]], rounds: int, warm_up: bool = True) -> dict[str, Timed[T]]:
    """Each runner `rounds` times, in turns; after one run of each that does not count."""
    found: dict[str, Timed[T]] = {name: Timed() for name in runners}
    for number in range(rounds + warm_up):
        for name, runner in runners.items():
            start = time.perf_counter()
            result = runner()
            if number >= warm_up:
                found[name].seconds.append(time.perf_counter() - start)
            found[name].result = result
    return found


def machine(threads: int, more: tuple[str, ...] = ()) -> dict[str, Any]:
    """Where a table was made."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "processor": Processor.here().name,
        "cores": os.cpu_count(),
        "threads": threads,
        "versions": library_versions(more),
    }


def save(path: Path, result: Mapping[str, Any]) -> None:
    """Keep a result as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
