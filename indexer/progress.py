"""Progress reports of a build."""

from collections.abc import Callable
from typing import Protocol


class Progress(Protocol):
    """An observer. Phases follow one another; counts are texts (documents, queries) and tokens."""

    def phase(self, name: str, total: int | None) -> None:
        """Begin a phase of `total` texts, None if unknown."""
        ...

    def advance(self, texts: int, tokens: int = 0) -> None:
        """Report finished texts."""
        ...


def step_callback(progress: Progress, phase: str) -> Callable[[int, int], None]:
    """Return a function to call with (steps done, all steps); its first call begins the phase."""
    begun = False

    def on_step(done: int, total: int) -> None:
        nonlocal begun
        if not begun:
            progress.phase(phase, total)
            begun = True
        progress.advance(1)

    return on_step


class NoProgress:
    """Report nothing."""

    def phase(self, name: str, total: int | None) -> None:
        """Do nothing."""

    def advance(self, texts: int, tokens: int = 0) -> None:
        """Do nothing."""
