"""The outline of a text. Only headings with # are found."""

import re

from indexer.corpus.files.markup import FileKind
from indexer.corpus.files.structure import Heading, Outline

_HEADING = re.compile(r"^(#{1,6}) +(.+?) *#*$", re.MULTILINE)


def outline(text: str, kind: FileKind) -> Outline:
    """Return the outline of a text of this kind."""
    if kind.markup != "markdown":
        return Outline((), ())
    return Outline(tuple(Heading(found.start(), len(found[1]), found[2]) for found in _HEADING.finditer(text)), ())
