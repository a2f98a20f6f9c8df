"""Measurement of a tiny collection with judgements, in Python and on the command line."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from indexer import BuildConfig, build_index, read_corpus
from search.evaluation.retrieval.retrieval import RetrievalOptions, evaluate_retrieval
from search.evaluation.sweep import Sweep
from search.evaluation.target import Target
from tests.search.cli.test_cli import isotrope

WORDS = [
    "whale", "song", "deep", "sea", "bridge", "steel", "cable", "bread", "dough",
    "star", "light", "river", "sand", "clock", "bee", "dance", "glass", "map",
]  # fmt: skip
OWN = "mean -1 strength 0.25 role"
Result = dict[str, Any]


def write_lines(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def built(folder: Path, config: BuildConfig, path: Path) -> Path:
    build_index(read_corpus(folder, config=config.corpus), path, config)
    return path


def evaluated(folder: Path, subject: BuildConfig | Path, sweep: Sweep | None = None, **task: Any) -> Result:
    of = Target.of_recipe(subject) if isinstance(subject, BuildConfig) else Target.of_index(subject)
    return evaluate_retrieval(of, RetrievalOptions(folder, **({"cutoffs": (3, 10)} | task)), sweep or Sweep()).to_dict()


def row_of(result: Result, label: str) -> Result:
    return next(row for row in result["results"] if row["setting"] == label)


def values_of(row: Result) -> dict[str, float]:
    return {name: found["value"] for name, found in row["measure"].items()}


def ranking(path: Path) -> list[tuple[str, ...]]:
    """Query, document and rank of each line."""
    return [tuple(line.split()[column] for column in (0, 2, 3)) for line in path.read_text().splitlines()]


@dataclass(frozen=True)
class Cli:
    """The command with a tiny recipe, or an index."""

    folder: Path
    settings: list[str]

    def __call__(self, *arguments: str | Path) -> Any:
        return isotrope(
            "evaluate", "retrieval", self.folder, *(() if "--index" in arguments else self.settings), *arguments
        )
