"""The peer of `benchmarks.query`: the usual script of sentence-transformers and FAISS."""

import json
import sys
import time
from pathlib import Path
from typing import Any

MAX_LENGTH = 256
_VECTORS = "vectors.faiss"
_TEXTS = "texts.json"


def write_pieces(folder: Path, vectors: Any, texts: list[str]) -> None:
    """Write the files of the script: a flat index of `vectors` (n, k) and the texts of its rows."""
    import faiss

    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    faiss.write_index(index, str(folder / _VECTORS))
    (folder / _TEXTS).write_text(json.dumps(texts), encoding="utf-8")


class Script:
    """sentence-transformers, a flat FAISS index and a list of texts."""

    def __init__(self, model: str, folder: str, threads: int) -> None:
        import faiss
        import torch
        from sentence_transformers import SentenceTransformer

        torch.set_num_threads(threads)
        faiss.omp_set_num_threads(1)
        self._model = SentenceTransformer(model, device="cpu", local_files_only=True)
        self._model.max_seq_length = MAX_LENGTH
        self._index = faiss.read_index(str(Path(folder) / _VECTORS))
        self._texts = json.loads((Path(folder) / _TEXTS).read_text(encoding="utf-8"))

    def search(self, queries: list[str], k: int) -> list[list[tuple[float, str]]]:
        """Return the k best (score, text) of each query."""
        vectors = self._model.encode(queries, normalize_embeddings=True, show_progress_bar=False)
        vectors = vectors[:, : self._index.d]  # whitening may have dropped directions; any will do here
        if vectors.shape[1] < self._index.d:
            raise ValueError(f"the model has {vectors.shape[1]} dimensions, expected at least {self._index.d}")
        scores, rows = self._index.search(vectors.copy(), k)
        return [
            [(float(score), self._texts[row]) for score, row in zip(*hits, strict=True)]
            for hits in zip(scores, rows, strict=True)
        ]

    def timed(self, queries: list[str], k: int) -> float:
        """Return the seconds of one search."""
        start = time.perf_counter()
        self.search(queries, k)
        return time.perf_counter() - start


def main() -> None:
    """Run the script once, with arguments MODEL FOLDER THREADS K TEXT."""
    model, folder, threads, k, query = sys.argv[1:]
    for score, text in Script(model, folder, int(threads)).search([query], int(k))[0]:
        print(f"{score:.3f}  {text[:160]}")


if __name__ == "__main__":
    main()
