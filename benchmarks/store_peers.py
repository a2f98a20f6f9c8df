"""The stores of `benchmarks.stores`, with their default settings. `Run` opens one of them in a process.

A store keeps documents of an id, a text, a number `part` and a vector. It imports its library when it is built, so this
module runs in an environment without Isotrope. The numbers of found documents are their ids.
"""

import json
import time
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

DEPTH = 10
Rows = npt.NDArray[np.float32]


class Store(Protocol):
    """Documents with vectors in a folder."""

    def __init__(self, folder: Path, texts: list[str], parts: list[int], vectors: Rows) -> None: ...

    def search(self, vector: Rows, part: int | None) -> list[int]:
        """Return the numbers of the ten nearest documents, of one part only unless it is None."""
        ...


class Isotrope:
    """An index of given vectors, not whitened."""

    def __init__(self, folder: Path, texts: list[str], parts: list[int], vectors: Rows) -> None:
        from search import SearchEngine

        rows = [
            {"id": str(n), "text": text, "part": part} for n, (text, part) in enumerate(zip(texts, parts, strict=True))
        ]
        self._engine = SearchEngine.from_texts(rows, folder / "index", vectors=vectors)

    def search(self, vector: Rows, part: int | None) -> list[int]:
        """Return the nearest documents."""
        where = None if part is None else {"part": part}
        return [int(hit.id) for hit in self._engine.search_vectors(vector, k=DEPTH, where=where)[0]]


class Faiss:
    """A flat index, a file of texts, and an array of parts to select rows by."""

    def __init__(self, folder: Path, texts: list[str], parts: list[int], vectors: Rows) -> None:
        self._faiss: Any = import_module("faiss")
        self._index, self._parts = self._faiss.IndexFlatIP(vectors.shape[1]), np.array(parts)
        self._index.add(vectors)
        self._faiss.write_index(self._index, str(folder / "vectors.faiss"))
        self._texts = texts
        (folder / "texts.json").write_text(json.dumps([texts, parts]), encoding="utf-8")

    def search(self, vector: Rows, part: int | None) -> list[int]:
        """Return the nearest documents."""
        chosen = None
        if part is not None:
            rows = np.flatnonzero(self._parts == part)
            chosen = self._faiss.SearchParameters(sel=self._faiss.IDSelectorBatch(rows))
        found: list[int] = self._index.search(vector[None], DEPTH, params=chosen)[1][0].tolist()
        return found


class Chroma:
    """A persistent collection with Chroma's HNSW index."""

    def __init__(self, folder: Path, texts: list[str], parts: list[int], vectors: Rows) -> None:
        chromadb: Any = import_module("chromadb")
        client = chromadb.PersistentClient(str(folder), chromadb.Settings(anonymized_telemetry=False))
        self._collection = client.create_collection("texts", configuration={"hnsw": {"space": "ip"}})
        size = client.get_max_batch_size()
        for start in range(0, len(texts), size):
            rows = range(start, min(start + size, len(texts)))
            self._collection.add(
                [str(row) for row in rows],
                vectors[rows.start : rows.stop],
                [{"part": parts[row]} for row in rows],
                texts[rows.start : rows.stop],
            )

    def search(self, vector: Rows, part: int | None) -> list[int]:
        """Return the nearest documents."""
        where = None if part is None else {"part": part}
        return [int(id_) for id_ in self._collection.query(vector[None], n_results=DEPTH, where=where)["ids"][0]]


class LanceDB:
    """A table without an index of vectors, as its makers advise below 100,000 rows."""

    def __init__(self, folder: Path, texts: list[str], parts: list[int], vectors: Rows) -> None:
        import pyarrow as pa

        lancedb: Any = import_module("lancedb")
        flat = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
        ids = pa.array(range(len(texts)))
        self._table = lancedb.connect(str(folder)).create_table(
            "texts", pa.table({"id": ids, "text": texts, "part": parts, "vector": flat})
        )

    def search(self, vector: Rows, part: int | None) -> list[int]:
        """Return the nearest documents."""
        query = self._table.search(vector).distance_type("dot").limit(DEPTH)
        if part is not None:
            query = query.where(f"part = {part}", prefilter=True)
        return [row["id"] for row in query.select(["id", "text"]).to_list()]


class Txtai:
    """An embeddings database with content; texts are looked up in a table of vectors in place of a model."""

    def __init__(self, folder: Path, texts: list[str], parts: list[int], vectors: Rows) -> None:
        self._known = {f"{row} {text}": vectors[row] for row, text in enumerate(texts)}
        self._database: Any = import_module("txtai").Embeddings(
            method="external", transform=lambda texts: self._vectors(texts), content=True
        )
        self._database.index((n, {"text": f"{n} {text}", "part": part}, None) for n, (text, part) in
                             enumerate(zip(texts, parts, strict=True)))  # fmt: skip
        self._database.save(str(folder / "index"))

    def _vectors(self, texts: list[str]) -> Rows:
        return np.stack([self._known[text] for text in texts])

    def search(self, vector: Rows, part: int | None) -> list[int]:
        """Return the nearest documents."""
        self._known["query"] = vector
        condition = "" if part is None else f" and part = {part}"
        query = f"select id, text from txtai where similar('query'){condition}"  # noqa: S608 - `part` is a number
        found = self._database.search(query, DEPTH)
        return [int(row["id"]) for row in found]


STORES: dict[str, type[Store]] = {
    "Isotrope": Isotrope, "FAISS": Faiss, "Chroma": Chroma, "LanceDB": LanceDB, "txtai": Txtai,
}  # fmt: skip


class Run:
    """A store in this process, with the CPU seconds that it takes."""

    def __init__(self, name: str, folder: str, data: str) -> None:
        arrays = np.load(data)
        texts = json.loads(Path(data).with_suffix(".json").read_text(encoding="utf-8"))
        self._queries, parts = arrays["queries"], arrays["parts"].tolist()
        STORES[name](Path(folder) / "warm-up", texts[:500], parts[:500], arrays["vectors"][:500])
        started = time.process_time()
        self._store = STORES[name](Path(folder) / "whole", texts, parts, arrays["vectors"])
        self.seconds = time.process_time() - started

    def built(self) -> float:
        """CPU seconds of the build."""
        return self.seconds

    def answered(self, is_filtered: bool) -> tuple[list[list[int]], float]:
        """Return the documents found for each query, and the CPU seconds of all; the part of query n is n % 10."""
        parts = [number % DEPTH if is_filtered else None for number in range(len(self._queries))]
        self._store.search(self._queries[0], parts[0])
        started = time.process_time()
        found = [self._store.search(query, part) for query, part in zip(self._queries, parts, strict=True)]
        return found, time.process_time() - started
