"""Embeddings of an earlier generation, found by the hash of their text.

An upsert, a metadata edit or a line inserted at the top changes the cut of every part, but not the texts.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from indexer.arrays import Mask, TextHashes
from indexer.errors import MismatchError, StoreError, as_argument
from indexer.pipeline.generation import Generation
from indexer.pipeline.published_index import PublishedIndex
from indexer.store import parts
from indexer.store.embeddings import open_embeddings
from indexer.store.integrity import verify_parts
from indexer.system.versions import version_of

PartRowIds = npt.NDArray[np.int32]  # counted from the start of a part, which has fewer than 2**31 rows


@dataclass(frozen=True)
class ReusedRows:
    """Rows of a part with the texts of rows of complete parts: (folder of a complete part, rows, its rows)."""

    by_part: list[tuple[str, PartRowIds, PartRowIds]]

    @classmethod
    def of(cls, rows: PartRowIds, parts: PartRowIds, sources: PartRowIds, names: list[str]) -> "ReusedRows":
        """Return `rows` with the texts of the rows `sources` of `names[parts]`; (n,) each."""
        inside = [(names[part], parts == part) for part in np.unique(parts).tolist()]
        return cls([(name, rows[chosen], sources[chosen]) for name, chosen in inside])

    def __len__(self) -> int:
        return sum(len(rows) for _, rows, _ in self.by_part)

    @property
    def rows(self) -> PartRowIds:
        return np.concatenate([np.zeros(0, np.int32), *(rows for _, rows, _ in self.by_part)])


class ReuseByText:
    """Lookup over all texts of the published generation: 24 bytes a row in memory.

    Uses only published parts, never parts of the current build, so that an interrupted and continued build gives the
    same bytes as an uninterrupted one. Reads nothing before the first lookup. A part is hashed before its first row is
    reused; damaged parts are skipped.
    """

    def __init__(self, published: PublishedIndex) -> None:
        self._index, self._published = published.index, published
        self._names = [part.name for part in published.manifest.parts]
        self._intact: dict[int, bool] = {}

    @classmethod
    def of(cls, generation: Generation) -> "ReuseByText | None":
        """Return the lookup; None if nothing is published, or the published encoder or storage type is another."""
        published = generation.published
        if published is None or not published.manifest.parts:
            return None
        if published.manifest.fingerprint != generation.spec.fingerprint:
            return None
        return cls(published) if published.config.store.embeddings == generation.config.store.embeddings else None

    def find(self, wanted: TextHashes) -> ReusedRows | None:
        """Return the texts (n, 2) with stored embeddings; None if nothing is stored."""
        if self._table is None:
            return None
        upper, lower, part, row = self._table
        places = np.searchsorted(upper, wanted[:, 0])
        unsettled = np.arange(len(wanted))
        while len(unsettled):  # repeats only if two texts share half of their hash
            unsettled = unsettled[places[unsettled] < len(upper)]
            unsettled = unsettled[upper[places[unsettled]] == wanted[unsettled, 0]]
            unsettled = unsettled[lower[places[unsettled]] != wanted[unsettled, 1]]
            places[unsettled] += 1
        inside = np.minimum(places, len(upper) - 1)
        rows = np.flatnonzero((upper[inside] == wanted[:, 0]) & (lower[inside] == wanted[:, 1]))
        rows = rows[[self._is_intact(number) for number in part[places[rows]].tolist()]] if len(rows) else rows
        return ReusedRows.of(rows.astype(np.int32), part[places[rows]], row[places[rows]], self._names)

    def _is_intact(self, part: int) -> bool:
        if part not in self._intact:
            folder = self._index / self._names[part]
            record = parts.read_record(folder)
            intact = record is not None and parts.is_intact(folder, record)
            try:  # object storage fetches and checks them here
                self._intact[part] = intact and len(open_embeddings(folder)) > 0
            except StoreError:
                self._intact[part] = False
        return self._intact[part]

    def _quarantined(self, part: int, rows: int) -> Mask:
        """Return which rows of a part belong to quarantined documents, (rows,): they have no embedding."""
        nothing = np.zeros(rows, bool)
        if not rows or self._all_live[part]:  # quarantined documents are never live
            return nothing
        folder = self._index / self._names[part]
        record = parts.read_record(folder)
        if record is None or not record.quarantined:
            return nothing
        documents = np.arange(rows) if record.rows == record.documents else parts.read_window_documents(folder)
        return np.isin(documents, record.quarantined)

    @cached_property
    def _all_live(self) -> list[bool]:
        """Whether all documents of each part are live."""
        live, ends = self._published.live, np.cumsum([part.documents for part in self._published.manifest.parts])
        return [bool(documents.all()) for documents in np.split(live, ends[:-1])]

    @cached_property
    def _table(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64], PartRowIds, PartRowIds] | None:
        """Both halves of the hashes, sorted, with the part and row of each text; equal texts in order of rows."""
        hashes = [_text_hashes(self._index / name) for name in self._names]
        numbers = np.concatenate([np.full(len(rows), part, np.int32) for part, rows in enumerate(hashes)])
        rows = np.concatenate([np.arange(len(rows), dtype=np.int32) for rows in hashes])
        whole = np.concatenate(hashes)
        encoded = np.concatenate([~self._quarantined(part, len(rows)) for part, rows in enumerate(hashes)])
        whole, numbers, rows = whole[encoded], numbers[encoded], rows[encoded]
        if not len(whole):
            return None
        order = np.lexsort((whole[:, 1], whole[:, 0]))
        return whole[order, 0], whole[order, 1], numbers[order], rows[order]


def _text_hashes(folder: Path) -> TextHashes:
    """Return the text hashes of a part; none if the file is damaged."""
    try:
        return parts.read_text_hashes(folder)
    except StoreError:
        return np.zeros((0, 2), np.uint64)


class ReuseInOrder:
    """Embeddings for a rebuild from an index's own live documents, in the order of their numbers: all are known.

    A part is verified before its first row is reused, so that damage is never published as valid data.
    """

    def __init__(self, published: PublishedIndex) -> None:
        self._index, manifest, numbering = published.index, published.manifest, published.numbering
        self._manifest = manifest
        self._hashes = dict[str, TextHashes]()  # of the part read last
        firsts = np.cumsum([0, *(part.rows for part in manifest.parts)])
        stored = np.arange(manifest.stored_rows) if numbering.stored_rows is None else numbering.stored_rows
        self._parts = (np.searchsorted(firsts, stored, side="right") - 1).astype(np.int32)
        self._rows = (stored - firsts[self._parts]).astype(np.int32)
        self._names = [part.name for part in manifest.parts]
        self._taken = 0

    def find(self, wanted: TextHashes) -> ReusedRows:
        """Return the next rows, one for each text.

        Raises MismatchError if their stored texts differ, CorruptIndexError naming a damaged file.
        """
        span = slice(self._taken, self._taken + len(wanted))
        self._taken += len(wanted)
        sources = self._rows[span]
        reused = ReusedRows.of(np.arange(len(sources), dtype=np.int32), self._parts[span], sources, self._names)
        if len(sources) != len(wanted) or not (self._stored_hashes(reused) == wanted).all():
            raise MismatchError(
                f"{self._index}: its texts are no longer cut into the stored windows: the version of tokenizers "
                f"({version_of('tokenizers')} here) or of this program differs. Fix: build the index again with "
                f"{as_argument('overwrite', True, 'RunOptions')}; embeddings of unchanged windows are reused."
            )
        return reused

    def _stored_hashes(self, reused: ReusedRows) -> TextHashes:
        hashes = np.empty((len(reused), 2), np.uint64)
        for name, rows, sources in reused.by_part:
            if name not in self._hashes:
                verify_parts(self._index, self._manifest, {name})
                self._hashes = {name: parts.read_text_hashes(self._index / name)}
            hashes[rows] = self._hashes[name][sources]
        return hashes
