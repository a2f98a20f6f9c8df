"""Checks of DOCX, PPTX and EPUB, which are ZIP archives, before a library opens one."""

import io
import zipfile

from indexer.corpus.row import BadRow

_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"  # Office files of the old formats, and encrypted ones of the new


def check_archive(data: bytes, most_bytes: int) -> None:
    """Raise BadRow for an archive that is broken or encrypted, or whose files have more bytes than allowed."""
    if data.startswith(_OLE):
        if "EncryptedPackage".encode("utf-16-le") in data:
            raise encrypted()
        raise BadRow(
            "broken",
            "the file is in an old Office format",
            "open it in an Office program and save it as .docx or .pptx",
        )
    try:
        entries = zipfile.ZipFile(io.BytesIO(data)).infolist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise BadRow("broken", "the file is not a complete ZIP archive", "replace it with an intact copy") from error
    unpacked = sum(entry.file_size for entry in entries)
    if unpacked > most_bytes:
        raise BadRow(
            "too-large",
            f"the file unpacks to {unpacked:,} bytes; expected at most {most_bytes:,}",
            "leave the file out",
        )
    if any(entry.flag_bits & 1 for entry in entries):
        raise encrypted()


def encrypted() -> BadRow:
    """Return the error of a file that needs a password."""
    return BadRow("encrypted", "the file is encrypted", "save a copy without a password")
