"""Addresses of documents by a template: what is filled, escaped, left out and refused."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.errors import ConfigError
from search.hits import Place
from search.server.links import LinkTemplate, address_of

FILE = {"path": "a b/x#y?.md", "folder": "a b"}
OWN = "https://example.org/own"


@pytest.mark.parametrize(
    ("template", "place", "address"),
    [
        ("https://host/{path}#L{line}", Place((12, 20)), "https://host/a%20b/x%23y%3F.md#L12"),
        ("https://host/{path}#L{line}", Place(None, 3), "https://host/a%20b/x%23y%3F.md"),
        ("https://host/{path}#L{line}", None, "https://host/a%20b/x%23y%3F.md"),
        ("https://host/{path}#page={page}", Place(None, 3), "https://host/a%20b/x%23y%3F.md#page=3"),
        ("http://host:80/?in={folder}&id={id}", None, "http://host:80/?in=a%20b&id=d%261"),
        ("vscode://file/home/me/{path}:{line}", Place((12, 20)), "vscode://file/home/me/a%20b/x%23y%3F.md:12"),
        ("vscode://file/home/me/{path}:{line}", Place(None, 3), None),  # it is missing before the last "#"
        ("file:///srv/{path}", None, "file:///srv/a%20b/x%23y%3F.md"),
    ],
)
def test_parts_are_filled_and_escaped(template: str, place: Place | None, address: str | None) -> None:
    assert LinkTemplate(template).address("d&1", FILE, place) == address


def test_a_document_without_a_part_keeps_its_own_address() -> None:
    template = LinkTemplate("https://host/{path}")
    assert address_of(template, "d", FILE | {"url": OWN}) == "https://host/a%20b/x%23y%3F.md"
    assert address_of(template, "d", {"url": OWN}) == OWN
    assert address_of(None, "d", {"url": OWN}) == OWN
    assert address_of(template, "d", {"url": "javascript:alert(1)"}) is None


@pytest.mark.parametrize(
    "template",
    [
        "",
        "javascript:alert('{path}')",
        "javascript://host/{path}",
        "data:text/html,{path}",
        "//host/{path}",
        "{path}",
        "https://{path}/",  # a document would choose the host
        "https://host.{path}/",
        "https://host{path}",
        "file://{path}",
        "https://user@host/{path}",
        "https://host/{path} x",
        "https://host/{path}\n",
        "https://host/{path}#{lines}",
        "https://host/{path!r}",
        "https://host/{path",
        "https://host/{}",
        "https://host/#L{line}",  # the same for every file
    ],
)
def test_other_templates_are_refused(template: str) -> None:
    with pytest.raises(ConfigError, match="the link "):
        LinkTemplate(template)


@given(st.text(), st.dictionaries(st.sampled_from(["path", "folder", "url"]), st.text() | st.integers() | st.none()))
def test_a_document_never_changes_the_host(identity: str, metadata: dict[str, Any]) -> None:
    address = LinkTemplate("https://host/{id}/{path}#L{line}").address(identity, metadata)
    assert address is None or (address.startswith("https://host/") and address.isascii() and address.isprintable())
    assert address is None or not set(address) & set(" \"'<>\\")
