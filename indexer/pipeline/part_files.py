"""A part of a generation: its place, and the files that make it complete."""

from dataclasses import dataclass

from indexer.pipeline.reuse import KnownRows
from indexer.store import parts


@dataclass(frozen=True)
class PendingPart:
    """A part of this build. `record` is set when its embeddings are there already."""

    name: str  # folder, relative to the index
    written: parts.PartDocuments
    rows: int
    record: parts.PartRecord | None
    known: KnownRows | None = None  # rows whose embeddings an earlier generation has
    given: bool = False  # its embeddings came with the corpus, and were written now

    @property
    def documents(self) -> int:
        """Documents of the part."""
        return self.written.documents

    @property
    def missing(self) -> int:
        """Rows that are left to encode."""
        return 0 if self.record else self.rows - (len(self.known) if self.known else 0)
