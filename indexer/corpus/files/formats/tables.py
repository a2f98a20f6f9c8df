"""Tables as Markdown."""

from collections.abc import Iterable, Iterator


def table_lines(rows: Iterable[list[str]]) -> Iterator[str]:
    """Yield the lines of a table whose first row has the names of the columns; rows without text are left out."""
    first = True
    for row in rows:
        cells = [" ".join(cell.replace("|", "\\|").split()) for cell in row]
        if any(cells):
            yield f"| {' | '.join(cells)} |"
            if first:
                yield f"|{' --- |' * len(cells)}"
            first = False
