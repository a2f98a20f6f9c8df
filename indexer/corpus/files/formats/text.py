"""Files that are their text: decoding and titles of Markdown, reStructuredText, plain text and source code."""

import codecs
import re
from typing import Any

from indexer.corpus.files.extracted import ExtractedText
from indexer.corpus.files.markup import Markup
from indexer.corpus.row import BadRow
from indexer.lazy_imports import require_extra

_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_FRONT_MATTER = re.compile(r"---[ \t]*\n(.*?\n)(?:---|\.\.\.)[ \t]*(?:\n|$)", re.DOTALL)
_FRONT_TITLE = re.compile(r"^title:[ \t]*(.+?)[ \t]*$", re.MULTILINE)
_FENCE = re.compile(r"^ {0,3}(```+|~~~+).*?(?:^ {0,3}\1|\Z)", re.MULTILINE | re.DOTALL)
_MARKDOWN = re.compile(
    r"^ {0,3}#{1,6}[ \t]+(?P<marked>\S.*?)[ \t]*#*[ \t]*$|^ {0,3}(?P<under>\w[^\n]*)\n {0,3}(?:=+|-{3,})[ \t]*$",
    re.MULTILINE,
)
_RST = re.compile(
    r"^(?P<under>\w[^\n]*)\n([=\-`:'\"~^_*+#<>])\2{2,}[ \t]*$|"
    r"^([=\-~^*+#])\3{2,}[ \t]*\n[ \t]*(?P<between>\S[^\n]*)\n\3{3,}[ \t]*$",
    re.MULTILINE,
)
_START = 64 << 10  # characters in which a title is searched


def decode_utf8(data: bytes) -> str | None:
    """Return the text of UTF-8, or of any bytes with a byte order mark; None for another encoding.

    Raises BadRow for binary content.
    """
    for mark, encoding in _BOMS:
        if data.startswith(mark):
            return _normalised(data[len(mark) :].decode(encoding, "replace"))
    if b"\0" in data:
        raise BadRow("binary", "the file is binary; expected text", "leave the file out, or give it the right suffix")
    try:
        return _normalised(data.decode("utf-8"))
    except UnicodeDecodeError:
        return None


def decode(data: bytes) -> str:
    """Return the text of bytes in any encoding. Raises BadRow for binary content and unknown encodings."""
    if (text := decode_utf8(data)) is not None:
        return text
    matches = require_extra("charset_normalizer", "files").from_bytes(data)
    best = matches.best()
    if best is not None and best.encoding == "cp1250":
        best = _western(matches, best)
    if best is None:
        raise BadRow("encoding", "the encoding of the text is unknown; expected UTF-8", "convert the file to UTF-8")
    return _normalised(str(best))


def _western(matches: Any, central: Any) -> Any:
    """Return the match as Windows-1252 if it is as good as the one as Windows-1250, the rarer encoding.

    Hungarian is an exception: its texts match both, and are Windows-1250.
    """
    for match in matches:
        as_good = (match.chaos, match.coherence) == (central.chaos, central.coherence)
        if match.encoding == "cp1252" and as_good and match.language != "Hungarian":
            return match
    return central


def title_of(text: str, markup: Markup) -> str | None:
    """Return the title of Markdown (also in its front matter) or reStructuredText: its first heading."""
    start = text[:_START]
    if markup == "markdown":
        front = _FRONT_MATTER.match(start)
        if front and (found := _FRONT_TITLE.search(front[1])):
            return found[1].strip("'\"") or None
        match = _MARKDOWN.search(_FENCE.sub("", start[front.end() if front else 0 :]))
        return (match["marked"] or match["under"]).strip() if match else None
    if markup == "rst":
        match = _RST.search(start)
        return (match["under"] or match["between"]).strip() if match else None
    return None


def read_text(data: bytes) -> ExtractedText:
    """Return the text of a file in any encoding."""
    return ExtractedText(decode(data))


def _normalised(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")
