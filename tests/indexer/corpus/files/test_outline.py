"""Outlines of texts: headings, the places between blocks, and hostile texts."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.corpus.document import Document, joined_text
from indexer.corpus.files.document_outline import document_outline
from indexer.corpus.files.markup import FILE_KINDS, FileKind
from indexer.corpus.files.outline import outline
from indexer.corpus.files.structure import AFTER_HEADING, ITEM, LINE, NESTED, PAGE, PARAGRAPH, Outline

MARKDOWN, RST, PLAIN = FILE_KINDS[".md"], FILE_KINDS[".rst"], FILE_KINDS[".txt"]
MARKUP = st.text("#=-*`~.:>|[](<) \t\r\n\fa1\u00e9", max_size=200) | st.text(max_size=50)
GUIDE = """---
title: Not a heading
---
# The *guide* to [trees](https://example.org/a)

Install it:
- one
- two
  - inner

Setext title
============

```sh
# not a heading

## neither
```

## Use ##
Text directly below.
"""
MANUAL = """\
==========
 The book
==========

.. module:: tree

Functions
=========

.. function:: walk(top)

   Walk a tree.

   It goes down::

      # code
      ----

:mod:`ast` and `Text <target>`_
-------------------------------
Text.

Classes
=======
"""


def starts(text: str, found: Outline) -> list[tuple[str, int]]:
    """Return the line that begins at each break, and its rank, without breaks at lines."""
    return [(text[each.at :].split("\n")[0], each.rank) for each in found.breaks if each.rank != LINE]


def test_markdown_has_both_kinds_of_headings_and_none_in_code() -> None:
    found = outline(GUIDE, MARKDOWN)
    assert [(each.level, each.title) for each in found.headings] == [
        (1, "The *guide* to trees"),
        (1, "Setext title"),
        (2, "Use"),
    ]
    assert found.path(GUIDE.index("directly")) == ("Setext title", "Use")
    assert found.path(0) == ()
    assert starts(GUIDE, found) == [
        ("# The *guide* to [trees](https://example.org/a)", 0),
        ("Install it:", AFTER_HEADING),
        ("- one", ITEM),
        ("- two", ITEM),
        ("  - inner", ITEM + NESTED),
        ("Setext title", 0),
        ("```sh", AFTER_HEADING),
        ("## Use ##", 1),
        ("Text directly below.", AFTER_HEADING),
    ]


def test_levels_of_restructured_text_follow_the_order_of_their_rulers() -> None:
    found = outline(MANUAL, RST)
    assert [(each.level, each.title) for each in found.headings] == [
        (1, "The book"),
        (2, "Functions"),
        (3, "ast and Text_"),
        (2, "Classes"),
    ]
    assert starts(MANUAL, found)[3:6] == [
        ("   Walk a tree.", PARAGRAPH + NESTED),
        ("   It goes down::", PARAGRAPH + NESTED),
        ("      # code", PARAGRAPH + 2 * NESTED),
    ]


def test_plain_text_has_paragraphs_lines_and_pages() -> None:
    text = "# one\ntwo\n\n- three\fpage two\n\nfour"
    found = outline(text, PLAIN)
    assert found.headings == ()
    assert [(each.at, each.rank) for each in found.breaks] == [
        (text.index("two"), LINE),
        (text.index("- three"), PARAGRAPH),
        (text.index("page"), PAGE),
        (text.index("four"), PARAGRAPH),
    ]


@pytest.mark.parametrize("kind", [MARKDOWN, RST, PLAIN])
@given(text=MARKUP)
def test_every_text_has_an_outline_with_breaks_in_order_inside_it(kind: FileKind, text: str) -> None:
    found = outline(text, kind)
    places = [each.at for each in found.breaks]
    assert places == sorted(set(places))
    assert all(0 < at < len(text) for at in places)
    assert all(text[at - 1] in "\n\f" for at in places)
    assert [each.start for each in found.headings] == sorted({each.start for each in found.headings})
    for at in (0, len(text) // 2, len(text)):
        levels = [each.level for each in found.above(at)]
        assert levels == sorted(set(levels))


HOSTILE: dict[str, Callable[[int], str]] = {
    "brackets": lambda size: "# " + "[" * size,
    "links": lambda size: "# " + "[a](" * size,
    "hashes": lambda size: "# a" + " #" * size,
    "rulers": lambda size: "a\n" + "=" * size + "a\n" + ("ab\n==\n" * (size // 8)),
    "fences": lambda size: "```\n" * (size // 4),
    "roles": lambda size: ":a" * size + "\n" + "=" * 2 * size,
    "deep": lambda size: "\n\n".join(" " * number + "a" for number in range(min(size, 300))),
    "matter": lambda size: "---\n" + "--\n" * size,
    "blank": lambda size: " " * size + "\n" + "\t" * size,
    "headings": lambda size: "# a\n" * (size // 4),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("kind", [MARKDOWN, RST, PLAIN])
def test_hostile_texts_are_scanned_in_linear_time(kind: FileKind, name: str) -> None:
    text = HOSTILE[name](1 << 17)
    found = outline(text, kind)
    for at in range(0, len(text), 1 + len(text) // 100):
        found.path(at)


def test_the_outline_of_a_document_is_one_of_its_joined_text() -> None:
    document = Document("d", " \n# One\n\ntext\n\nmore ", " Title ", {"note": "\n## Two\n\nrest", "suffix": ".md"})
    columns = ("title", "text", "note")
    text, found = joined_text(document, columns), document_outline(document, columns)
    assert [text[each.start :].split("\n")[0] for each in found.headings] == ["# One", "## Two"]
    assert starts(text, found) == [
        ("# One", AFTER_HEADING),
        ("text", AFTER_HEADING),
        ("more ## Two", PARAGRAPH),
        ("## Two", PARAGRAPH),
        ("rest", AFTER_HEADING),
    ]
