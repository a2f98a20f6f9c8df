"""A folder of mixed files, some of them hostile, with the outcome of each: `python -m tests.mixed_folder FOLDER`."""

import argparse
import os
import random
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.written_files import SUFFIXES, Written, docx, html, markdown, pdf, pdf_pages, story, write, written

# of 100 or so; each language of code has 3
_SHARES = {".md": 22, ".txt": 15, ".html": 14, ".pdf": 9, ".rst": 6, ".docx": 4, ".pptx": 2, ".epub": 3}
_FOLDERS = ("", "work", "work/plans", "work/plans/2026", "home", "home/recipes", "papers", "src", "src/lib",
            "größe/深い")  # fmt: skip
_FIRST = 1_767_225_600  # seconds: 2026-01-01
_UNREAD = (".hidden.md", ".git/notes.md", "home/.cache/x.html", "page.tmp.md", "work/page.tmp.md", "generated/kept.md",
           "generated/api/page.html", "drafts/idea.md", "home/drafts/idea.md", "work/secret-key.txt",
           "work/secret-plan.md")  # fmt: skip
_OTHERS = ("home/picture.png", "home/archive.zip", "home/program.exe", "home/data.bin", "home/no-suffix")
_LEFT_OUT = {
    **dict.fromkeys((".gitignore", ".isotropeignore", "work/.gitignore"), "hidden"),
    **dict.fromkeys((".hidden.md", ".git", "home/.cache"), "hidden"),
    **dict.fromkeys(("page.tmp.md", "work/page.tmp.md", "generated", "work/secret-key.txt"), "ignored by .gitignore"),
    **dict.fromkeys(("drafts", "home/drafts"), "ignored by .isotropeignore"),
    **dict.fromkeys(("home/loop", "home/link.md", "home/nowhere.md"), "linked"),
    **dict.fromkeys(_OTHERS[:-1], "of unknown type"),
    "home/empty.md": "empty",
    "home/no-suffix": "binary",
}


@dataclass(frozen=True)
class Extremes:
    """The sizes of the hostile files."""

    text_bytes: int = 500 << 20
    bomb_bytes: int = 3 << 30  # unpacked
    pages: int = 2_000
    divisions: int = 100_000  # nested
    line_bytes: int = 10 << 20


SMALL = Extremes(text_bytes=40 << 20, bomb_bytes=256 << 20, pages=40, divisions=2_000, line_bytes=100_000)


@dataclass(frozen=True)
class Outcome:
    """The expected outcome for a file.

    With `reasons` only, it is rejected for one of them. With `contains` only, it is a document whose text contains
    them. With both, either is right.
    """

    contains: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    pages: int | None = None


@dataclass
class Listing:
    """The outcome of each file that is read, by id, and the entries that are left out, with the reason."""

    read: dict[str, Outcome] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)  # files, and whole folders

    @property
    def documents(self) -> dict[str, Outcome]:
        """The files that must become documents."""
        return {name: outcome for name, outcome in self.read.items() if not outcome.reasons}

    @property
    def rejected(self) -> dict[str, Outcome]:
        """The files that must be rejected."""
        return {name: outcome for name, outcome in self.read.items() if not outcome.contains}


def write_mixed_folder(folder: Path, files: int, seed: int = 0, extremes: Extremes = SMALL) -> Listing:
    """Write a folder with this number of files, always the same, and return their outcomes.

    The hostile files are always there; the number of the others makes up the difference.
    """
    listing = Listing()
    folder.mkdir(parents=True, exist_ok=True)
    _write_hostile(folder, seed, extremes, listing)
    _write_left_out(folder, seed, listing)
    draw = random.Random(seed)
    kinds = [suffix for suffix in SUFFIXES for _ in range(_SHARES.get(suffix, 3))]
    for number in range(files - len(listing.read) - len(listing.left_out)):
        name = "/".join(filter(None, (draw.choice(_FOLDERS), f"note-{number:05d}{draw.choice(kinds)}")))
        listing.read[name] = write_note(folder, name, number, seed)
    return listing


def write_note(folder: Path, name: str, number: int, seed: int = 0) -> Outcome:
    """Write the story with a number in the format of the name's suffix; every 40th file is broken."""
    made = written(Path(name).suffix, number, seed)
    outcome = Outcome(made.contains, (), made.pages)
    if number % 40 == 39:
        made, outcome = _broken(Path(name).suffix, made)
    write(folder / name, made.data)
    at = _FIRST + 3600 * number
    os.utime(folder / name, (at, at))
    return outcome


def _broken(suffix: str, made: Written) -> tuple[Written, Outcome]:
    """Return a truncated container, and blank lines for every other format."""
    if suffix in (".pdf", ".docx", ".pptx", ".epub"):
        return Written(made.data[: len(made.data) // 2], ()), Outcome(reasons=("broken",))
    return Written(b" \n\n", ()), Outcome(reasons=("blank",))


def _write_hostile(folder: Path, seed: int, extremes: Extremes, listing: Listing) -> None:
    """Write one file of each hostile kind into the folder `hostile`."""
    told = story(99_999, seed)
    for name, (make, outcome) in _HOSTILE.items():
        (folder / "hostile").mkdir(exist_ok=True)
        make(folder / "hostile" / name, extremes)
        listing.read[f"hostile/{name}"] = outcome
    pages = [*pdf_pages(told), *[["An empty page."]] * (extremes.pages - 3)]
    write(folder / "hostile/pages.pdf", pdf(pages, told.title))
    listing.read["hostile/pages.pdf"] = Outcome((told.marker,), pages=extremes.pages)
    bytes_name = os.fsdecode(b"caf\xe9.md")
    try:
        write(folder / "hostile" / bytes_name, markdown(told).encode())
    except OSError:  # macOS accepts UTF-8 only
        return
    listing.read["hostile/caf\\xe9.md"] = Outcome((told.marker,))


def _large_text(path: Path, extremes: Extremes) -> None:
    block = markdown(story(1, 1)).encode()
    block *= (1 << 20) // len(block)
    with path.open("wb") as file:
        for _ in range(extremes.text_bytes // len(block) + 1):
            file.write(block)


def _bomb(path: Path, extremes: Extremes) -> None:
    """Write a Word document that is small on disk and fills the memory of a reader that unpacks it."""
    spaces = b" " * (1 << 20)
    path.write_bytes(docx(story(2, 2)))
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    head, _, tail = parts.pop("word/document.xml").partition(b"<w:t>")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, data in parts.items():
            archive.writestr(zipfile.ZipInfo(name), data)
        info = zipfile.ZipInfo("word/document.xml")
        info.compress_type = zipfile.ZIP_DEFLATED
        with archive.open(info, "w", force_zip64=True) as part:
            part.write(head + b'<w:t xml:space="preserve">')
            for _ in range(extremes.bomb_bytes >> 20):
                part.write(spaces)
            part.write(tail)


def _encrypted() -> bytes:
    """Return a PDF that asks for a password: the key in its dictionary fits none."""
    key = "0123456789abcdef" * 4
    encryption = f"/Encrypt << /Filter /Standard /V 1 /R 2 /O <{key}> /U <{key}> /P -4 >> /ID [<{key}> <{key}>]"
    return pdf([["Nobody reads this line."]], "Secret", encryption)


def _in_one_line(path: Path, extremes: Extremes) -> None:
    sentence = "The ferry of Lima leaves late. "
    path.write_text(f"# One line\n\nA very long line follows.\n\n{sentence * (extremes.line_bytes // len(sentence))}\n")


def _nested(path: Path, extremes: Extremes) -> None:
    count = extremes.divisions
    path.write_text(f"<html><body>{'<div>' * count}Deep inside.{'</div>' * count}</body></html>")


def _always(data: bytes) -> Callable[[Path, Extremes], None]:
    return lambda path, extremes: write(path, data)


_BINARY = random.Random(0).randbytes(4096)
_WRONG = story(3, 3, ["Das Café der Müllerin."])
_HOSTILE: dict[str, tuple[Callable[[Path, Extremes], None], Outcome]] = {
    "large.txt": (_large_text, Outcome(reasons=("too-large",))),
    "bomb.docx": (_bomb, Outcome(reasons=("too-large", "memory"))),
    "truncated.pdf": (_always(pdf(pdf_pages(story(4, 4)), "Cut")[:900]), Outcome(reasons=("broken",))),
    "no-header.pdf": (_always(b"This is no PDF."), Outcome(reasons=("broken",))),
    "encrypted.pdf": (_always(_encrypted()), Outcome(reasons=("encrypted",))),
    "no-zip.docx": (_always(b"This is no ZIP archive. " * 20), Outcome(reasons=("broken",))),
    "no-zip.pptx": (_always(_BINARY), Outcome(reasons=("broken",))),
    "no-zip.epub": (_always(_BINARY), Outcome(reasons=("broken",))),
    "blank.txt": (_always(b" \n\t\n\n"), Outcome(reasons=("blank",))),
    "empty.html": (_always(b"<html><head><title></title></head><body></body></html>"), Outcome(reasons=("blank",))),
    "binary.txt": (_always(b"\0\1\2\3" + _BINARY), Outcome(reasons=("binary",))),
    "wrong-charset.html": (_always(html(_WRONG, "utf-8").encode("latin-1")), Outcome((_WRONG.marker,))),
    "one-line.md": (_in_one_line, Outcome(("A very long line follows.",))),
    "nested.html": (_nested, Outcome(("Deep inside.",), ("blank", "crash", "memory", "time"))),
}  # fmt: skip


def _write_left_out(folder: Path, seed: int, listing: Listing) -> None:
    """Write files that no build reads: hidden, ignored and empty files, other types, and links."""
    told = story(5, seed)
    write(folder / ".gitignore", b"# patterns\n*.tmp.md\n/generated/\n!generated/kept.md\n")
    write(folder / ".isotropeignore", b"drafts/\n")
    write(folder / "work/.gitignore", b"secret-*\n!secret-plan.md\n")
    for name in _UNREAD:
        write(folder / name, markdown(told).encode())
    for name in _OTHERS:
        write(folder / name, _BINARY)
    write(folder / "home/empty.md", b"")
    (folder / "home/loop").symlink_to("..", target_is_directory=True)
    (folder / "home/link.md").symlink_to("../.hidden.md")
    (folder / "home/nowhere.md").symlink_to("missing.md")
    listing.read["work/secret-plan.md"] = Outcome((told.marker,))
    listing.left_out |= _LEFT_OUT


def main() -> None:
    """Write a folder and print the number of files by outcome."""
    parser = argparse.ArgumentParser(prog="python -m tests.mixed_folder", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--files", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--small", action="store_true", help="hostile files of a few megabytes")
    given = parser.parse_args()
    listing = write_mixed_folder(given.folder, given.files, given.seed, SMALL if given.small else Extremes())
    print(f"{len(listing.documents):,} documents")
    for reasons, count in Counter(outcome.reasons for outcome in listing.rejected.values()).items():
        print(f"{count:,} rejected: {' or '.join(reasons)}")
    for reason, count in Counter(listing.left_out.values()).items():
        print(f"{count:,} left out: {reason}")


if __name__ == "__main__":
    main()
