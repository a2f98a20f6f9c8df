"""Progress of a build on stderr, if stderr is a terminal."""

import sys

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text


class _Counts(ProgressColumn):
    """Texts done and expected, texts a second, and tokens a second if tokens are counted."""

    def render(self, task: Task) -> Text:
        if not task.completed:
            return Text("")
        expected = f"/{int(task.total):,}" if task.total else ""
        shown = f"{int(task.completed):,}{expected}"
        if task.elapsed and task.elapsed > 0.5:
            shown += f", {task.completed / task.elapsed:,.0f}/s"
            tokens = int(task.fields["tokens"])
            shown += f", {tokens / task.elapsed:,.0f} tokens/s" if tokens else ""
        return Text(shown)


class ProgressBar:
    """One bar for each phase, with rate and time left. Used as a context manager around the build."""

    def __init__(self, quiet: bool) -> None:
        self._progress = Progress(
            TextColumn("{task.description:<26}"),
            BarColumn(bar_width=30),
            _Counts(),
            TimeRemainingColumn(),
            console=Console(file=sys.stderr),
            disable=quiet or not sys.stderr.isatty(),
        )
        self._task: TaskID | None = None
        self._texts = self._tokens = 0

    def phase(self, name: str, total: int | None) -> None:
        self._finish()
        self._texts = self._tokens = 0
        self._task = self._progress.add_task(name, total=total, tokens=0)

    def advance(self, texts: int, tokens: int = 0) -> None:
        if self._task is None:
            return
        self._texts, self._tokens = self._texts + texts, self._tokens + tokens
        self._progress.update(self._task, completed=self._texts, tokens=self._tokens)

    def pause(self) -> None:
        """Stop the display, for a question to the user."""
        self._progress.stop()

    def __enter__(self) -> "ProgressBar":
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._finish()
        self._progress.stop()

    def _finish(self) -> None:
        """Fill the bar of a phase of unknown size, and stop its clock."""
        if self._task is not None:
            self._progress.update(self._task, total=self._texts, completed=self._texts)
            self._progress.stop_task(self._task)
