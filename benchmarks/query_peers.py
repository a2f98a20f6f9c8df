"""What a search is compared with: the same pieces put together by hand, and the script that most people write."""

import json
import sys
import time
from pathlib import Path
from typing import Any

MAX_LENGTH = 256
_VECTORS = "vectors.faiss"
_TEXTS = "texts.json"


def write_pieces(folder: Path, vectors: Any, texts: list[str]) -> None:
    """The files the script reads: a flat index of `vectors` (n, k) and the texts of its rows."""
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
        """The k best of each query: (score, text)."""
        vectors = self._model.encode(queries, normalize_embeddings=True, show_progress_bar=False)
        vectors = vectors[:, : self._index.d]  # whitening may have dropped directions; which does not matter here
        if vectors.shape[1] < self._index.d:
            raise ValueError(f"the model gives {vectors.shape[1]} dimensions, the index has {self._index.d}")
        scores, rows = self._index.search(vectors.copy(), k)
        return [
            [(float(score), self._texts[row]) for score, row in zip(*found, strict=True)]
            for found in zip(scores, rows, strict=True)
        ]

    def timed(self, queries: list[str], k: int) -> float:
        """Seconds of one search."""
        start = time.perf_counter()
        self.search(queries, k)
        return time.perf_counter() - start


def main() -> None:
    """MODEL FOLDER THREADS K TEXT: the script, run once from the start."""
    model, folder, threads, k, text = sys.argv[1:]
    for score, found in Script(model, folder, int(threads)).search([text], int(k))[0]:
        print(f"{score:.3f}  {found[:160]}")


if __name__ == "__main__":
    main()
