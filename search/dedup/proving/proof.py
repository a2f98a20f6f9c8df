"""What a verification found."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

_CONSEQUENCES = ("cluster", "order", "facts")  # kinds that mostly follow from others, which are told first
_SHOWN = 3  # problems of each kind that are written out; all are counted


@dataclass
class DedupProof:
    """The outcome of `verify_duplicates`. `problems` is empty for a result that is proved right."""

    path: Path
    index: Path
    threshold: float
    method: str
    documents: int = 0
    dropped: int = 0
    compared: int = 0  # pairs of vectors
    exact: int = 0  # of those summed exactly, as float32 could not decide them
    violations: dict[str, int] = field(default_factory=dict)  # how many of each kind
    problems: list[str] = field(default_factory=list)  # the first few of each kind, and how many more there are

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return {**vars(self), "path": str(self.path), "index": str(self.index), "passed": self.passed}


class Findings:
    """Gathers violations by kind: all are counted, the first few told."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._told: dict[str, list[str]] = {}

    def __bool__(self) -> bool:
        return bool(self.counts)

    def add(self, kind: str, told: Iterable[str], count: int) -> None:
        """`count` more violations of a kind; no more of `told` is made than will be shown."""
        if count:
            self.counts[kind] = self.counts.get(kind, 0) + count
            shown = self._told.setdefault(kind, [])
            shown += islice(told, _SHOWN - len(shown))

    def lines(self) -> list[str]:
        """One line a violation that is shown, and one for all others of its kind."""
        found = []
        for kind, count in sorted(self.counts.items(), key=lambda item: item[0] in _CONSEQUENCES):
            found += [f"{kind}: {line}" for line in self._told[kind]]
            if count > len(self._told[kind]):
                found.append(f"{kind}: {count - len(self._told[kind]):,} more, {count:,} in all")
        return found
