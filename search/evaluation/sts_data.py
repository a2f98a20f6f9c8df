"""Semantic textual similarity sets: pairs of sentences with human scores, read from folders and data set ids."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

TASKS = ("STSB", "SICK", "STS12", "STS13", "STS14", "STS15", "STS16")


@dataclass(frozen=True)
class Subset:
    """Pairs that are ranked together: `scores` (n,) are the human ones."""

    name: str
    scores: npt.NDArray[np.float64]
    first: tuple[str, ...]
    second: tuple[str, ...]


@dataclass(frozen=True)
class Task:
    """One data set, such as STS12, in one or more subsets."""

    name: str
    subsets: tuple[Subset, ...]
    files: dict[str, str] = field(default_factory=dict)  # name of the file or data set -> sha256
    notes: tuple[str, ...] = ()
