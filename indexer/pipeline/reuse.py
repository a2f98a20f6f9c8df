"""Embeddings that an earlier generation already has, found by the hash of their text.

An upsert, a metadata edit or a line inserted at the top moves every part; the texts are still the same.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from indexer.config import BuildConfig
from indexer.corpus.document import joined_text
from indexer.pipeline.ingest import BuildContext
from indexer.store import parts
from indexer.store.documents import read_documents


@dataclass(frozen=True)
class KnownRows:
    """Rows of a part whose texts are those of rows `sources` of the complete parts `names[parts]`; (n,) each."""

    rows: npt.NDArray[np.int64]
    parts: npt.NDArray[np.int64]
    sources: npt.NDArray[np.int64]
    names: list[str]

    def __len__(self) -> int:
        return len(self.rows)

    def by_part(self) -> Iterator[tuple[str, npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """(folder, rows here, rows there) for each part that rows are taken from."""
        for part in np.unique(self.parts):
            inside = self.parts == part
            yield self.names[part], self.rows[inside], self.sources[inside]


class TextReuse:
    """All texts of the published generation: 32 bytes a row in memory.

    Only published parts are looked at, never those of the build at work, so that an interrupted and continued
    build gives the same bytes as an uninterrupted one.
    """

    def __init__(self, hashes: parts.TextHashes, places: npt.NDArray[np.int64], names: list[str], config: BuildConfig):
        order = np.lexsort((hashes[:, 1], hashes[:, 0]))
        self._hashes, self._places, self._names, self._config = hashes[order], places[order], names, config

    @classmethod
    def of(cls, build: BuildContext) -> "TextReuse | None":
        """None when nothing is published, or with another encoder or another storage type."""
        published = build.published
        if published is None or published.fingerprint != build.fingerprint:
            return None
        if published.config["store"]["embeddings"] != build.config.store.embeddings:
            return None
        records = [(part.name, parts.read_record(build.index / part.name)) for part in published.parts]
        names = [name for name, record in records if record and parts.is_intact(build.index / name, record)]
        if not names:
            return None
        hashes = [parts.read_text_hashes(build.index / name) for name in names]
        places = [
            np.stack([np.full(len(rows), part), np.arange(len(rows))], axis=1) for part, rows in enumerate(hashes)
        ]
        return cls(np.concatenate(hashes), np.concatenate(places), names, build.config)

    def find(self, folder: Path) -> KnownRows:
        """The rows of the part in `folder` whose text has been encoded before."""
        wanted = parts.text_hashes(part_texts(folder, self._config))
        starts = np.searchsorted(self._hashes[:, 0], wanted[:, 0]).tolist()
        places = [self._place(text, start) for text, start in zip(wanted, starts, strict=True)]
        rows = np.array([row for row, place in enumerate(places) if place is not None], np.int64)
        found = np.array([place for place in places if place is not None], np.int64).reshape(-1, 2)
        return KnownRows(rows, found[:, 0], found[:, 1], self._names)

    def _place(self, wanted: npt.NDArray[np.uint64], start: int) -> npt.NDArray[np.int64] | None:
        while start < len(self._hashes) and self._hashes[start, 0] == wanted[0]:
            if self._hashes[start, 1] == wanted[1]:
                place: npt.NDArray[np.int64] = self._places[start]
                return place
            start += 1
        return None


def part_texts(folder: Path, config: BuildConfig) -> list[str]:
    """The texts of a part as they are encoded, in row order."""
    return [joined_text(document, config.corpus.text) for document in read_documents(folder)]
