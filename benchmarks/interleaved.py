"""Timing for busy machines: runs take turns, so that load affects all alike, and medians are compared."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

import click

from indexer.system.processor import Processor
from indexer.system.versions import library_versions

T = TypeVar("T")


@dataclass
class Timed(Generic[T]):
    """Seconds of each run, and the result of the last run."""

    seconds: list[float] = field(default_factory=list)
    result: T | None = None

    @property
    def median(self) -> float:
        """The median of the runs in seconds."""
        return statistics.median(self.seconds)


def run_in_turns(runners: Mapping[str, Callable[[], T]], rounds: int, warm_up: bool = True) -> dict[str, Timed[T]]:
    """Run each runner `rounds` times in turns, by default after one uncounted run of each."""
    timed: dict[str, Timed[T]] = {name: Timed() for name in runners}
    for number in range(rounds + warm_up):
        for name, runner in runners.items():
            start = time.perf_counter()
            result = runner()
            if number >= warm_up:
                timed[name].seconds.append(time.perf_counter() - start)
            timed[name].result = result
    return timed


def machine(threads: int, more: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the machine, date and library versions of a measurement."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "processor": Processor.here().name,
        "kind": Processor.here().kind,
        "cores": os.cpu_count(),
        "threads": threads,
        "versions": library_versions(more),
    }


def in_fresh_process(label: str, function: str, *arguments: Any) -> Any:
    """Return the result of a function ("package.module:function") in a new process, all in JSON types.

    Raises ClickException with `label` and the process's standard error if it fails.
    """
    module, _, name = function.partition(":")
    code = f"import json, sys; from {module} import {name}; print(json.dumps({name}(*json.loads(sys.argv[1]))))"
    command = [sys.executable, "-c", code, json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"{label} failed:\n{done.stderr.strip()}")
    return json.loads(done.stdout.splitlines()[-1])


def save(path: Path, result: Mapping[str, Any]) -> None:
    """Write a result as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
