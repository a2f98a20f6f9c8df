"""Files of every format that becomes a document, written from one short story each."""

import io
import random
import textwrap
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

_THINGS = ("lantern", "ferry", "orchard", "printing press", "observatory", "mill", "harbour", "archive", "greenhouse",
           "signal box", "bakery", "workshop", "reservoir", "theatre", "beehive", "weather station")  # fmt: skip
_PLACES = ("Bergen", "Lima", "Nagoya", "Tartu", "Accra", "Hobart", "Quebec", "Trieste", "Oaxaca", "Galway")
_PEOPLE = ("the keeper", "a visiting engineer", "two students", "the night shift", "an old map maker", "the council")
_DEEDS = ("repaired", "measured", "described", "painted", "moved", "insured", "photographed", "catalogued")
_TIMES = ("before the first frost", "during the strike", "after the flood", "in a single week", "without any plan")
_TOPICS = ("History", "Construction", "Daily use", "Open questions", "Sources", "Repairs", "Costs", "People")
_ACCENTS = "Das Café der Müllerin schließt um zehn; die Gäste hören zu spät davon."
_JAPANESE = (
    "図書館の本は静かな午後に読まれる。港の灯台は夜になると光る。山の上の天文台から、冬の星がよく見える。"
    "古い橋は去年の洪水で流されたので、町の人々は新しい橋を作っている。水曜日には市場が開かれる。"
)
_RUSSIAN = "Старый маяк стоит на берегу, и каждую ночь его свет виден далеко в море."  # noqa: RUF001
NAVIGATION = "Skip to navigation"  # in HTML, but no part of its text
SCRIPT = "trackVisitors"


@dataclass(frozen=True)
class Story:
    """The content of a file. `marker` is a sentence that no other file contains."""

    title: str
    marker: str
    sections: tuple[tuple[str, tuple[str, ...]], ...]  # heading and paragraphs


def story(number: int, seed: int, extra: Sequence[str] = ()) -> Story:
    """Return the story with a number, always the same. `extra` are further paragraphs of its first section."""
    draw = random.Random(f"{seed}/{number}")
    thing, place = draw.choice(_THINGS), draw.choice(_PLACES)
    marker = f"Note {number:05d} is about the {thing} of {place}."
    sections = [
        (topic, tuple(_paragraph(draw) for _ in range(draw.randint(1, 3)))) for topic in draw.sample(_TOPICS, 3)
    ]
    heading, paragraphs = sections[0]
    sections[0] = (heading, (marker, *extra, *paragraphs))
    return Story(f"The {thing} of {place}", marker, tuple(sections))


def _paragraph(draw: random.Random) -> str:
    choose = draw.choice
    sentences = [
        f"{choose(_PEOPLE).capitalize()} {choose(_DEEDS)} the {choose(_THINGS)} of {choose(_PLACES)} {choose(_TIMES)}."
        for _ in range(draw.randint(2, 6))
    ]
    return " ".join(sentences)


@dataclass(frozen=True)
class Written:
    """A file: its bytes, texts that the document must contain, and its number of pages if the format has any."""

    data: bytes
    contains: tuple[str, ...]
    pages: int | None = None


def written(suffix: str, number: int, seed: int) -> Written:
    """Return the file of a format, by its suffix. Encodings alternate with the number."""
    return _WRITERS[suffix](number, seed)


def markdown(told: Story) -> str:
    """Return the story as Markdown."""
    parts = [f"# {told.title}"]
    for heading, paragraphs in told.sections:
        parts += [f"## {heading}", *(textwrap.fill(paragraph, 100) for paragraph in paragraphs)]
        parts.append("- the first item of a list\n- the second item")
    return "\n\n".join(parts) + "\n"


def _markdown(number: int, seed: int) -> Written:
    told = story(number, seed)
    return Written(markdown(told).encode(), (told.marker,))


def _rst(number: int, seed: int) -> Written:
    told = story(number, seed)
    lines = [told.title, "=" * len(told.title), ""]
    for heading, paragraphs in told.sections:
        lines += [heading, "-" * len(heading), ""]
        for paragraph in paragraphs:
            lines += [textwrap.fill(paragraph, 100), ""]
    return Written("\n".join(lines).encode(), (told.marker,))


def _plain(number: int, seed: int) -> Written:
    encoding, extra = [("utf-8", _RUSSIAN), ("utf-8-sig", _JAPANESE), ("latin-1", _ACCENTS), ("utf-16", _RUSSIAN),
                       ("shift_jis", _JAPANESE)][number % 5]  # fmt: skip
    told = story(number, seed, [extra])
    text = "\n\n".join([told.title, *(paragraph for _, paragraphs in told.sections for paragraph in paragraphs)])
    return Written(f"{text}\n".encode(encoding), (told.marker, extra))


def html(told: Story, charset: str) -> str:
    """Return the story as a page that declares a charset, with navigation, a script and a footer around it."""
    body = "".join(
        f"<section><h2>{escape(heading)}</h2>{''.join(f'<p>{escape(text)}</p>' for text in texts)}</section>"
        for heading, texts in told.sections
    )
    return (
        f'<!DOCTYPE html><html><head><meta charset="{charset}"><title>{escape(told.title)}</title>'
        f"<script>function {SCRIPT}() {{ return 1 }}</script><style>p {{ margin: 0 }}</style></head><body>"
        f'<nav><ul><li><a href="/">{NAVIGATION}</a></li></ul></nav>'
        f"<main><h1>{escape(told.title)}</h1>{body}</main><script>{SCRIPT}()</script></body></html>"
    )


def _html(number: int, seed: int) -> Written:
    charset, extra = [("utf-8", _JAPANESE), ("iso-8859-1", _ACCENTS), ("windows-1251", _RUSSIAN),
                      ("shift_jis", _JAPANESE)][number % 4]  # fmt: skip
    told = story(number, seed, [extra])
    return Written(html(told, charset).encode(charset), (told.marker, extra))


def pdf(pages: Sequence[Sequence[str]], title: str, trailer: str = "") -> bytes:
    """Return a PDF of pages of lines, Helvetica in ASCII. `trailer` is added to the trailer's dictionary."""
    kids = " ".join(f"{5 + 2 * number} 0 R" for number in range(len(pages)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Count {len(pages)} /Kids [{kids}] >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        f"<< /Title ({title}) >>".encode(),
    ]
    for number, lines in enumerate(pages):
        shown = "".join(f"({line.translate({40: None, 41: None, 92: None})}) Tj T* " for line in lines)
        content = f"BT /F1 10 Tf 12 TL 50 780 Td {shown}ET".encode("ascii", "replace")
        page = f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents {6 + 2 * number} 0 R"
        objects.append(f"{page} /Resources << /Font << /F1 3 0 R >> >> >>".encode())
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content))
    out, places = io.BytesIO(), []
    out.write(b"%PDF-1.4\n")
    for number, content in enumerate(objects, start=1):
        places.append(out.tell())
        out.write(b"%d 0 obj\n%s\nendobj\n" % (number, content))
    start = out.tell()
    out.write(b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1))
    out.write(b"".join(b"%010d 00000 n \n" % place for place in places))
    out.write(f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R /Info 4 0 R {trailer} >>\n".encode())
    out.write(b"startxref\n%d\n%%%%EOF\n" % start)
    return out.getvalue()


def pdf_pages(told: Story) -> list[list[str]]:
    """Return a page of lines for each section of a story."""
    return [
        [heading, "", *(line for text in texts for line in textwrap.wrap(text, 85))] for heading, texts in told.sections
    ]


def _pdf(number: int, seed: int) -> Written:
    told = story(number, seed)
    pages = pdf_pages(told)
    return Written(pdf(pages, told.title), (told.marker,), len(pages))


def docx(told: Story) -> bytes:
    """Return the story as a Word document, with a table at its end."""
    from docx import Document

    document = Document()
    document.core_properties.title = told.title
    document.add_heading(told.title, level=1)
    for heading, paragraphs in told.sections:
        document.add_heading(heading, level=2)
        for paragraph in paragraphs:
            document.add_paragraph(paragraph)
        document.add_paragraph("an item of a list", style="List Bullet")
    cells = document.add_table(rows=1, cols=2).rows[0].cells
    cells[0].text, cells[1].text = "Year", "1887"
    return _saved(document)


def _docx(number: int, seed: int) -> Written:
    told = story(number, seed)
    return Written(docx(told), (told.marker, "1887"))


def _pptx(number: int, seed: int) -> Written:
    from pptx import Presentation

    told, slides = story(number, seed), Presentation()
    for heading, paragraphs in told.sections:
        slide = slides.slides.add_slide(slides.slide_layouts[1])
        slide.shapes.title.text = heading
        slide.placeholders[1].text_frame.text = "\n".join(paragraphs)
        slide.notes_slide.notes_text_frame.text = "What the speaker says."
    return Written(_saved(slides), (told.marker,), len(told.sections))


def _epub(number: int, seed: int) -> Written:
    told = story(number, seed)
    chapters = [
        f'<html xmlns="http://www.w3.org/1999/xhtml"><head><title>{heading}</title></head><body><h1>{heading}</h1>'
        f"{''.join(f'<p>{escape(text)}</p>' for text in texts)}</body></html>"
        for heading, texts in told.sections
    ]
    names = [f"chapter{n}.xhtml" for n in range(len(chapters))]
    items = "".join(
        f'<item id="c{n}" href="{name}" media-type="application/xhtml+xml"/>' for n, name in enumerate(names)
    )
    spine = "".join(f'<itemref idref="c{n}"/>' for n in range(len(names)))
    package = (
        '<package xmlns="http://www.idpf.org/2007/opf" version="3.0" unique-identifier="u"><metadata '
        f'xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:identifier id="u">{number}</dc:identifier>'
        f"<dc:title>{escape(told.title)}</dc:title><dc:language>en</dc:language></metadata>"
        f"<manifest>{items}</manifest><spine>{spine}</spine></package>"
    )
    container = (
        '<container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
        '<rootfile full-path="OEBPS/content.opf" media-type="application/oebps-package+xml"/></rootfiles></container>'
    )
    files = {"mimetype": "application/epub+zip", "META-INF/container.xml": container, "OEBPS/content.opf": package}
    files |= {f"OEBPS/{name}": chapter for name, chapter in zip(names, chapters, strict=True)}
    return Written(zipped(files), (told.marker,))


def _saved(document: Any) -> bytes:
    """Return an Office document without the time of writing."""
    out = io.BytesIO()
    document.save(out)
    with zipfile.ZipFile(out) as archive:
        return zipped({name: archive.read(name) for name in archive.namelist()})


def zipped(files: dict[str, bytes] | dict[str, str]) -> bytes:
    """Return a ZIP archive, equal for equal files."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def _code(template: str) -> Callable[[int, int], Written]:
    def write(number: int, seed: int) -> Written:
        told = story(number, seed)
        words = {"N": str(number), "M": told.marker, "T": told.sections[1][1][0]}
        text = "".join(words.get(piece, piece) for piece in template.split("$"))
        return Written(text.encode(), (told.marker, f"measure_{number}"))

    return write


_C_LIKE = """/* $M$ */
{0} measure_$N$({1}) {{
    // $T$
    return {2};
}}

{0} repair_$N$({1}) {{
    return {2};
}}
"""
_WRITERS: dict[str, Callable[[int, int], Written]] = {
    ".md": _markdown, ".rst": _rst, ".txt": _plain, ".html": _html, ".pdf": _pdf, ".docx": _docx, ".pptx": _pptx,
    ".epub": _epub,
    ".py": _code('"""$M$"""\n\n\nclass Keeper$N$:\n    """$T$"""\n\n    def measure_$N$(self, depth: int) -> int:\n'
                 "        return depth * $N$\n\n\ndef repair_$N$():\n    return None\n"),
    ".js": _code(_C_LIKE.format("function", "depth", "depth")),
    ".c": _code(_C_LIKE.format("int", "int depth", "depth")),
    ".go": _code("package notes\n\n// $M$\nfunc measure_$N$(depth int) int {\n\t// $T$\n\treturn depth\n}\n"),
    ".rs": _code("/// $M$\nfn measure_$N$(depth: u32) -> u32 {\n    // $T$\n    depth\n}\n"),
    ".java": _code("/** $M$ */\nclass Keeper$N$ {\n    // $T$\n    int measure_$N$(int depth) { return depth; }\n}\n"),
    ".sh": _code("#!/bin/sh\n# $M$\nmeasure_$N$() {\n    # $T$\n    echo depth\n}\n"),
    ".sql": _code("-- $M$\nCREATE TABLE measure_$N$ (id integer, depth integer);\n-- $T$\n"),
}  # fmt: skip
SUFFIXES = tuple(_WRITERS)


def write(path: Path, data: bytes) -> None:
    """Write a file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
