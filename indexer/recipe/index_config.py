"""Settings of the FAISS index and of the index directory."""

import re
from dataclasses import dataclass
from typing import Literal

from indexer.errors import ConfigError
from indexer.typed_arguments import checked

MOST_IN_A_PART = 1_000_000  # documents: memory holds whole parts


@checked
@dataclass(frozen=True)
class IndexConfig:
    """The FAISS index."""

    type: str = "auto"
    """Kind of index: "auto" is exact for a small corpus, and otherwise chosen by measuring on the corpus; "flat" is
    exact; any other value is a FAISS factory string, such as "IVF4096,SQ8"."""
    recall: float = 0.95
    """Recall@10 that an approximate index must reach, above 0 and at most 1."""
    memory: str = "0"
    """Limit on the memory of all vectors and links when searching, such as "8G"; K, M, G and T are powers of 1024, and
    a number alone is bytes. "0": no limit."""
    queries: str = ""
    """File of real queries, one per line, to measure recall with. Empty: documents with added noise."""
    segment_rows: int = 0
    """Approximate number of rows in a segment, in whole parts. 0: one segment."""

    def __post_init__(self) -> None:
        if not self.type.strip():
            raise ConfigError('index.type is empty; expected "auto", "flat" or a FAISS factory string.')
        if not 0.0 < self.recall <= 1.0:
            raise ConfigError(f"index.recall is {self.recall}; expected more than 0 and at most 1.")
        if not re.fullmatch(r"\d+(\.\d+)?[KMGT]?", self.memory):
            raise ConfigError(f'index.memory is "{self.memory}"; expected a size such as "512M" or "8G", or "0".')
        if self.segment_rows < 0:
            raise ConfigError(f"index.segment_rows is {self.segment_rows}; expected 1 or more, or 0 for one segment.")

    @property
    def memory_bytes(self) -> int:
        """`memory` in bytes; K, M, G and T are powers of 1024. 0: no limit."""
        number = self.memory.rstrip("KMGT")
        return int(float(number) * 1024 ** " KMGT".index(self.memory[len(number) :] or " "))


PART_BYTES = 64 << 20  # of text in a part of several documents; fixed, because indexes store where parts end


@checked
@dataclass(frozen=True)
class StoreConfig:
    """The index directory."""

    part_documents: int = 8192
    """Most documents in a part, 1 to 1,000,000. A part of several documents has at most 64 MiB of text."""
    embeddings: Literal["float32", "float16"] = "float32"
    """Type of the stored embeddings. Vectors are float32 in both cases."""

    def __post_init__(self) -> None:
        if not 1 <= self.part_documents <= MOST_IN_A_PART:
            raise ConfigError(f"store.part_documents is {self.part_documents}; expected 1 to {MOST_IN_A_PART:,}.")
