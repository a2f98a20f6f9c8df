"""What a build tells whoever watches it."""

from collections.abc import Callable
from typing import Protocol


class Progress(Protocol):
    """A watcher. Phases come one after another; counts are texts (documents, queries) and tokens."""

    def phase(self, name: str, total: int | None) -> None:
        """A phase begins; `total` texts are expected, None when nobody knows yet."""
        ...

    def advance(self, texts: int, tokens: int = 0) -> None:
        """So many more texts are done."""
        ...


def step_callback(progress: Progress, phase: str) -> Callable[[int, int], None]:
    """A function to call with (steps done, steps in all): the phase begins with the first."""
    begun = False

    def on_step(done: int, total: int) -> None:
        nonlocal begun
        if not begun:
            progress.phase(phase, total)
            begun = True
        progress.advance(1)

    return on_step


class NoProgress:
    """Watches nothing."""

    def phase(self, name: str, total: int | None) -> None:
        """Not shown."""

    def advance(self, texts: int, tokens: int = 0) -> None:
        """Not shown."""
