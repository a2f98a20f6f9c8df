"""Progress of a build on stderr; nothing at all when stderr is not a terminal."""

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text


class _Rate(TextColumn):
    """Texts a second, and tokens a second where tokens are counted."""

    def __init__(self) -> None:
        super().__init__("")

    def render(self, task: Task) -> Text:
        elapsed = task.elapsed or 0.0
        if elapsed < 0.5:
            return Text("")
        rate = f"{task.completed / elapsed:,.0f}/s"
        tokens = int(task.fields.get("tokens", 0))
        return Text(f"{rate}, {tokens / elapsed:,.0f} tokens/s" if tokens else rate)


class BuildProgress:
    """A bar a phase, with rate and time left. Used as a context manager around the build."""

    def __init__(self, quiet: bool) -> None:
        self._progress = Progress(
            TextColumn("{task.description:<26}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            _Rate(),
            TimeRemainingColumn(),
            console=Console(file=sys.stderr),
            disable=quiet or not sys.stderr.isatty(),
        )
        self._task: TaskID | None = None
        self._tokens = 0

    def phase(self, name: str, total: int | None) -> None:
        self._finish()
        self._task, self._tokens = self._progress.add_task(name, total=total, tokens=0), 0

    def advance(self, texts: int, tokens: int = 0) -> None:
        if self._task is None:
            return
        self._tokens += tokens
        self._progress.update(self._task, advance=texts, tokens=self._tokens)

    def __enter__(self) -> "BuildProgress":
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._finish()
        self._progress.stop()

    def _finish(self) -> None:
        """A phase whose size nobody knew ends full."""
        if self._task is not None:
            task = next(task for task in self._progress.tasks if task.id == self._task)
            self._progress.update(self._task, total=task.completed or 1, completed=task.completed or 1)
