"""Printing of hits for people.

Without rich, which takes as long to import as a search. Its widths of characters are light.
"""

import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
from rich.cells import cell_len

from search.formatting import escape, excerpt

if TYPE_CHECKING:
    from search.hits import Hit

Styled = tuple[str, str]
"""A text, and the parameter of the ANSI sequence that starts its style."""
_BOLD, _DIM, _CYAN, _YELLOW = "1", "2", "36", "33"
_EXCERPT = 160  # characters
_HEADING = 60  # characters of one heading
_BELOW = " > "  # between a title and the headings below it
_FOLDED = 3  # near-duplicates named under a hit
_NARROWEST_ID, _NARROWEST_TEXT = 13, 16  # columns; a terminal with less room breaks the lines
_LEAST_TEXT = 40  # columns for text next to complete ids, in a pipe
_BETWEEN = "  "  # columns


def print_hits(query: str, hits: Sequence["Hit"], group_by: str | None = None) -> None:
    """Print a query and its hits: score, id, title and the first lines of the text, after the value of `group_by`.

    The id of a hit with a place ends in its line (`notes.md:12`) or page (`paper.pdf#page=3`), and its headings follow
    the title. On a terminal, ids longer than a third of the width are shortened in the middle. In a pipe, where a
    program may read them, ids are complete and lines as long as needed. Scores are always complete.
    """
    _print([(escape(query, newlines=True), _BOLD)])
    if not hits:
        _print([("no hits\n", "")])
        return
    if legend := _legend(hits):
        _print([(legend, _DIM)])
    scores, ids, width = list(map(_score, hits)), list(map(_name, hits)), shutil.get_terminal_size().columns
    if _is_terminal():
        ids = [_shortened(name, max(width // 3, _NARROWEST_ID)) for name in ids]
    score_width, id_width = (max(map(cell_len, column)) for column in (scores, ids))
    taken = score_width + id_width + 2 * len(_BETWEEN)
    room = max(width - taken, _NARROWEST_TEXT if _is_terminal() else _LEAST_TEXT)
    for score, name, hit in zip(scores, ids, hits, strict=True):
        group = [(f"{group_by}: {_value_at(hit.metadata, group_by)}  ", _YELLOW)] if group_by is not None else []
        filling = " " * (id_width - cell_len(name))
        before = [(f"{score:>{score_width}}{_BETWEEN}", ""), (name, _CYAN), (f"{filling}{_BETWEEN}", "")]
        for line in _wrapped([*group, *_excerpt(hit)], room):
            _print([*before, *line])
            before = [(" " * taken, "")]
        if hit.folded:
            for line in _wrapped([(_folded(hit), _DIM)], room):
                _print([(" " * taken, ""), *line])
    click.echo()


def _print(parts: Sequence[Styled]) -> None:
    """Print a line, without styles unless a terminal shows it."""
    styled = _is_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    line = "".join(f"\x1b[{style}m{text}\x1b[0m" if style and styled and text else text for text, style in parts)
    click.echo(line.rstrip(" "), color=styled)


def _is_terminal() -> bool:
    """Return whether a terminal shows the output, or the environment says so in the ways that rich knows, too."""
    if (compatible := os.environ.get("TTY_COMPATIBLE")) in ("0", "1"):
        return compatible == "1"
    return bool(os.environ.get("FORCE_COLOR")) or sys.stdout.isatty()


def _wrapped(parts: Sequence[Styled], width: int) -> Iterator[list[Styled]]:
    """Divide texts into lines of at most `width` columns, between words where possible."""
    text = "".join(part for part, _ in parts)
    starts, end = [0], 0
    for part, _ in parts:
        starts.append(starts[-1] + len(part))
    spans = list(zip(starts, starts[1:], (style for _, style in parts), strict=False))
    while True:
        start, end = end, _fitting(text, end, width)
        yield [(text[max(start, first) : min(end, last)], style) for first, last, style in spans]
        end += len(text[end:]) - len(text[end:].lstrip(" "))
        if end == len(text):
            return


def _fitting(text: str, start: int, width: int) -> int:
    """Return the end of a line that begins at `start`: before a space, or within a word that is longer than a line."""
    end, taken = start, 0
    while end < len(text) and (taken := taken + cell_len(text[end])) <= width:
        end += 1
    space = text.rfind(" ", start, end + 1)
    return end if end == len(text) or space <= start else space


def _legend(hits: Sequence["Hit"]) -> str:
    """Return the meaning of the scores, if there are several a hit."""
    scores = "score (vector, BM25)" if any(hit.parts for hit in hits) else ""
    reranked = any(hit.rerank_score is not None for hit in hits)
    return f"reranked <- {scores or 'score'}" if reranked else scores


def _value_at(metadata: Mapping[str, Any], column: str) -> str:
    """Return the value of a metadata column, or "none"."""
    value = metadata.get(column)
    return "none" if value is None else escape(str(value))


def _score(hit: "Hit") -> str:
    """Return the score of a hit, before it the cross-encoder's score if reranked, after it the parts if hybrid."""
    parts = f" ({hit.parts.vector:.3f}, {hit.parts.bm25:5.2f})" if hit.parts else ""
    reranked = "" if hit.rerank_score is None else f"{hit.rerank_score:.3f} <- "
    return f"{reranked}{hit.score:.3f}{parts}"


def _name(hit: "Hit") -> str:
    """Return the id of a hit with the line or the page of its place, in forms that editors and browsers open."""
    name, place = escape(hit.id), hit.place
    if place and place.lines:
        return f"{name}:{place.lines[0]}"
    return f"{name}#page={place.page}" if place and place.page else name


def _shortened(text: str, width: int) -> str:
    """Return a text in at most `width` columns, shortened in the middle, because ids differ at their ends."""
    if cell_len(text) <= width:
        return text
    clusters = list[str]()  # characters with their combining marks
    for character in text:
        if clusters and not cell_len(character):
            clusters[-1] += character
        else:
            clusters.append(character)
    middle, excess = 0, cell_len(text) + 1 - width
    while excess > 0:
        middle = len(clusters) // 2
        excess -= cell_len(clusters.pop(middle))
    return "".join([*clusters[:middle], "\N{HORIZONTAL ELLIPSIS}", *clusters[middle:]])


def _folded(hit: "Hit") -> str:
    """Return the number of near-duplicates folded under a hit, and the first ids."""
    ids = [escape(duplicate.id) for duplicate in hit.folded[:_FOLDED]]
    more = hit.folded_count - len(ids)
    return f"+ {hit.folded_count:,} folded: {', '.join(ids)}{f' and {more:,} more' if more else ''}"


def _excerpt(hit: "Hit") -> list[Styled]:
    """Return the title, the headings above the window, dim, and the first lines of the window."""
    text, section = excerpt(_passage(hit), _EXCERPT), hit.place.section if hit.place else ()
    headings = [excerpt(heading, _HEADING) for heading in (section[1:] if section[:1] == (hit.title,) else section)]
    parts = [(escape(hit.title, newlines=True), _BOLD)] if hit.title else []
    parts += [(heading, _DIM) for heading in headings]
    separated = [part for place, shown in enumerate(parts) for part in ([(_BELOW, _DIM), shown] if place else [shown])]
    return [*separated, (": " if parts and text else "", ""), (text, "")]


def _passage(hit: "Hit") -> str:
    """Return the text of the window without the title, which is printed before it, and without a heading of it."""
    span = hit.window.columns.get("text") if hit.window else None
    text = hit.text[slice(*span)] if span else hit.matched
    if hit.title and hit.place:
        first, _, rest = text.lstrip().partition("\n")
        if first.strip("# ") == hit.title and rest.strip():
            return rest.lstrip("=-\n ")
    return text
