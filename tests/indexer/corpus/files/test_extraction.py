"""Extraction of files by workers: order, limits and failures of single files."""

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from indexer.corpus.files.extracted import ExtractedText
from indexer.corpus.files.extraction import READERS, ExtractionLimits, extract_files
from indexer.corpus.row import BadRow
from indexer.corpus.sources import SourceFile
from indexer.errors import MachineError
from indexer.store.bucket import open_bucket
from tests.indexer.corpus.files.samples import archive, extract
from tests.object_storage import Storage

LIMITS = ExtractionLimits(seconds=1, memory=1 << 30, file_bytes=1 << 20, text_bytes=1 << 16)


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(READERS, "pdf", "tests.indexer.corpus.files.hostile:read")


def written(folder: Path, contents: dict[str, bytes]) -> list[Path]:
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in contents]


def reasons(outcomes: list[ExtractedText | BadRow]) -> list[str]:
    return [each.reason if isinstance(each, BadRow) else each.text for each in outcomes]


@pytest.mark.usefixtures("hostile")
def test_a_file_that_fails_is_a_rejected_row_and_the_others_keep_their_order(tmp_path: Path) -> None:
    orders = ["a", "forever", "b", "memory", "killed", "c", "crash", "broken", "noisy", "x" * 70_000, " \n"]
    paths = written(tmp_path, {f"{number}.pdf": order.encode() for number, order in enumerate(orders)})
    expected = ["a", "time", "b", "memory", "crash", "c", "crash", "broken", "noisy", "too-large", "blank"]
    outcomes = extract(paths, 2, LIMITS)
    assert reasons(outcomes) == expected
    assert outcomes[0] == ExtractedText("a", "title", 3)
    messages = [str(each) for each in outcomes if isinstance(each, BadRow)]
    assert messages == [str(each) for each in extract(paths, 1, LIMITS) if isinstance(each, BadRow)]
    assert not any("\n" in message or "0x" in message for message in messages)


def test_text_is_the_decoded_file(tmp_path: Path) -> None:
    contents = {
        "a.txt": "\ufeffeins\r\nzwei\rdrei".encode(),
        "b.txt": "grün".encode("utf-16"),
        "c.md": b"---\ntitle: 'Front'\n---\n# Head\n",
        "d.md": b"```\n# no\n```\n\n## Yes ##\n",
        "e.rst": b"====\nOver\n====\n\nUnder\n-----\n",
        "f.py": b"# comment\n",
        "g.txt": ("Die Größe der Bäume überrascht die Gärtner in Köln, " * 9).encode("latin-1"),
    }
    outcomes = [each for each in extract(written(tmp_path, contents)) if isinstance(each, ExtractedText)]
    assert [each.text for each in outcomes[:2]] == ["eins\nzwei\ndrei", "grün"]
    assert [each.title for each in outcomes] == [None, None, "Front", "Yes", "Over", None, None]
    assert outcomes[6].text.startswith("Die Größe der Bäume")


def test_files_that_are_no_text_name_the_reason(tmp_path: Path) -> None:
    contents = {"a.txt": b"a\0b", "b.py": b"", "c.md": b"x" * 70_000, "d.html": b"x" * (2 << 20)}
    paths = [*written(tmp_path, contents), tmp_path / "gone.txt", tmp_path / "gone.pdf"]
    expected = ["binary", "blank", "too-large", "too-large", "missing", "missing"]
    assert reasons(extract(paths, limits=LIMITS)) == expected


def test_an_archive_that_unpacks_to_too_much_is_not_opened(tmp_path: Path) -> None:
    bomb = archive({f"word/{number}.xml": " " * (1 << 20) for number in range(3)})
    paths = written(tmp_path, {"a.docx": bomb, "b.pptx": b"no archive", "c.epub": bomb[:200]})
    assert reasons(extract(paths, limits=LIMITS)) == ["too-large", "broken", "broken"]


def test_names_need_not_be_utf_8(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"gr\xfcn.html")
    path.write_bytes(b"<h1>Title</h1>")
    assert extract([path]) == [ExtractedText("# Title", "Title")]


@pytest.mark.usefixtures("hostile")
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(["txt", "pdf"]), st.integers(1, 9_000)), max_size=20), st.integers(1, 3))
def test_texts_come_in_order_whatever_their_size(tmp_path: Path, files: list[tuple[str, int]], workers: int) -> None:
    contents = {f"{n}.{suffix}": f"{n} {'x' * size}".encode() for n, (suffix, size) in enumerate(files)}
    assert reasons(extract(written(tmp_path, contents), workers)) == [text.decode() for text in contents.values()]


@pytest.mark.usefixtures("hostile")
def test_a_bounded_number_of_files_is_read_ahead_and_an_early_end_ends_the_workers(tmp_path: Path) -> None:
    (path,) = written(tmp_path, {"a.pdf": b"a"})
    drawn = 0

    def counted() -> Iterator[SourceFile]:
        nonlocal drawn
        while True:
            drawn += 1
            yield SourceFile(path, "a", "a.pdf", "file")

    results = extract_files(counted(), 2)
    assert len(list(islice(results, 3))) == 3
    assert drawn <= 3 + 4
    results.close()  # type: ignore[attr-defined]
    assert not any(child.cmdline()[-1].count("files.worker") for child in psutil.Process().children())


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pypdfium2.py").write_text("raise ImportError('not here')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MachineError, match=r"package pypdfium2.*pip install"):
        extract(written(tmp_path, {"a.pdf": b"%PDF"}))


def test_objects_are_read_like_files(storage: Storage) -> None:
    bucket = storage.bucket()
    open_bucket(bucket).put("docs/a.html", b"<h1>Title</h1>")
    file = SourceFile(None, f"{bucket}/docs/a.html", "a.html", "file", url=f"{bucket}/docs/a.html")
    assert list(extract_files([file])) == [(file, ExtractedText("# Title", "Title"))]
