"""Embeddings that an earlier generation already has, found by the hash of their text.

An upsert, a metadata edit or a line inserted at the top moves every part; the texts are still the same.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from indexer.pipeline.context import BuildContext
from indexer.store import parts

Numbers = npt.NDArray[np.int32]


@dataclass(frozen=True)
class KnownRows:
    """Rows of a part whose texts are those of rows `sources` of the complete parts `names[parts]`; (n,) each."""

    rows: Numbers
    parts: Numbers
    sources: Numbers
    names: list[str]

    def __len__(self) -> int:
        return len(self.rows)

    def by_part(self) -> Iterator[tuple[str, Numbers, Numbers]]:
        """(folder, rows here, rows there) for each part that rows are taken from."""
        for part in np.unique(self.parts):
            inside = self.parts == part
            yield self.names[part], self.rows[inside], self.sources[inside]


class TextReuse:
    """All texts of the published generation: 24 bytes a row in memory.

    Only published parts are looked at, never those of the build at work, so that an interrupted and continued
    build gives the same bytes as an uninterrupted one. Nothing is read before the first question.
    """

    def __init__(self, build: BuildContext) -> None:
        self._build = build

    def find(self, wanted: parts.TextHashes) -> KnownRows | None:
        """Which of some texts (n, 2) have been encoded before; None if none can have been.

        Nothing is known when nothing is published, or with another encoder or another storage type.
        """
        if self._table is None:
            return None
        upper, lower, part, row, names = self._table
        places = np.searchsorted(upper, wanted[:, 0])
        unsettled = np.arange(len(wanted))
        while len(unsettled):  # a second turn only where two texts share half of their hash
            unsettled = unsettled[places[unsettled] < len(upper)]
            unsettled = unsettled[upper[places[unsettled]] == wanted[unsettled, 0]]
            unsettled = unsettled[lower[places[unsettled]] != wanted[unsettled, 1]]
            places[unsettled] += 1
        inside = np.minimum(places, len(upper) - 1)
        rows = np.flatnonzero((upper[inside] == wanted[:, 0]) & (lower[inside] == wanted[:, 1]))
        return KnownRows(rows.astype(np.int32), part[places[rows]], row[places[rows]], names)

    @cached_property
    def _table(
        self,
    ) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64], Numbers, Numbers, list[str]] | None:
        """Both halves of the hashes, sorted, and the part and row each text is in; equal texts in order of rows."""
        build, published = self._build, self._build.published
        if published is None or published.fingerprint != build.fingerprint:
            return None
        if published.config["store"]["embeddings"] != build.config.store.embeddings:
            return None
        records = [(part.name, parts.read_record(build.index / part.name)) for part in published.parts]
        names = [name for name, record in records if record and parts.is_intact(build.index / name, record)]
        if not names:
            return None
        hashes = [parts.read_text_hashes(build.index / name) for name in names]
        numbers = np.concatenate([np.full(len(rows), part, np.int32) for part, rows in enumerate(hashes)])
        rows = np.concatenate([np.arange(len(rows), dtype=np.int32) for rows in hashes])
        whole = np.concatenate(hashes)
        order = np.lexsort((whole[:, 1], whole[:, 0]))
        return whole[order, 0], whole[order, 1], numbers[order], rows[order], names
