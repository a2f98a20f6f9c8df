"""Numbers of live documents and rows equal a slow count, with and without windows."""

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.errors import CorruptIndexError
from indexer.store.files import atomic_write_bytes
from indexer.store.manifest import WINDOWS
from indexer.store.numbering import LiveNumbering, _require_spans, read_deleted, write_deleted

Spans = npt.NDArray[np.int64]


def numbering(windows: list[int], live: list[bool], windowed: bool) -> LiveNumbering:
    """The numbering of stored documents with some number of windows each."""
    rows = sum(count for count, there in zip(windows, live, strict=True) if there)
    manifest: Any = SimpleNamespace(features=(WINDOWS,) if windowed else (), documents=sum(live), rows=rows)
    found = LiveNumbering(Path("nowhere"), manifest)
    found.__dict__["live_documents"] = None if all(live) else np.array(live)
    found.__dict__["_stored_spans"] = spans_of(windows)
    return found


def spans_of(windows: list[int]) -> Spans:
    """Document, start and end of each stored row, all different."""
    spans = [(document, 7 * n, 7 * n + document + 9) for document, count in enumerate(windows) for n in range(count)]
    return np.array(spans, np.int64).reshape(-1, 3)


@given(st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=1, max_size=12), st.booleans())
def test_numbers_are_those_of_a_slow_count(documents: list[tuple[int, bool]], windowed: bool) -> None:
    windows, live = [count if windowed else 1 for count, _ in documents], [there for _, there in documents]
    stored = [document for document, count in enumerate(windows) for _ in range(count)]  # of each stored row
    live_rows = [row for row, document in enumerate(stored) if live[document]]
    live_documents = [document for document, there in enumerate(live) if there]
    document_of = [live_documents.index(stored[row]) for row in live_rows]
    found = numbering(windows, live, windowed)
    if all(live):
        assert found.stored_rows is None
        assert found.stored_documents is None
        assert found.live_rows is None
    else:
        assert found.stored_rows is not None
        assert found.stored_documents is not None
        assert found.stored_rows.tolist() == live_rows
        assert found.stored_documents.tolist() == live_documents
    assert found.numbers_of(np.array(live_rows, np.int64)).tolist() == list(range(len(live_rows)))
    assert found.documents_of(np.arange(len(live_rows))[::-1]).tolist() == document_of[::-1]
    for wanted in (live_documents, live_documents[1::2][::-1] * 2, []):
        asked = [live_documents.index(document) for document in wanted]
        expected = [row for row, document in enumerate(document_of) if document in asked]
        assert found.rows_of(np.array(asked, np.int64)).tolist() == expected
    if windowed:
        expected_spans = spans_of(windows)[live_rows, 1:]
        assert found.spans(np.arange(len(live_rows))).tolist() == expected_spans.tolist()


@pytest.mark.parametrize(
    "spans",
    [
        [(0, 0, 5), (1, 0, 0), (1, 3, 9), (2, 4, 4)],
        [(0, 0, 0), (1, 0, 0), (2, 0, 0)],
    ],
)
def test_windows_in_ascending_documents_are_accepted(spans: list[tuple[int, int, int]]) -> None:
    _require_spans(np.array(spans, np.int64), 3, Path("windows"))


@pytest.mark.parametrize(
    "spans",
    [
        [(0, 0, 5), (2, 0, 5)],  # one has none
        [(1, 0, 5), (2, 0, 5)],  # the first has none
        [(0, 0, 5), (1, 0, 5)],  # the last has none
        [(0, 0, 5), (1, 0, 5), (2, 0, 5), (3, 0, 5)],
        [(0, 0, 5), (1, 0, 5), (0, 0, 5), (1, 0, 5), (2, 0, 5)],
        [(0, 0, 5), (1, 6, 5), (2, 0, 5)],
        [(0, 0, 5), (1, -1, 5), (2, 0, 5)],
        [(-1, 0, 5), (0, 0, 5), (1, 0, 5), (2, 0, 5)],
    ],
)
def test_other_windows_are_refused(spans: list[tuple[int, int, int]]) -> None:
    with pytest.raises(CorruptIndexError, match="windows: its windows are not those of 3 documents in order"):
        _require_spans(np.array(spans, np.int64), 3, Path("windows"))


def manifest_of(name: str | None, live: int = 9) -> Any:
    return SimpleNamespace(deleted=name, files={}, stored_documents=9, documents=live)


@pytest.mark.parametrize("numbers", [[], [0], [8], [0, 3, 8], list(range(9))])
def test_a_list_of_deleted_documents_is_read_as_it_was_written(numbers: list[int], tmp_path: Path) -> None:
    name, digest = write_deleted(tmp_path, 7, np.array(numbers, np.int32))
    assert name == "deleted/0007.npy"
    manifest = manifest_of(name, 9 - len(numbers))
    manifest.files[name] = digest
    found = read_deleted(tmp_path, manifest)
    assert found.dtype == np.int64
    assert found.tolist() == numbers
    manifest.features, manifest.rows = (), 9 - len(numbers)
    live = LiveNumbering(tmp_path, manifest).live_documents
    assert (live is None) == (not numbers)
    if live is not None:
        assert np.flatnonzero(~live).tolist() == numbers


def test_without_a_list_nothing_is_deleted(tmp_path: Path) -> None:
    found = read_deleted(tmp_path, manifest_of(None))
    assert found.dtype == np.int64
    assert found.shape == (0,)


def test_a_list_that_is_a_program_is_not_run(tmp_path: Path) -> None:
    file = io.BytesIO()
    np.save(file, np.array([1, 2], object), allow_pickle=True)
    manifest = manifest_of("list.npy")
    manifest.files["list.npy"] = atomic_write_bytes(tmp_path / "list.npy", file.getvalue())
    with pytest.raises(CorruptIndexError, match=r"list\.npy: invalid contents \(Object arrays"):
        read_deleted(tmp_path, manifest)


@pytest.mark.parametrize(
    "numbers",
    [
        np.array([9]),
        np.array([-1, 3]),
        np.array([3, 3]),
        np.array([4, 3]),
        np.array([[1, 2]]),
        np.array(3),
        np.array([1.0]),
        np.array([1, 2], np.int32),
    ],
)
def test_another_list_is_refused_whatever_its_hash(numbers: npt.NDArray[Any], tmp_path: Path) -> None:
    file = io.BytesIO()
    np.save(file, numbers)
    manifest = manifest_of("list.npy")
    manifest.files["list.npy"] = atomic_write_bytes(tmp_path / "list.npy", file.getvalue())
    with pytest.raises(CorruptIndexError, match=r"list\.npy: not a list of ascending document numbers of this index"):
        read_deleted(tmp_path, manifest)


def test_a_list_that_contradicts_the_count_of_documents_is_refused(tmp_path: Path) -> None:
    name, digest = write_deleted(tmp_path, 7, np.array([2, 3]))
    manifest = manifest_of(name, 8)
    manifest.files[name] = digest
    with pytest.raises(CorruptIndexError, match=r"lists 2 of 9 documents as deleted; the manifest counts 8 live ones"):
        read_deleted(tmp_path, manifest)
