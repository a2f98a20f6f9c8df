"""What a build tells whoever watches it."""

from typing import Protocol


class Progress(Protocol):
    """A watcher. Phases come one after another; counts are texts (documents, queries) and tokens."""

    def phase(self, name: str, total: int | None) -> None:
        """A phase begins; `total` texts are expected, None when nobody knows yet."""
        ...

    def advance(self, texts: int, tokens: int = 0) -> None:
        """So many more texts are done."""
        ...


class Silent:
    """Watches nothing."""

    def phase(self, name: str, total: int | None) -> None:
        """Not shown."""

    def advance(self, texts: int, tokens: int = 0) -> None:
        """Not shown."""
