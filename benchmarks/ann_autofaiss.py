"""A process for the Python with autofaiss: it builds an index of vectors.npy, then answers on standard input.

    python ann_autofaiss.py FOLDER MEMORY_BYTES THREADS

FOLDER contains vectors/vectors.npy and queries.npy. The process prints one JSON object when the index is ready, and one
for each call: {"set": parameters} or {"search": true}, which writes found.npy. It imports nothing of Isotrope.
"""

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

DEPTH = 10


def main() -> None:
    folder, memory, threads = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    with contextlib.redirect_stdout(sys.stderr):
        import autofaiss
        import faiss
        import numpy as np

        started = time.perf_counter()
        index, _ = autofaiss.build_index(
            embeddings=str(folder / "vectors"),
            save_on_disk=False,
            max_index_memory_usage=f"{memory / 1e6:.0f}MB",
            metric_type="ip",
            nb_cores=threads,
            verbose=30,
        )
        seconds = time.perf_counter() - started
        faiss.omp_set_num_threads(threads)
        stored = len(faiss.serialize_index(index))
        queries = np.load(folder / "queries.npy")
    answer({"bytes": stored, "seconds": seconds, "chosen": _name(faiss, index), "settings": _settings(faiss, index)})
    for line in sys.stdin:
        call: dict[str, Any] = json.loads(line)
        if "set" in call:
            faiss.ParameterSpace().set_index_parameters(index, call["set"])
            answer({})
            continue
        started = time.perf_counter()
        _, rows = index.search(queries, DEPTH)
        seconds = time.perf_counter() - started
        np.save(folder / "found.npy", rows)
        answer({"seconds": seconds})


def answer(value: dict[str, Any]) -> None:
    os.write(1, (json.dumps(value) + "\n").encode())


def _inner(faiss: Any, index: Any) -> Any:
    inner = faiss.downcast_index(index)
    while hasattr(inner, "base_index") or isinstance(inner, faiss.IndexPreTransform):
        inner = faiss.downcast_index(inner.index if isinstance(inner, faiss.IndexPreTransform) else inner.base_index)
    return inner


def _name(faiss: Any, index: Any) -> str:
    inner = _inner(faiss, index)
    more = f", nlist {inner.nlist}" if hasattr(inner, "nlist") else ""
    return f"{type(inner).__name__}{more}"


def _settings(faiss: Any, index: Any) -> list[str]:
    inner = _inner(faiss, index)
    if hasattr(inner, "nprobe"):
        return [f"nprobe={2**step}" for step in range(12) if 2**step <= inner.nlist]
    if hasattr(inner, "hnsw"):
        return [f"efSearch={reach}" for reach in (16, 32, 64, 128, 256, 512, 1024)]
    return [""]


if __name__ == "__main__":
    main()
