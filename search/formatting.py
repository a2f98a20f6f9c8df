"""Text and numbers formatted for display: escaped, shortened, with nouns and units."""

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

from indexer.system.escaping import escape as escape


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """Return a question with the closest of the known names, or `otherwise` if none is close."""
    close = difflib.get_close_matches(name, known, n=1)
    return f'did you mean "{close[0]}"?' if close else otherwise


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun, whose plural is `many`, by default `one` with an "s"."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def first_of(names: Sequence[str], most: int) -> str:
    """Return the first names in a list, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


def number(value: Any, digits: int = 4) -> str:
    """Return an integer with separators, a float with `digits` significant digits, and any other value as text."""
    if value is None:
        return "undefined"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.{digits}g}"


def excerpt(text: str, most: int) -> str:
    """Return the beginning of a text on one line, escaped, and cut between two words if it is longer than `most`."""
    words = " ".join(text.split())
    return escape(words) if len(words) <= most else f"{escape(words[:most].rsplit(' ', 1)[0])} ..."


def html_table(
    caption: str, rows: Iterable[Iterable[object]], header: Sequence[str] = (), remarks: Iterable[str] = ()
) -> str:
    """Return an HTML table for notebooks, with `remarks` below it. All texts are escaped."""

    def line(cells: Iterable[object], tag: str) -> str:
        texts = (f'<{tag} style="text-align:left">{_html(cell)}</{tag}>' for cell in cells)
        return f"<tr>{''.join(texts)}</tr>"

    head = f"<thead>{line(header, 'th')}</thead>" if header else ""
    body = "".join(line(cells, "td") for cells in rows)
    table = f"<table><caption>{_html(caption)}</caption>{head}<tbody>{body}</tbody></table>"
    return "".join([table, *map(html_line, remarks)])


def html_line(text: str) -> str:
    """Return a paragraph for notebooks."""
    return f"<p>{_html(text)}</p>"


def _html(value: object) -> str:
    from html import escape as quoted  # only notebooks need it

    return quoted(escape(str(value)))


def percent(value: float | None) -> str:
    """Return a fraction as a percentage."""
    return "undefined" if value is None else f"{100 * value:.1f} %"


def decimal(value: float | None) -> str:
    """Return a number from -1 to 1 with three decimals."""
    return "undefined" if value is None else f"{value:.3f}"


def size(count: int) -> str:
    """Return a number of bytes with a unit."""
    amount, units = float(count), ["B", "kB", "MB", "GB", "TB"]
    while amount >= 1000 and len(units) > 1:
        amount, units = amount / 1000, units[1:]
    return f"{amount:.0f} {units[0]}" if units[0] == "B" else f"{amount:.1f} {units[0]}"
