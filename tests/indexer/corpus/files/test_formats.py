"""The text that the readers of formats extract."""

import io
from typing import Any

import docx
import pptx
import pytest
from pptx.util import Inches

pytest.importorskip("html_to_markdown")

from indexer.corpus.files.extracted import PAGE_BREAK
from indexer.corpus.files.formats.docx import read_docx
from indexer.corpus.files.formats.epub import read_epub
from indexer.corpus.files.formats.html import read_html
from indexer.corpus.files.formats.pdf import read_pdf
from indexer.corpus.files.formats.pptx import read_pptx
from indexer.corpus.files.formats.text import decode
from indexer.corpus.files.formats.titles import usable_title
from indexer.corpus.files.formats.zipped import check_archive
from indexer.corpus.row import BadRow
from tests.indexer.corpus.files.samples import epub, pdf


def saved(document: Any) -> bytes:
    data = io.BytesIO()
    document.save(data)
    return data.getvalue()


def test_html_keeps_the_main_content() -> None:
    page = """<title>Site</title><body><nav>Menu</nav><script>x()</script>
    <div role="main"><h1>Head<a href="#h">¶</a></h1>
    <p>A <b>bold</b> <a href="/x">link</a>.</p><ul><li>one</li><li>two</li></ul><pre>a\n  b</pre>
    <table><tr><th>k</th><th>v</th></tr><tr><td>1</td><td>2</td></tr></table>
    <dl><dt class="sig" id="f">f(<em>x</em>)</dt><dd><p>Does.</p></dd></dl></div><footer>End</footer></body>"""
    read = read_html(page.encode())
    assert read.title == "Head"
    for part in ("# Head", "A bold link.", "- one\n- two", "```\na\n  b\n```", "| 1 | 2 |", "## `f(x)`", "Does."):
        assert part in read.text
    assert not any(part in read.text for part in ("Menu", "x()", "End", "¶", "/x"))


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "utf-16"])
def test_html_is_decoded_by_its_declaration(encoding: str) -> None:
    page = f'<meta charset="{encoding}"><title>Größe</title><p>grün'
    read = read_html(page.encode(encoding))
    assert (read.title, read.text) == ("Größe", "grün")


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("Vi gick längs stranden och såg på båtarna. Det blåste en stark vind från norr.", "cp1252"),
        ("Nós caminhamos pela praia e vimos os barcos. Não há razão para ficar em casa.", "cp1252"),
        ("Végigsétáltunk a parton és néztük a hajókat. Erős szél fújt északról. Őrült űrhajós.", "cp1250"),
        ("Šli jsme podél pláže a dívali se na lodě. Foukal silný vítr od severu.", "cp1250"),
    ],
)
def test_text_in_an_encoding_of_windows_is_recognised(text: str, encoding: str) -> None:
    assert decode(text.encode(encoding)) == text


def test_pdf_joins_lines_to_paragraphs_and_large_type_is_a_heading() -> None:
    first = [(24, 700, "A heading"), (10, 660, "The first line of the para-"), (10, 648, "graph has a second one."),
             (10, 600, "Another paragraph.")]  # fmt: skip
    read = read_pdf(pdf([first, [], [(10, 700, "Third page.")]], "Microsoft Word - x.doc"))
    pages = [page.strip() for page in read.text.split(PAGE_BREAK)]
    paragraph = "The first line of the paragraph has a second one."
    assert pages == [f"# A heading\n\n{paragraph}\n\nAnother paragraph.", "", "Third page."]
    assert (read.title, read.pages) == ("A heading", 3)
    assert read_pdf(pdf([first], "Its title")).title == "Its title"


def test_pdf_without_text_is_empty_and_broken_ones_are_rejected() -> None:
    assert read_pdf(pdf([[]])).text == ""
    whole = pdf([[(10, 700, "text")]])
    for data, reason in ((b"text", "broken"), (whole[:20], "broken"), (pdf([[]], encrypt=True), "encrypted")):
        with pytest.raises(BadRow) as caught:
            read_pdf(data)
        assert caught.value.reason == reason


def test_docx_keeps_headings_lists_and_tables() -> None:
    document = docx.Document()
    document.add_heading("The title", 0)
    document.add_heading("Section", 2)
    document.add_paragraph("Text.")
    for item in ("one", "two"):
        document.add_paragraph(item, style="List Bullet")
    table = document.add_table(2, 2)
    for cell, text in zip(table._cells, "abcd", strict=True):
        cell.text = text
    read = read_docx(saved(document))
    table_text = "| a | b |\n| --- | --- |\n| c | d |"
    assert read.text == f"# The title\n\n## Section\n\nText.\n\n- one\n- two\n\n{table_text}"
    assert read.title == "The title"


def test_pptx_has_a_page_for_each_slide() -> None:
    deck = pptx.Presentation()
    for title, items in (("One", "a\nb"), ("Two", "c")):
        slide = deck.slides.add_slide(deck.slide_layouts[1])
        slide.shapes.title.text, slide.placeholders[1].text = title, items
    slide.shapes.add_table(1, 2, Inches(1), Inches(1), Inches(1), Inches(1)).table.cell(0, 0).text = "cell"
    slide.notes_slide.notes_text_frame.text = "said"
    read = read_pptx(saved(deck))
    pages = [page.strip() for page in read.text.split(PAGE_BREAK)]
    assert pages == ["# One\n\n- a\n- b", "# Two\n\nc\n\n| cell |  |\n| --- | --- |\n\nsaid"]
    assert (read.title, read.pages) == ("One", 2)


def test_epub_has_its_chapters_in_reading_order() -> None:
    chapters = {"z": "<html><body><h1>First</h1></body></html>", "a": "<html><body><p>Last</p></body></html>"}
    assert read_epub(epub(chapters, "The book")).text == "# First\n\nLast"
    assert read_epub(epub(chapters, "The book")).title == "The book"
    assert read_epub(epub(chapters)).title == "First"
    lock = {"META-INF/encryption.xml": '<e><CipherReference URI="book/z.xhtml"/></e>'}
    with pytest.raises(BadRow, match="encrypted"):
        read_epub(epub(chapters, extra=lock))


def test_encrypted_and_old_files_of_office_are_told_apart() -> None:
    start = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
    for data, reason in ((start + "EncryptedPackage".encode("utf-16-le"), "encrypted"), (start, "broken")):
        with pytest.raises(BadRow) as caught:
            check_archive(data, 100)
        assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("title", "usable"),
    [("A paper on titles", True), ("Microsoft Word - x.doc", False), ("untitled", False), ("main.tex", False),
     ("", False), ("Document1", False), ("1984", False), ("Titles", True)],
)  # fmt: skip
def test_titles_of_programs_are_not_used(title: str, usable: bool) -> None:
    assert usable_title(title) == (title if usable else None)
