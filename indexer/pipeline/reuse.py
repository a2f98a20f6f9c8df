"""Embeddings that an earlier generation already has, found by the hash of their text.

An upsert, a metadata edit or a line inserted at the top moves every part; the texts are still the same.
"""

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
class KnownRow:
    """Row `row` of a part has the text of row `source` of the complete part in `folder`."""

    row: int
    folder: str
    source: int


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

    def find(self, folder: Path) -> tuple[KnownRow, ...]:
        """The rows of the part in `folder` whose text has been encoded before."""
        wanted = parts.text_hashes(part_texts(folder, self._config))
        starts = np.searchsorted(self._hashes[:, 0], wanted[:, 0])
        places = [self._place(text, start) for text, start in zip(wanted, starts.tolist(), strict=True)]
        return tuple(
            KnownRow(row, self._names[place[0]], int(place[1])) for row, place in enumerate(places) if place is not None
        )

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
