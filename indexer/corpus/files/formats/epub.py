"""EPUB as Markdown: the chapters in reading order, each read as HTML."""

import io
import posixpath
import zipfile
from typing import Any
from urllib.parse import unquote

from indexer.corpus.files.extracted import ExtractedText
from indexer.corpus.files.formats.html import read_html
from indexer.corpus.files.formats.titles import usable_title
from indexer.corpus.files.formats.zipped import encrypted
from indexer.corpus.row import BadRow
from indexer.lazy_imports import require_extra

_CONTAINER = "META-INF/container.xml"
_ENCRYPTION = "META-INF/encryption.xml"
_HTML = ("application/xhtml+xml", "text/html", "application/x-dtbook+xml")


def read_epub(data: bytes) -> ExtractedText:
    """Return the text of the chapters; the title is that of the book, else the first of a chapter."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        names = set(archive.namelist())
        package_name = _attributes(_xml(archive, _CONTAINER), "rootfile", "full-path")[0]
        package = _xml(archive, package_name)
        folder = posixpath.dirname(package_name)
        items = {
            each.get("id"): posixpath.normpath(posixpath.join(folder, unquote(each.get("href", ""))))
            for each in package.iter("{*}item")
            if each.get("media-type") in _HTML and "nav" not in each.get("properties", "").split()
        }
        chapters = [items[key] for key in _attributes(package, "itemref", "idref") if items.get(key) in names]
        if _ENCRYPTION in names and not set(
            _attributes(_xml(archive, _ENCRYPTION), "CipherReference", "URI")
        ).isdisjoint(chapters):
            raise encrypted()
        texts = [read_html(archive.read(name)) for name in chapters]
    title = next((each.text for each in package.iter("{http://purl.org/dc/elements/1.1/}title") if each.text), None)
    named = usable_title(title) or next((text.title for text in texts if text.title), None)
    return ExtractedText("\n\n".join(text.text for text in texts if text.text), named)


def _xml(archive: zipfile.ZipFile, name: str) -> Any:
    etree = require_extra("lxml.etree", "files")
    try:
        return etree.fromstring(archive.read(name), etree.XMLParser(resolve_entities=False, no_network=True))
    except (KeyError, etree.XMLSyntaxError) as error:
        raise BadRow("broken", f"the book has no readable {name}", "replace it with an intact copy") from error


def _attributes(root: Any, element: str, attribute: str) -> list[str]:
    return [each.get(attribute, "") for each in root.iter(f"{{*}}{element}")]
