"""The headings above a window, which are encoded in front of its text."""

from collections.abc import Sequence

from indexer.corpus.files.structure import Outline
from indexer.encoders.windows import Chunker, TokenOffsets, Windows

_SHARE = 4  # at most a fourth of the tokens of a window
_SEPARATOR = " > "


def headings_room(tokens: int) -> int:
    """Return the most tokens of the headings above a window of at most `tokens`."""
    return tokens // _SHARE


def heading_paths(windows: Windows, titles: Sequence[str], outlines: Sequence[Outline], chunker: Chunker) -> list[str]:
    """Return the path of each window: the title of its document and the headings above it.

    A title or heading inside the window is left out, and a title that equals the first heading is not repeated. A path
    that is too long loses the headings after the first, then the first; a single heading is cut.
    """
    found = []
    for document, start in zip(windows.document.tolist(), windows.start.tolist(), strict=True):
        headings = [each.title for each in outlines[document].above(start) if each.start < start and each.title]
        title = titles[document] if start else ""
        found.append((*([title] if title and title not in headings[:1] else []), *headings))
    names = list({name: None for path in found for name in path})
    offsets = dict(zip(names, chunker.offsets(names), strict=True))
    room = headings_room(chunker.tokens)
    shortened = {path: _SEPARATOR.join(_shortened(path, offsets, room)) for path in set(found)}
    return [shortened[path] for path in found]


def _shortened(path: tuple[str, ...], offsets: dict[str, TokenOffsets], room: int) -> tuple[str, ...]:
    """Return the headings that fit; each counts one token more, for the separator or the end of the line."""
    while len(path) > 1 and sum(len(offsets[name].starts) + 1 for name in path) > room:
        path = (path[0], *path[2:]) if len(path) > 2 else path[1:]
    for name in path:
        starts = offsets[name].starts
        if len(path) == 1 and len(starts) >= room:
            cut = name[: int(starts[max(room - 1, 0)])].strip()
            return (cut,) if cut else ()
    return path
