"""Small files of each format."""

import io
import zipfile
from pathlib import Path

from indexer.corpus.files.extracted import ExtractedText
from indexer.corpus.files.extraction import DEFAULT_LIMITS, ExtractionLimits, extract_files
from indexer.corpus.row import BadRow
from indexer.corpus.sources import SourceFile


def extract(
    paths: list[Path], workers: int = 1, limits: ExtractionLimits = DEFAULT_LIMITS
) -> list[ExtractedText | BadRow]:
    """Return the outcomes for files, after a check that each belongs to its file."""
    files = [SourceFile(path, str(path), str(path), "file") for path in paths]
    results = list(extract_files(iter(files), workers, limits))
    assert [file for file, _ in results] == files
    return [outcome for _, outcome in results]


def archive(entries: dict[str, str]) -> bytes:
    """Return a ZIP archive."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in entries.items():
            file.writestr(name, content)
    return data.getvalue()


def epub(chapters: dict[str, str], title: str = "", extra: dict[str, str] | None = None) -> bytes:
    """Return a book with these chapters in this order."""
    items = "".join(f'<item id="{n}" href="{n}.xhtml" media-type="application/xhtml+xml"/>' for n in chapters)
    spine = "".join(f'<itemref idref="{n}"/>' for n in chapters)
    package = (
        '<package xmlns="http://www.idpf.org/2007/opf"><metadata xmlns:dc="http://purl.org/dc/elements/1.1/">'
        f"<dc:title>{title}</dc:title></metadata><manifest>{items}</manifest><spine>{spine}</spine></package>"
    )
    container = (
        '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
        '<rootfile full-path="book/package.opf"/></rootfiles></container>'
    )
    pages = {f"book/{n}.xhtml": page for n, page in sorted(chapters.items())}
    return archive({"META-INF/container.xml": container, "book/package.opf": package, **pages, **(extra or {})})


def pdf(pages: list[list[tuple[int, int, str]]], title: str = "", encrypt: bool = False) -> bytes:
    """Return a PDF whose pages have lines of (size, height, text)."""
    count = len(pages)
    kids = " ".join(f"{4 + 2 * n} 0 R" for n in range(count))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {count} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, lines in enumerate(pages):
        drawn = "".join(f"BT /F1 {size} Tf 72 {height} Td ({text}) Tj ET\n" for size, height, text in lines)
        resources = "/MediaBox [0 0 612 792] /Resources << /Font << /F1 3 0 R >> >>"
        objects.append(f"<< /Type /Page /Parent 2 0 R {resources} /Contents {5 + 2 * number} 0 R >>")
        objects.append(f"<< /Length {len(drawn)} >>\nstream\n{drawn}endstream")
    objects.append(f"<< /Title ({title}) >>")
    data, offsets = "%PDF-1.4\n", []
    for number, each in enumerate(objects, 1):
        offsets.append(len(data))
        data += f"{number} 0 obj\n{each}\nendobj\n"
    extra = f"/Encrypt << /Filter /Standard /V 1 /R 2 /O <{'0' * 64}> /U <{'1' * 64}> /P -4 >> /ID [<00> <00>]"
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    trailer = f"<< /Size {len(objects) + 1} /Root 1 0 R /Info {len(objects)} 0 R {extra if encrypt else ''} >>"
    return (
        f"{data}xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}trailer\n{trailer}\n"
        f"startxref\n{len(data)}\n%%EOF"
    ).encode("latin-1")
