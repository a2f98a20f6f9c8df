"""FAISS itself: imported only here; its index objects unwrapped, saved, loaded and moved to a GPU.

A factory string wraps the searched index in layers. Files have FAISS's own format, pass through readers and writers
that hash and sync, and always contain CPU indexes. Threads are used only where they are useful and leave the result
unchanged.
"""

import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import IO, Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from indexer.ann.blas import fitting_kernels
from indexer.arrays import Vectors
from indexer.errors import CorruptIndexError, MachineError, as_argument
from indexer.lazy_imports import install_line
from indexer.system.child_process import call_in_child
from indexer.system.versions import named_version

_MATRIX_QUERIES = 3
_WHEELS = ("faiss-cpu", "faiss-gpu", "faiss-gpu-cuvs")
_MANY_CENTROIDS = 1024  # k-means with fewer takes seconds
_NO_LIMIT = 1 << 40  # bytes of one array; FAISS's own limit
_LENGTH_BYTES = 8  # of an array's length in a file
_PIECE = 1 << 22  # bytes that FAISS reads or writes at a time, at most
MOST_ROWS = 2048  # that FAISS returns for a query on a GPU
_known: WeakKeyDictionary[Any, tuple[Any, ...]] = WeakKeyDictionary()  # unwrapping takes as long as a small search


def import_faiss() -> ModuleType:
    """Return the module `faiss`. Raises MachineError unless exactly one wheel provides it."""
    wheels = [name for name in _WHEELS if named_version(name)]
    if len(wheels) > 1:
        raise MachineError(
            f"{' and '.join(wheels)} are both installed; they provide the same module and overwrite each other. "
            f"Run: pip uninstall -y {' '.join(wheels)}, then: {install_line('cpu')}, or: {install_line('gpu')}."
        )
    try:
        return faiss_module()
    except ImportError as error:
        raise MachineError(
            f"FAISS is not installed or cannot be loaded ({error}). "
            f"Run: {install_line('cpu')}, or on Linux with CUDA: {install_line('gpu')}."
        ) from error


def faiss_module() -> ModuleType:
    """Return the module `faiss` without looking for wheels (1 ms); for code that already has an index."""
    if "faiss" not in sys.modules:
        with fitting_kernels():
            import_module("faiss")
    import faiss  # waits if another thread is importing it

    return faiss


def prefer_matrix_products(dim: int) -> None:
    """Make FAISS compare three or more queries with whole vectors by matrix products, fewer one by one.

    By default it does so from 128,000 values on, which is 333 queries of 384 dimensions. That takes about three times
    as long for 8 to 300 queries, and for training product quantizers.
    """
    faiss_module().cvar.distance_compute_blas_threshold = _MATRIX_QUERIES * dim


def set_threads(count: int) -> None:
    """Set the threads that FAISS uses for calls from this thread. FAISS must be installed."""
    faiss_module().omp_set_num_threads(count)


def faiss_threads() -> int:
    """Return the threads that FAISS uses for calls from this thread."""
    return int(faiss_module().omp_get_max_threads())


def faiss_message(error: BaseException) -> str:
    """Return the sentence in a FAISS error, without its C++ location."""
    last = str(error).strip().splitlines()[-1]
    return re.sub(r"^Error in .* at \S+:\d+: ", "", last).split("Error: ")[-1].rstrip(".")


@contextmanager
def single_faiss_thread() -> Iterator[None]:
    """Within the block, FAISS uses one thread."""
    faiss = faiss_module()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def training_threads(index: Any) -> AbstractContextManager[None]:
    """Train with one thread, unless there are many inverted lists to find centroids for.

    Product quantizers consist of many small k-means, in which threads mostly wait for each other (20 times the CPU time
    with two threads). LAPACK's last bits, for PCA and OPQ, depend on the number of threads.
    """
    faiss = faiss_module()
    rotated = any(isinstance(layer, faiss.IndexPreTransform) for layer in unwrap(index))
    many = getattr(innermost(index), "nlist", 1) >= _MANY_CENTROIDS and not rotated
    return nullcontext() if many else single_faiss_thread()


def adding_threads(index: Any) -> AbstractContextManager[None]:
    """Add with one thread to graphs whose links depend on the order of threads: NSG, and HNSW before 1.15."""
    ordered = hasattr(innermost(index), "hnsw") and hasattr(faiss_module().HNSW, "merge_reverse_links_deterministic")
    return single_faiss_thread() if is_graph(index) and not ordered else nullcontext()


def unwrap(index: Any) -> tuple[Any, ...]:
    """Return the index and the layers inside it, outermost first. `index` owns them."""
    if index not in _known:
        layers = [] if is_on_gpu(index) else [faiss_module().downcast_index(index)]
        while layers and (inside := _wrapped(faiss_module(), layers[-1])) is not None:
            layers.append(faiss_module().downcast_index(inside))
        _known[index] = tuple(layers)
    return _known[index]


def innermost(index: Any) -> Any:
    """Return the index inside the wrappers."""
    return (unwrap(index) or (index,))[-1]


def refine_layer(index: Any) -> Any | None:
    """Return the IndexRefine among the layers, which rescores candidates with finer or unquantised vectors."""
    faiss = faiss_module()
    return next((layer for layer in unwrap(index) if isinstance(layer, faiss.IndexRefine)), None)


def kind_of(index: Any) -> tuple[str, ...]:
    """Return the class names of the layers, outermost first."""
    return tuple(type(layer).__name__ for layer in unwrap(index))


def apply_pretransforms(index: Any, queries: Vectors) -> tuple[Any, Vectors]:
    """Return the index behind outermost IndexPreTransforms, and the queries (n, d) as it receives them."""
    layers = unwrap(index)
    count = next((place for place, layer in enumerate(layers) if not _is_pretransform(layer)), 0)
    return (layers[count], pretransformed(layers[:count], queries)) if count else (index, queries)


def pretransformed(layers: Iterable[Any], vectors: Vectors) -> Vectors:
    """Return vectors (n, d) as the index behind some IndexPreTransforms receives them."""
    for layer in layers:
        for number in range(layer.chain.size()):
            vectors = layer.chain.at(number).apply(np.ascontiguousarray(vectors, dtype=np.float32))
    return vectors


def _is_pretransform(layer: Any) -> bool:
    return isinstance(layer, faiss_module().IndexPreTransform)


def storage_of(index: Any) -> Any | None:
    """Return the index in an IndexRefine or graph that stores every row's vector, possibly quantised, by row."""
    faiss, layer = faiss_module(), faiss_module().downcast_index(index)
    store = layer.refine_index if isinstance(layer, faiss.IndexRefine) else getattr(layer, "storage", None)
    return None if store is None else faiss.downcast_index(store)


def is_on_gpu(index: Any) -> bool:
    """Whether this is a GPU index of FAISS."""
    return type(index).__name__.startswith("Gpu")


def is_graph(index: Any) -> bool:
    """Whether a search walks a graph of rows: HNSW, NSG and the like."""
    return hasattr(innermost(index), "storage")


def has_lists(index: Any) -> bool:
    """Whether a search probes some of several inverted lists."""
    return bool(getattr(innermost(index), "nlist", 1) > 1)


def is_flat(index: Any) -> bool:
    """Whether the index stores unquantised vectors and compares a query with each."""
    return type(index).__name__ in ("IndexFlat", "IndexFlatIP")  # from the factory, and from a file


def _wrapped(faiss: Any, layer: Any) -> Any | None:
    if isinstance(layer, faiss.IndexPreTransform):
        return layer.index
    return layer.base_index if isinstance(layer, faiss.IndexRefine) else None


class Reader(Protocol):
    """The input of `load_index`."""

    def read(self, size: int, /) -> bytes: ...

    def seek(self, offset: int, /) -> int: ...


def save_index(index: Any, file: IO[bytes]) -> None:
    """Write in FAISS's own format through `file`, which hashes and syncs (FAISS does neither)."""
    faiss = import_faiss()
    writer = faiss.PyCallbackIOWriter(file.write, _PIECE)
    faiss.write_index(index, writer)
    del writer  # flushes


def load_index(file: Reader, where: str, size: int = _NO_LIMIT) -> Any:
    """Read an index of `size` bytes, which `file` checks as they are read. `where` names the file in errors.

    No array in it can have more elements than the file has bytes, but FAISS allocates whatever the file claims. FAISS's
    own limit (`set_deserialization_vector_byte_limit`) stays as it is, because it applies to the whole process, where
    the host program and other threads also read indexes. Instead this function watches the reads: FAISS reads each
    length as 8 bytes before it allocates, and those of all inverted lists as one array. In rare cases other content
    looks like a length (e.g. the levels of a graph of two rows). A child process with its own limit then decides.
    """
    faiss = import_faiss()
    lengths = range(_longest_array(size) + 1, faiss.get_deserialization_vector_byte_limit())
    try:
        return _read_index(file, where, lengths)
    except _DoubtfulLengthError:
        file.seek(0)
        try:
            with tempfile.NamedTemporaryFile(prefix="isotrope-") as copy:
                while data := file.read(_PIECE):
                    copy.write(data)
                copy.flush()
                arguments = {"path": copy.name, "where": where}
                call_in_child("indexer.ann.faiss_index:require_short_arrays", arguments, f"reading {where}")
        except OSError as error:
            raise MachineError(
                f"{where}: cannot be copied to {tempfile.gettempdir()} for a check ({error.strerror}). Fix: set "
                f"TMPDIR to a folder with {size:,} free bytes."
            ) from error
        file.seek(0)
        return _read_index(file, where, range(0))


class _DoubtfulLengthError(Exception):
    """Eight bytes may be the length of an array that is longer than the file."""


class _Lengths:
    """Searches all data that FAISS reads for numbers that would be `doubtful` as the length of an array. An array is
    its length, then its elements in pieces. Elements of 8 bytes may be lengths themselves."""

    def __init__(self, doubtful: range) -> None:
        self._doubtful = doubtful
        self._expected = _LENGTH_BYTES  # bytes of the current array, if its elements have 8 bytes
        self._read, self._doubted = 0, False

    def look_at(self, data: bytes) -> None:
        self._read += len(data)
        if self._read <= self._expected and len(data) % _LENGTH_BYTES == 0:
            words = np.frombuffer(data, "<u8")
            self._doubted |= bool(((words >= self._doubtful.start) & (words < self._doubtful.stop)).any())
            if self._doubted and self._read == self._expected:
                raise _DoubtfulLengthError
        if len(data) == _LENGTH_BYTES:
            length = int.from_bytes(data, "little")
            if length in self._doubtful:
                raise _DoubtfulLengthError
            self._expected, self._read, self._doubted = _LENGTH_BYTES * length, 0, False


def _longest_array(size: int) -> int:
    """Return the most elements of an array in a file of `size` bytes; every FAISS header has the number 1 << 20."""
    return max(size, 1 << 20)


def _read_index(file: Reader, where: str, doubtful: range) -> Any:
    failures, lengths = list[Exception](), _Lengths(doubtful)

    def read(size: int) -> bytes:
        try:
            data = file.read(size)
            if doubtful:
                lengths.look_at(data)
            return data
        except Exception as error:
            failures.append(error)  # C++ would reduce it to a message
            raise

    faiss = faiss_module()
    try:
        return _there(faiss.read_index(faiss.PyCallbackIOReader(read, _PIECE)), where)
    except (RuntimeError, MemoryError) as error:
        if failures:
            raise failures[0] from None
        raise CorruptIndexError(f"{where}: FAISS cannot read it: {faiss_message(error)}.") from error


def require_short_arrays(path: str, where: str) -> None:
    """Read an index under a FAISS limit that fits the file; for child processes, whose limit it changes."""
    faiss_module().set_deserialization_vector_byte_limit(_longest_array(Path(path).stat().st_size))
    with Path(path).open("rb") as file:
        _read_index(file, where, range(0))


def map_index(path: Path) -> Any:
    """Open an index whose vectors and graph stay in the file and are paged in when read.

    FastScan vectors are read into memory nevertheless, and so are all kinds of index that FAISS cannot map (see
    `is_mapped`). Bytes are not checked: the caller has checked the file, which must not change while the index lives.
    Raises CorruptIndexError.
    """
    faiss, reasons = import_faiss(), list[str]()
    for flags in (faiss.IO_FLAG_MMAP_IFC, 0):
        try:
            return _there(faiss.read_index(str(path), flags), str(path))
        except (RuntimeError, MemoryError) as error:
            reasons.append(faiss_message(error))
    raise CorruptIndexError(f"{path}: FAISS cannot read it: {reasons[-1]}.")


def _there(index: Any, where: str) -> Any:
    """Return an index. Raises CorruptIndexError for None, which FAISS returns for a file without an index."""
    if index is None:
        raise CorruptIndexError(f"{where}: contains no index. Fix: build the index again.")
    return index


def is_mapped(index: Any) -> bool:
    """Whether some vectors of an index are read from its file when needed."""
    return any(_lies_in_file(layer) for layer in unwrap(index))


def _lies_in_file(layer: Any) -> bool:
    faiss = faiss_module()
    inside = [getattr(layer, name, None) for name in ("refine_index", "storage")]
    if any(_lies_in_file(faiss.downcast_index(store)) for store in inside if store is not None):
        return True
    lists = faiss.downcast_InvertedLists(layer.invlists) if hasattr(layer, "invlists") else None
    if isinstance(lists, faiss.ArrayInvertedLists):
        return any(not lists.codes.at(number).is_owned for number in range(lists.codes.size()))
    return not getattr(getattr(layer, "codes", None), "is_owned", True)


def has_gpu(device: str) -> bool:
    """Whether the installed FAISS is built for CUDA and sees the device "cuda" or "cuda:N"."""
    faiss = faiss_module()
    if not device.startswith("cuda") or not hasattr(faiss, "StandardGpuResources"):
        return False
    return bool(faiss.get_num_gpus() > _number(device))


def to_gpu(index: Any, device: str) -> Any:
    """Return a copy of the index on a GPU, to be trained, filled and searched there.

    Returns `index` itself if FAISS sees no such GPU, or has no GPU form that converts back to the same kind: all kinds
    but flat and IVF with unquantised vectors, scalar or 8-bit product quantizers. Raises MachineError if it does not
    fit.
    """
    if not has_gpu(device):
        return index
    faiss = faiss_module()
    if not isinstance(faiss.downcast_index(index), faiss.IndexFlat | faiss.IndexIVF):
        return index
    options = faiss.GpuClonerOptions()
    options.useFloat16 = options.useFloat16CoarseQuantizer = False
    try:
        return faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), _number(device), index, options)
    except RuntimeError as error:
        if "alloc" in str(error) or "memory" in str(error):
            raise MachineError(
                f"the index does not fit on {device}: {faiss_message(error)}. "
                f"Fix: search with {as_argument('device', 'cpu', 'RunOptions')}."
            ) from error
        return index  # no GPU form: FastScan, RaBitQ, product quantizers of other than 8 bits


def to_cpu(index: Any) -> Any:
    """Return an index that can be saved: a CPU copy of a GPU index, any other index itself."""
    return faiss_module().index_gpu_to_cpu(index) if is_on_gpu(index) else index


@contextmanager
def centroids_on(index: Any, device: str) -> Iterator[None]:
    """Within the block, the centroids of inverted lists are trained on a GPU while the index stays where it is. For
    kinds that `to_gpu` does not move: with many lists, centroids are most of their training."""
    if is_on_gpu(index) or not has_gpu(device) or not hasattr(innermost(index), "clustering_index"):
        yield
        return
    lists = innermost(index)
    nearest = to_gpu(faiss_module().IndexFlat(lists.d, lists.metric_type), device)
    lists.clustering_index = nearest
    try:
        yield
    finally:
        lists.clustering_index = None


def _number(device: str) -> int:
    return int(device.partition(":")[2] or 0)
