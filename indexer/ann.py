"""The only door to FAISS: make, train, add, search, save, load.

Scores are inner products of unit vectors; higher is closer. Rows are positions within one index object.
"""

import importlib.metadata
import re
from types import ModuleType
from typing import IO, Any, Protocol

import numpy as np
import numpy.typing as npt

from indexer.errors import ConfigError, CorruptIndexError, MachineError

Vectors = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]
Found = tuple[npt.NDArray[np.float32], Rows]  # scores and rows of one query
_WHEELS = ("faiss-cpu", "faiss-gpu", "faiss-gpu-cuvs")
_USUAL_DIMENSIONS = (384, 768, 1024, 960)
_SPARE = 16  # candidates beyond k, so that equal scores at the cut can be ordered by the caller


class Reader(Protocol):
    """What `load_index` reads from."""

    def read(self, size: int) -> bytes: ...


def require_faiss() -> ModuleType:
    """The module `faiss`. Raises MachineError unless exactly one wheel provides it."""
    found = [name for name in _WHEELS if _installed(name)]
    if len(found) > 1:
        raise MachineError(
            f"{' and '.join(found)} are both installed; they provide the same module and overwrite each other. "
            f"Run: pip uninstall -y {' '.join(found)}, then one of: pip install 'isotrope[cpu]' or 'isotrope[gpu]'."
        )
    try:
        import faiss
    except ImportError as error:
        raise MachineError(
            f"FAISS is not installed or cannot be loaded ({error}). "
            "Run: pip install 'isotrope[cpu]' (or 'isotrope[gpu]' on Linux with CUDA)."
        ) from error
    module: ModuleType = faiss
    return module


def factory_of(index_type: str) -> str:
    """The FAISS factory string behind `index.type`."""
    return "Flat" if index_type in ("auto", "flat") else index_type


def is_exact(factory: str) -> bool:
    """Whether an index of this kind compares a query with every vector as it is."""
    return factory == "Flat"


def make_index(factory: str, dim: int) -> Any:
    """An empty, untrained inner-product index. Raises ConfigError naming a factory string FAISS refuses."""
    faiss = require_faiss()
    if "IDMap" in factory or re.search(r"(?<!\d)0(?!\d)|HNSW1(?!\d)", factory):
        # FAISS accepts these strings; then it refuses vectors without ids of their own, or kills the process.
        raise ConfigError(
            f'index.type "{factory}" cannot be used: rows are numbered by the index directory (no IDMap), no size '
            "may be 0, and HNSW needs at least 2 links."
        )
    try:
        index = faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT)
    except (RuntimeError, MemoryError) as error:
        raise ConfigError(
            f'index.type "{factory}" is not a FAISS factory string for {dim} dimensions: {_reason(error)}. '
            'Use "flat", or a factory string such as "IVF256,Flat" or "HNSW32".'
        ) from error
    if index.metric_type != faiss.METRIC_INNER_PRODUCT:
        raise ConfigError(f'index.type "{factory}" does not rank by inner product; choose another.')
    return index


def require_factory(factory: str, dim: int) -> None:
    """Refuse a factory string that FAISS takes for no usual size; `dim` is 0 while the size is not known."""
    sizes = (dim,) if dim else _USUAL_DIMENSIONS
    for size in sizes:
        try:
            make_index(factory, size)
        except ConfigError:
            if size == sizes[-1]:
                raise
        else:
            return


def train_index(index: Any, sample: Vectors) -> None:
    """Train on a sample of vectors (n, k), if the kind of index needs it."""
    if index.is_trained:
        return
    try:
        index.train(np.ascontiguousarray(sample))
    except RuntimeError as error:
        raise ConfigError(
            f"the index cannot be trained on {len(sample):,} vectors: {_reason(error)}. "
            'Choose a smaller index.type, or "flat".'
        ) from error


def add_vectors(index: Any, vectors: Vectors) -> None:
    """Append vectors (n, k). FAISS would drop rows that are not finite without a word, so they are refused."""
    index.add(require_finite(vectors))


def require_finite(vectors: Vectors) -> Vectors:
    """The vectors (n, k) as an index stores them. Raises ConfigError for NaN and infinity."""
    if not np.isfinite(vectors).all():
        raise ConfigError("vectors that are not finite (NaN or infinity) cannot be added to an index.")
    return np.ascontiguousarray(vectors, dtype=np.float32)


def search_index(index: Any, queries: Vectors, k: int) -> list[Found]:
    """For each query row, the best `k` rows of the index and all that tie with the k-th, best first.

    Returns (scores, rows) a query; fewer than k only when there are no more. On an exact index each score is
    the float64 dot product rounded to float32, because FAISS's own last bits depend on how many queries come
    at once; so one query and a batch of queries give the same answer. k must be at least 1.
    """
    if k < 1:
        raise ConfigError(f"k is {k}; expected at least 1.")
    wanted = min(k, index.ntotal)
    if wanted == 0 or not len(queries):
        return [(np.zeros(0, np.float32), np.zeros(0, np.int64)) for _ in queries]
    before = search_parameters(index)
    try:
        return _search_until_full(index, queries, wanted)
    finally:
        set_search_parameters(index, before)


def _search_until_full(index: Any, queries: Vectors, wanted: int) -> list[Found]:
    """Search; those queries that may have missed a row, or got too few, again with more reach."""
    results: dict[int, Found] = {}
    pending, reach, widest = list(range(len(queries))), min(wanted + _SPARE, index.ntotal), False
    while pending:
        scores, rows = index.search(np.ascontiguousarray(queries[pending], dtype=np.float32), reach)
        again, short = [], False
        for position, query in enumerate(pending):
            found = rows[position] >= 0  # FAISS pads with -1
            best = _scored(index, queries[query], scores[position][found], rows[position][found])
            short |= len(best[0]) < wanted
            more = found.all() and reach < index.ntotal and _may_miss(index, scores[position][-1], best[0], wanted)
            if more or (len(best[0]) < wanted and not widest):
                again.append(query)
            keep = best[0] >= best[0][min(wanted, len(best[0])) - 1] if len(best[0]) else slice(0)
            results[query] = (best[0][keep], best[1][keep])
        if short:
            widest = not widen_search(index)
        pending, reach = again, reach if short else min(4 * reach, index.ntotal)
    return [results[query] for query in range(len(queries))]


def search_parameters(index: Any) -> dict[str, int]:
    """The setting that trades speed for recall, if the index has one: nprobe (IVF) or efSearch (HNSW)."""
    inner = _innermost(index)
    if hasattr(inner, "nprobe"):
        return {"nprobe": int(inner.nprobe)}
    if hasattr(inner, "hnsw"):
        return {"efSearch": int(inner.hnsw.efSearch)}
    return {}


def set_search_parameters(index: Any, parameters: dict[str, int]) -> None:
    """Apply what `search_parameters` gave, or a manifest holds."""
    inner = _innermost(index)
    if "nprobe" in parameters:
        inner.nprobe = parameters["nprobe"]
    if "efSearch" in parameters:
        inner.hnsw.efSearch = parameters["efSearch"]


def widen_search(index: Any) -> bool:
    """Double the search parameter; False when the index has none or it is at its largest."""
    inner = _innermost(index)
    for name, value in search_parameters(index).items():
        largest = inner.nlist if name == "nprobe" else index.ntotal
        if value < largest:
            set_search_parameters(index, {name: min(2 * value, largest)})
            return True
    return False


def _innermost(index: Any) -> Any:
    """The index inside the wrappers that a factory string puts around it."""
    import faiss  # there is an index, so `require_faiss` has passed; looking for wheels takes a millisecond

    inner = faiss.downcast_index(index)
    while isinstance(inner, faiss.IndexPreTransform | faiss.IndexRefine):
        inner = faiss.downcast_index(inner.index if isinstance(inner, faiss.IndexPreTransform) else inner.base_index)
    return inner


def vectors_at(index: Any, rows: Rows) -> Vectors:
    """The stored vectors of the given rows, (n, k); exact for a flat index."""
    vectors: Vectors = index.reconstruct_batch(np.ascontiguousarray(rows, dtype=np.int64))
    return vectors


def save_index(index: Any, file: IO[bytes]) -> None:
    """Write in FAISS's own format through `file`, which does the hashing and syncing (FAISS does neither)."""
    faiss = require_faiss()
    writer = faiss.PyCallbackIOWriter(file.write, 1 << 22)
    faiss.write_index(index, writer)
    del writer  # flushes


def load_index(file: Reader, where: str) -> Any:
    """Read an index from bytes that are checked as they are read. `where` names the file in errors."""
    faiss = require_faiss()
    failures: list[Exception] = []

    def read(size: int) -> bytes:
        try:
            return file.read(size)
        except Exception as error:
            failures.append(error)  # C++ would turn it into a message without a type
            raise

    try:
        return faiss.read_index(faiss.PyCallbackIOReader(read, 1 << 22))
    except (RuntimeError, MemoryError) as error:
        if failures:
            raise failures[0] from None
        raise CorruptIndexError(f"{where}: FAISS cannot read it: {_reason(error)}.") from error


def set_threads(count: int) -> None:
    """Threads FAISS uses for one call."""
    require_faiss().omp_set_num_threads(count)


def _scored(
    index: Any, query: Vectors, scores: npt.NDArray[np.float32], rows: Rows
) -> tuple[npt.NDArray[np.float32], Rows]:
    if _is_flat(index) and len(rows):
        exact = vectors_at(index, rows).astype(np.float64) @ query.astype(np.float64)
        scores = exact.astype(np.float32)
    order = np.lexsort((rows, -scores))
    return scores[order], rows[order]


def _may_miss(index: Any, last: float, scores: npt.NDArray[np.float32], wanted: int) -> bool:
    """Whether rows beyond those FAISS gave could still belong to the best `wanted`, or tie with the last of them.

    `last` is the lowest score FAISS gave. A float32 sum of d products of unit vectors is wrong by at most
    d * 2**-24, for the row that was given and for the one that was not.
    """
    if len(scores) <= wanted:
        return False
    rounding = index.d * 2.0**-23 if _is_flat(index) else 0.0
    return bool(last >= scores[wanted - 1] - rounding)


def _is_flat(index: Any) -> bool:
    return type(index).__name__ in ("IndexFlat", "IndexFlatIP")  # as the factory makes it, and as a file holds it


def _installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _reason(error: BaseException) -> str:
    """The sentence in a FAISS error, without its C++ location."""
    last = str(error).strip().splitlines()[-1]
    return re.sub(r"^Error in .* at \S+:\d+: ", "", last).split("Error: ")[-1].rstrip(".")
