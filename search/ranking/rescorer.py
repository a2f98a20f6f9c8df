"""A rescorer: orders hits by the vectors of a second encoder, made as documents are met and kept in its folder.

`vectors.sqlite` of the folder keeps the unit vector of each text that was scored, by the hash of the text. Several
processes may share it. If it cannot be written, vectors are kept in memory.
"""

import sqlite3
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from indexer.arrays import Float32Array, Float64Array
from indexer.encoders.load import open_encoder
from indexer.encoders.protocol import EncodeStats
from indexer.errors import ModelError
from indexer.hashing import hash_texts
from indexer.models.rescorer_spec import TRANSFORM, RescorerSpec
from indexer.recipe.run_options import RunOptions
from indexer.transforms import transform_from_bytes

VECTORS = "vectors.sqlite"
_ASKED = 500  # texts in one statement


class Rescorer:
    """A `Reranker` by the inner product of a second encoder's unit vectors. Safe to share between threads."""

    def __init__(self, spec: RescorerSpec, options: RunOptions) -> None:
        self.spec = spec.encoder
        self._encoder = open_encoder(spec.encoder, options)
        self._transform = transform_from_bytes((spec.folder / TRANSFORM).read_bytes(), str(spec.folder / TRANSFORM))
        if self._transform.input_dim != self._encoder.dim:
            raise ModelError(
                f"{spec.folder / TRANSFORM}: transforms {self._transform.input_dim} dimensions; expected "
                f"{self._encoder.dim}, those of {spec.encoder.model}."
            )
        self._kept = KeptVectors(spec.folder / VECTORS, self._transform.dim)

    @property
    def backend(self) -> str:
        """The backend and its number type."""
        return self._encoder.backend

    def scores(self, queries: Sequence[str], texts: Sequence[str], log: EncodeStats | None = None) -> Float64Array:
        """Return the inner products (n,) of queries and texts; `log` counts the encoded texts."""
        asked = list(dict.fromkeys(queries))
        embeddings = self._encoder.encode(asked, "query")
        vectors = dict(zip(asked, self._transform.transform(embeddings, "query").astype(np.float64), strict=True))
        documents = self._documents(list(dict.fromkeys(texts)), log)
        scores = [vectors[query] @ documents[text] for query, text in zip(queries, texts, strict=True)]
        return np.array(scores, np.float64)

    def _documents(self, texts: list[str], log: EncodeStats | None) -> dict[str, Float32Array]:
        keys = {text: row.tobytes() for text, row in zip(texts, hash_texts(texts), strict=True)}
        found = self._kept.read(keys.values())
        if missing := [text for text in texts if keys[text] not in found]:
            embeddings = self._encoder.encode(missing, "document", log)
            made = zip(missing, self._transform.transform(embeddings, "document"), strict=True)
            new = {keys[text]: vector for text, vector in made}
            self._kept.write(new)
            found |= new
        return {text: found[key] for text, key in keys.items()}


class KeptVectors:
    """Vectors (k,) by the hash of their text, in a database, and in memory if it cannot be written."""

    def __init__(self, file: Path, dim: int) -> None:
        self._file, self._bytes = file, 4 * dim
        self._memory: dict[bytes, Float32Array] = {}
        self._lock, self._of_thread = threading.Lock(), threading.local()

    def __len__(self) -> int:
        (count,) = self._database().execute("SELECT count(*) FROM vectors").fetchone()
        return int(count)

    def read(self, keys: Iterable[bytes]) -> dict[bytes, Float32Array]:
        """Return the vectors of the keys that are kept; a vector of another size is ignored."""
        wanted = list(keys)
        found = {key: self._memory[key] for key in wanted if key in self._memory}
        try:
            for start in range(0, len(wanted), _ASKED):
                some = wanted[start : start + _ASKED]
                marks = ", ".join("?" * len(some))
                rows = self._database().execute(f"SELECT key, vector FROM vectors WHERE key IN ({marks})", some)  # noqa: S608
                found |= {key: np.frombuffer(data, "<f4") for key, data in rows if len(data) == self._bytes}
        except sqlite3.Error:
            return found
        return found

    def write(self, vectors: dict[bytes, Float32Array]) -> None:
        """Keep vectors."""
        rows = [(key, np.ascontiguousarray(vector, "<f4").tobytes()) for key, vector in vectors.items()]
        try:
            with self._database() as database:
                database.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?)", rows)
        except sqlite3.Error:  # such as a folder that cannot be written, or a full disk
            with self._lock:
                self._memory |= vectors

    def _database(self) -> sqlite3.Connection:
        """Return the connection of this thread."""
        database: sqlite3.Connection | None = getattr(self._of_thread, "database", None)
        if database is None:
            database = sqlite3.connect(self._file, timeout=30)
            database.execute("CREATE TABLE IF NOT EXISTS vectors (key BLOB PRIMARY KEY, vector BLOB) WITHOUT ROWID")
            self._of_thread.database = database
        return database
