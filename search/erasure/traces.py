"""The traces of documents by which a search recognises them: `Traces`, and `mark`, which takes them from an index."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from indexer import ann
from indexer.arrays import RowIds
from indexer.corpus.document import Document
from indexer.corpus.schema import schema_from_json
from indexer.pipeline.drift import AddedSince
from indexer.pipeline.erase import Copies
from indexer.pipeline.generation import Generation
from indexer.store import layout, parts
from indexer.store.documents import DocumentReader
from indexer.store.embeddings import open_embeddings
from indexer.store.layout import Hash
from indexer.store.manifest import MOST_BYTES, Manifest
from indexer.transforms import Normalisation
from search.erasure.patterns import Bytes, Pattern, Searcher, joined, normalised, patterns_of, without
from search.index import Index

Kind = Literal["text", "word", "vector", "code"]
WINDOW, STRIDE, SHORTEST = 16, 8, 8  # normalised bytes; shorter texts are one window of their own length
ROW_BYTES = 32  # of the start and of the end of a row
# Words of the formats of files.
_FORMATS = b"NUMPY v descr fortran_order False shape parquet-cpp-arrow version ARROW:schema __metadata__ data_offsets"
_DOCUMENTS, _ROWS = 1024, 1 << 15  # searched together


class Traces(Struct, frozen=True):
    """Windows of texts, ids as words, and byte strings of embeddings, text hashes, vectors and codes.

    None occurs in a remaining document; `shared` counts those that do, and `documents` the stored copies. `files` are
    the sha256 of files of parts and segments that contained a document, and of transforms fitted to them.
    """

    patterns: dict[Kind, list[Pattern]]
    files: list[Hash] = []
    documents: int = 0
    shared: int = 0

    def searchers(self, salt: str) -> dict[Kind, Searcher]:
        return {kind: Searcher(salt, self.patterns.get(kind, [])) for kind in get_args(Kind)}

    def without(self, found: Mapping[Kind, set[str]]) -> "Traces":
        """Return the traces without those in `found`, which are HMACs."""
        left = {kind: without(patterns, found.get(kind, set())) for kind, patterns in self.patterns.items()}
        return replace(self, patterns=left, shared=self.shared + sum(map(len, found.values())))


def mark(generation: Generation, copies: Copies, salt: str) -> dict[str, Any]:
    """Return the `Traces` of documents, JSON types."""
    strings: dict[Kind, set[bytes]] = {kind: set() for kind in get_args(Kind)}
    erased, seen, count = set[str](), set[str](), 0
    for manifest, numbers in copies:
        for document in _documents(generation.index, manifest, numbers):
            erased.add(document.id)
            strings["text"] |= set(windows(strings_of(document)))
            strings["word"].add(_word(document.id))
            count += 1
        for kind, rows in _stored_bytes(generation.index, manifest, np.array(numbers, np.int64), seen):
            strings[kind] |= {end for row in rows for end in _ends(row.tobytes())}
        if numbers and manifest.transform["kind"] != Normalisation.kind and numbers[0] < _fitted_documents(manifest):
            seen.add(manifest.files[manifest.transform["file"]].sha256)
    traces = Traces({kind: patterns_of(salt, found) for kind, found in strings.items()}, sorted(seen), count)
    plain: dict[str, Any] = msgspec.to_builtins(traces.without(_shared(generation, traces.searchers(salt), erased)))
    return plain


def without_remaining(traces: Traces, salt: str, index: Path, manifest: Manifest) -> Traces:
    """Return traces without kept files and the codes that rows of new segments have: new centroids give new codes."""
    kept = {digest.sha256 for digest in manifest.files.values()}
    traces = replace(traces, files=[digest for digest in traces.files if digest not in kept])
    search, found = traces.searchers(salt)["code"], set[str]()
    if traces.patterns.get("code"):
        for kind, rows in _stored_bytes(index, manifest, np.arange(manifest.stored_documents), set()):
            if kind == "code":
                found |= search.found(_ends_of(rows))
    return traces.without({"code": found})


def strings_of(document: Document) -> Iterator[str]:
    """Yield the title, the text and the strings of the metadata."""
    yield from strings_in([document.title, document.text, document.metadata])


def strings_in(value: Any) -> Iterator[str]:
    """Yield the strings in lists and objects."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from strings_in(each)


def windows(strings: Iterable[str]) -> Iterator[bytes]:
    """Yield the normalised windows of some strings, `STRIDE` bytes apart; each string of 8 bytes or more has one."""
    for string in strings:
        plain = _plain(string)
        if SHORTEST <= len(plain) <= WINDOW:
            yield plain
        elif len(plain) > WINDOW:
            for start in [*range(0, len(plain) - WINDOW, STRIDE), len(plain) - WINDOW]:
                yield plain[start : start + WINDOW]


def _plain(string: str) -> bytes:
    return normalised(np.frombuffer(string.encode("utf-8", "surrogatepass"), np.uint8)).tobytes().strip(b" ")


def _word(identity: str) -> bytes:
    """Return an id as it occurs between other words."""
    return b" %s " % _plain(identity)


def _documents(index: Path, manifest: Manifest, numbers: Sequence[int]) -> list[Document]:
    with closing(DocumentReader(index, manifest, schema_from_json(manifest.schema))) as reader:
        return list(reader.fetch(numbers))


def _stored_bytes(index: Path, manifest: Manifest, numbers: RowIds, seen: set[str]) -> Iterator[tuple[Kind, Bytes]]:
    """Yield the embeddings, text hashes, vectors and codes of stored documents, (n, bytes).

    `numbers` ascend. Files whose sha256 is in `seen` are skipped; those with one of the documents are added.
    """
    first, first_row, chosen = 0, 0, [np.zeros(0, np.int64)]
    for part in manifest.parts:
        low, high = np.searchsorted(numbers, [first, first + part.documents])
        rows, folder = numbers[low:high] - first, index / part.name
        if len(rows) and part.rows != part.documents:
            rows = np.flatnonzero(np.isin(parts.read_window_documents(folder), rows))
        data = [f"{part.name}/{name}" for name in (layout.DOCUMENTS, layout.EMBEDDINGS, layout.MOMENTS)]
        if len(rows) and _is_new(manifest, data, seen):
            yield "vector", _as_bytes(open_embeddings(folder)[rows])
            yield "vector", _as_bytes(parts.read_text_hashes(folder)[rows])
        chosen.append(rows + first_row)
        first, first_row = first + part.documents, first_row + part.rows
    with closing(Index(index, manifest)) as opened:
        for number, entry in enumerate(manifest.segments):
            rows = np.concatenate(chosen) - entry.first_row
            rows = rows[(rows >= 0) & (rows < entry.rows)]
            if len(rows) and _is_new(manifest, [entry.file], seen):
                segment = opened.open_segment(number)
                for start in range(0, len(rows), _ROWS):
                    for codes in ann.stored_codes(segment.index, rows[start : start + _ROWS]):
                        yield "vector" if segment.exact else "code", codes


def _fitted_documents(manifest: Manifest) -> int:
    """Return the number of the first stored documents that the transform may have been fitted to."""
    since = AddedSince.of(manifest)
    return sum(part.documents for part in manifest.parts[: since.part + bool(since.row)])


def _is_new(manifest: Manifest, names: Sequence[str], seen: set[str]) -> bool:
    digests = {manifest.files[name].sha256 for name in names}
    is_new = not digests <= seen
    seen |= digests
    return is_new


def _as_bytes(rows: Any) -> Bytes:
    return np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), -1)


def _ends(row: bytes) -> Iterator[bytes]:
    """Yield the first and the last bytes of a row, unless they are all equal, as zeros are."""
    for end in {row[:ROW_BYTES], row[-ROW_BYTES:]}:
        if len(end) >= SHORTEST and len(set(end)) > 2:
            yield end


def _ends_of(rows: Bytes) -> Bytes:
    """Return the first and the last bytes of all rows, (n,)."""
    return np.concatenate([rows[:, :ROW_BYTES].ravel(), rows[:, -ROW_BYTES:].ravel()])


def _shared(generation: Generation, searchers: Mapping[Kind, Searcher], erased: set[str]) -> dict[Kind, set[str]]:
    """Return the HMACs of the traces that a remaining document or the format of the files has as well."""
    published, numbers = generation.previous, list[int]()
    found: dict[Kind, set[str]] = {kind: set() for kind in searchers}

    def look(strings: Iterable[str]) -> None:
        plain = normalised(joined(strings))
        for kind in ("text", "word"):
            found[kind] |= searchers[kind].found(plain)

    manifest = generation.store.read_manifest(layout.manifest_name(published.manifest.generation), MOST_BYTES)
    look(data.decode() for data in (_FORMATS, manifest, *(record.to_json() for record in published.records()[:1])))
    stream = enumerate(published.documents.all_documents())
    while block := list(islice(stream, _DOCUMENTS)):
        block = [(number, document) for number, document in block if document.id not in erased]
        numbers += [number for number, _ in block]
        look(string for _, document in block for string in (document.id, *strings_of(document)))
    stored = published.stored(np.array(numbers, np.int64))
    for kind, rows in _stored_bytes(published.index, published.manifest, stored, set()):
        found[kind] |= searchers[kind].found(_ends_of(rows))
    return found
