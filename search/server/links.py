"""Addresses of documents, the same for the page, HTTP and agents: by a template of the operator, or of their own."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from indexer.errors import ConfigError
from search.hits import Hit, Place

_PARTS = ("path", "folder", "id", "line", "page")
_PART = re.compile(r"\{(\w*)\}")
# A document fills no part of the scheme or the host, so that it cannot choose where a link leads.
_BASE = re.compile(r"(https?://[^\s/?#@\\{}]+|(file|vscode|obsidian)://[^\s/?#@\\{}]*)[/?]", re.ASCII)
_URLS = ("url", "link", "href")  # metadata columns with a document's own address


@dataclass(frozen=True)
class LinkTemplate:
    """The template of an address: `https://host/{path}#L{line}`.

    Parts are {path} and {folder} of the metadata, {id}, and {line} and {page} of a hit's place. Raises ConfigError for
    other parts, and for other schemes than http, https, file, vscode and obsidian.
    """

    text: str

    def __post_init__(self) -> None:
        expected = 'expected an address such as "https://host/{path}#L{line}"'
        if not _BASE.match(self.text) or re.search(r"\s", self.text) or not self.text.isprintable():
            raise ConfigError(
                f'the link is "{self.text}"; {expected}, whose scheme is http, https, file, vscode or obsidian, and '
                "without white space."
            )
        parts, rest = _PART.findall(self.text), _PART.sub("", self.text)
        if unknown := set(parts) - set(_PARTS):
            known = ", ".join(f"{{{name}}}" for name in _PARTS)
            raise ConfigError(f'the link has the part "{{{min(unknown)}}}"; expected {known}.')
        if "{" in rest or "}" in rest or not {"path", "id"} & {*parts}:
            raise ConfigError(f'the link is "{self.text}"; {expected}, with {{path}} or {{id}}.')

    def address(self, identity: str, metadata: Mapping[str, Any], place: Place | None = None) -> str | None:
        """Return the address of a document, or of a place in it. Values are escaped, "/" is not.

        Without a value for a part, what follows the last "#" is left out; None if a value is missing before it.
        """
        values: dict[str, object] = {name: metadata.get(name) for name in ("path", "folder")} | {"id": identity}
        if place:
            values |= {"line": place.lines[0] if place.lines else None, "page": place.page}
        return _filled(self.text, values) or _filled(self.text.rpartition("#")[0], values)


def _filled(template: str, values: Mapping[str, object]) -> str | None:
    """Return the template with its values; None if one is missing, or if the template is empty."""
    if any(values.get(name) is None for name in _PART.findall(template)):
        return None
    return _PART.sub(lambda part: quote(str(values[part[1]]), safe="/", errors="replace"), template) or None


def address_of(
    template: LinkTemplate | None, identity: str, metadata: Mapping[str, Any], place: Place | None = None
) -> str | None:
    """Return the address by the template, else the document's own if a browser can open it, else None."""
    if template and (address := template.address(identity, metadata, place)):
        return address
    for name in _URLS:
        value = metadata.get(name)
        if isinstance(value, str) and value.startswith(("http://", "https://")) and not set(value) & set(" \t\r\n"):
            return value
    return None


def linked(template: LinkTemplate | None, hit: Hit, rank: int) -> dict[str, Any]:
    """Return a hit as JSON types, with its `link` by the template."""
    fields = hit.to_dict(rank)
    if template and (link := template.address(hit.id, hit.metadata, hit.place)):
        fields["link"] = link
    return fields
