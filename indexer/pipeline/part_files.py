"""A part of a generation: its place, and the files that make it complete."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.chunking import Windows
from indexer.moments import Moments
from indexer.pipeline.reuse import KnownRows
from indexer.store import layout, parts
from indexer.store.files import FileStamp
from indexer.store.parts import TextHashes


@dataclass(frozen=True)
class PartSlot:
    """A part of this build. `record` is set when its embeddings are there already."""

    name: str  # folder, relative to the index
    documents: int
    rows: int
    document_key: str
    embedding_key: str
    schema: dict[str, Any]
    stamp: FileStamp  # of documents.parquet
    record: parts.PartRecord | None
    known: KnownRows | None = None  # rows whose embeddings an earlier generation has
    given: bool = False  # its embeddings came with the corpus, and were written now

    @property
    def missing(self) -> int:
        """Rows that are left to encode."""
        return 0 if self.record else self.rows - (len(self.known) if self.known else 0)


@dataclass(frozen=True)
class PartRows:
    """The rows of a part: text hashes (n, 2), tokens (n,) before truncation, embeddings (n, d) as they are stored."""

    hashes: TextHashes
    lengths: npt.NDArray[np.int32]
    embeddings: npt.NDArray[np.floating]
    windows: Windows | None = None  # which document each row is of; None: row i is document i
    truncated: int = 0
    without_tokens: int = 0


def complete_part(folder: Path, slot: PartSlot, rows: PartRows, fingerprint: str) -> parts.PartRecord:
    """Write all files of a part beside its documents, the record last."""
    stored = rows.embeddings
    files = {
        layout.DOCUMENTS: slot.stamp,
        layout.WINDOWS: parts.write_windows(folder, rows.hashes, rows.lengths, rows.windows),
        layout.EMBEDDINGS: parts.write_embeddings(folder, stored),
        layout.MOMENTS: parts.write_moments(folder, Moments.of(stored)),
    }
    record = parts.PartRecord(
        documents=slot.documents,
        rows=len(stored),
        dim=stored.shape[1],
        document_key=slot.document_key,
        embedding_key=slot.embedding_key,
        fingerprint=fingerprint,
        tokens=int(rows.lengths.sum()),
        truncated=rows.truncated,
        not_finite=int(np.count_nonzero(~np.isfinite(stored).all(axis=1))),
        zero=int(np.count_nonzero(~stored.any(axis=1))),
        schema=slot.schema,
        files=files,
        without_tokens=rows.without_tokens,
    )
    parts.write_record(folder, record)
    return record
