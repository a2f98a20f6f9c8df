"""FAISS itself: imported here and nowhere else, its index objects unwrapped, saved, loaded, taken to a GPU.

A factory string puts wrappers around the index that is searched: the layers. Files are in FAISS's own format, through
readers and writers that hash and sync, and always hold CPU indexes. An index is made with no more threads than leave
the result as it is and are of use.
"""

import importlib.metadata
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import IO, Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from indexer.ann.blas import fitting_kernels
from indexer.arrays import Vectors
from indexer.errors import CorruptIndexError, MachineError
from indexer.lazy import install_line
from indexer.system.child_process import call_in_child

_MATRIX_QUERIES = 3
_WHEELS = ("faiss-cpu", "faiss-gpu", "faiss-gpu-cuvs")
_MANY_CENTROIDS = 1024  # a k-means of fewer is over in seconds
_NO_LIMIT = 1 << 40  # bytes of one array; FAISS's own limit
_LENGTH_BYTES = 8  # of the length of an array in a file
_PIECE = 1 << 22  # bytes that FAISS reads or writes at most at a time
MOST_ROWS = 2048  # that FAISS selects for a query on a GPU
_known: WeakKeyDictionary[Any, tuple[Any, ...]] = WeakKeyDictionary()  # to unwrap takes as long as a small search


def import_faiss() -> ModuleType:
    """The module `faiss`. Raises MachineError unless exactly one wheel provides it."""
    found = [name for name in _WHEELS if _installed(name)]
    if len(found) > 1:
        raise MachineError(
            f"{' and '.join(found)} are both installed; they provide the same module and overwrite each other. "
            f"Run: pip uninstall -y {' '.join(found)}, then: {install_line('cpu')}, or: {install_line('gpu')}."
        )
    try:
        return faiss_module()
    except ImportError as error:
        raise MachineError(
            f"FAISS is not installed or cannot be loaded ({error}). "
            f"Run: {install_line('cpu')}, or on Linux with CUDA: {install_line('gpu')}."
        ) from error


def faiss_module() -> ModuleType:
    """The module `faiss`, where there is an index already: looking for wheels takes a millisecond."""
    if "faiss" not in sys.modules:
        with fitting_kernels():
            import_module("faiss")
    import faiss  # waits where another thread is importing it

    module: ModuleType = faiss
    return module


def prefer_matrix_products(dim: int) -> None:
    """Let FAISS compare three queries or more with whole vectors by matrix products, fewer one by one.

    Of itself it does so from 128,000 values on, which is 333 queries of 384 dimensions; that takes about three times
    as long for 8 to 300 queries, and for training product quantizers.
    """
    faiss_module().cvar.distance_compute_blas_threshold = _MATRIX_QUERIES * dim


def set_threads(count: int) -> None:
    """Threads FAISS uses for one call of this thread. FAISS must be there."""
    faiss_module().omp_set_num_threads(count)


def faiss_threads() -> int:
    """Threads FAISS uses for one call of this thread."""
    return int(faiss_module().omp_get_max_threads())


def faiss_message(error: BaseException) -> str:
    """The sentence in a FAISS error, without its C++ location."""
    last = str(error).strip().splitlines()[-1]
    return re.sub(r"^Error in .* at \S+:\d+: ", "", last).split("Error: ")[-1].rstrip(".")


def _installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


@contextmanager
def single_faiss_thread() -> Iterator[None]:
    """Within the block FAISS runs on one thread."""
    faiss = faiss_module()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


@contextmanager
def training_threads(index: Any) -> Iterator[None]:
    """One thread, unless there are many inverted lists to find centroids for.

    Product quantizers are many small k-means, in which threads wait for each other most of the time (measured: 20 times
    the CPU time with two threads); LAPACK's last bits, for PCA and OPQ, depend on their number.
    """
    faiss = faiss_module()
    rotated = any(isinstance(layer, faiss.IndexPreTransform) for layer in unwrap(index))
    if getattr(innermost(index), "nlist", 1) < _MANY_CENTROIDS or rotated:
        with single_faiss_thread():
            yield
    else:
        yield


@contextmanager
def adding_threads(index: Any) -> Iterator[None]:
    """One thread for a graph whose links depend on the order in which threads come by: NSG, and HNSW before 1.15."""
    faiss = faiss_module()
    inner = innermost(index)
    ordered = hasattr(inner, "hnsw") and hasattr(faiss.HNSW, "merge_reverse_links_deterministic")
    if is_graph(index) and not ordered:
        with single_faiss_thread():
            yield
    else:
        yield


def unwrap(index: Any) -> tuple[Any, ...]:
    """The index and what it wraps, outermost first; they live as long as `index`, which owns them."""
    if index not in _known:
        _known[index] = _unwrapped(index)
    return _known[index]


def _unwrapped(index: Any) -> tuple[Any, ...]:
    if is_on_gpu(index):
        return ()
    faiss = faiss_module()
    found = [faiss.downcast_index(index)]
    while (inside := _wrapped(faiss, found[-1])) is not None:
        found.append(faiss.downcast_index(inside))
    return tuple(found)


def innermost(index: Any) -> Any:
    """The index inside the wrappers."""
    return (unwrap(index) or (index,))[-1]


def refine_layer(index: Any) -> Any | None:
    """The IndexRefine among the layers, which scores candidates again by finer codes or whole vectors."""
    faiss = faiss_module()
    return next((layer for layer in unwrap(index) if isinstance(layer, faiss.IndexRefine)), None)


def kind_of(index: Any) -> tuple[str, ...]:
    """Class names of the layers, outermost first."""
    return tuple(type(layer).__name__ for layer in unwrap(index))


def apply_pretransforms(index: Any, queries: Vectors) -> tuple[Any, Vectors]:
    """The index behind an outermost IndexPreTransform, and the queries (n, d) as it gets them."""
    faiss, layer = faiss_module(), faiss_module().downcast_index(index)
    if not isinstance(layer, faiss.IndexPreTransform):
        return index, queries
    for number in range(layer.chain.size()):
        queries = layer.chain.at(number).apply(np.ascontiguousarray(queries, dtype=np.float32))
    return apply_pretransforms(layer.index, queries)


def storage_of(index: Any) -> Any | None:
    """The index within an IndexRefine or a graph that holds every row's vector or finer code, by row."""
    faiss, layer = faiss_module(), faiss_module().downcast_index(index)
    store = layer.refine_index if isinstance(layer, faiss.IndexRefine) else getattr(layer, "storage", None)
    return None if store is None else faiss.downcast_index(store)


def is_on_gpu(index: Any) -> bool:
    """Whether it is one of FAISS's indexes for a GPU."""
    return type(index).__name__.startswith("Gpu")


def is_graph(index: Any) -> bool:
    """Whether a search walks from row to row: HNSW, NSG and the like."""
    return hasattr(innermost(index), "storage")


def has_lists(index: Any) -> bool:
    """Whether a search looks through some of several inverted lists."""
    return bool(getattr(innermost(index), "nlist", 1) > 1)


def is_flat(index: Any) -> bool:
    """Whether it holds the vectors as they are and compares a query with each."""
    return type(index).__name__ in ("IndexFlat", "IndexFlatIP")  # as the factory makes it, and as a file holds it


def _wrapped(faiss: Any, layer: Any) -> Any | None:
    if isinstance(layer, faiss.IndexPreTransform):
        return layer.index
    return layer.base_index if isinstance(layer, faiss.IndexRefine) else None


class Reader(Protocol):
    """What `load_index` reads from."""

    def read(self, size: int, /) -> bytes: ...

    def seek(self, offset: int, /) -> int: ...


def save_index(index: Any, file: IO[bytes]) -> None:
    """Write in FAISS's own format through `file`, which does the hashing and syncing (FAISS does neither)."""
    faiss = import_faiss()
    writer = faiss.PyCallbackIOWriter(file.write, _PIECE)
    faiss.write_index(index, writer)
    del writer  # flushes


def load_index(file: Reader, where: str, size: int = _NO_LIMIT) -> Any:
    """Read an index from `size` bytes that are checked as they are read. `where` names the file in errors.

    No array in it can have more elements than the file has bytes: FAISS would allocate whatever the file claims. The
    limit of FAISS itself (`set_deserialization_vector_byte_limit`) stays as it is, because it applies to the whole
    process, where the host program and other threads read indexes too. Instead this function watches the reads: FAISS
    reads each length as 8 bytes before it allocates, and those of all inverted lists as one array. Rarely, other
    content looks like a length (the levels of a graph of two rows do). A child process with its own limit then decides.
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
                given = {"path": copy.name, "where": where}
                call_in_child("indexer.ann.faiss_index:require_short_arrays", given, f"reading {where}")
        except OSError as error:
            raise MachineError(
                f"{where}: cannot be copied to {tempfile.gettempdir()} to be checked ({error.strerror}). Set TMPDIR "
                f"to a folder with {size:,} free bytes."
            ) from error
        file.seek(0)
        return _read_index(file, where, range(0))


class _DoubtfulLengthError(Exception):
    """Eight bytes may be the length of an array that is longer than the file."""


class _Lengths:
    """Looks at all that FAISS reads for numbers that are `doubtful` as the length of an array.

    An array is its length, then its elements in pieces. Where these are of 8 bytes, they may be lengths themselves.
    """

    def __init__(self, doubtful: range) -> None:
        self._doubtful = doubtful
        self._expected = _LENGTH_BYTES  # bytes of the array that is read, if its elements are of 8 bytes
        self._read, self._found = 0, False

    def look_at(self, data: bytes) -> None:
        """Raises _DoubtfulLengthError."""
        self._read += len(data)
        if self._read <= self._expected and len(data) % _LENGTH_BYTES == 0:
            words = np.frombuffer(data, "<u8")
            self._found |= bool(((words >= self._doubtful.start) & (words < self._doubtful.stop)).any())
            if self._found and self._read == self._expected:
                raise _DoubtfulLengthError
        if len(data) == _LENGTH_BYTES:
            length = int.from_bytes(data, "little")
            if length in self._doubtful:
                raise _DoubtfulLengthError
            self._expected, self._read, self._found = _LENGTH_BYTES * length, 0, False


def _longest_array(size: int) -> int:
    """The most elements of an array in a file of `size` bytes; every FAISS header contains the number 1 << 20."""
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
            failures.append(error)  # C++ would turn it into a message without a type
            raise

    faiss = faiss_module()
    try:
        return _there(faiss.read_index(faiss.PyCallbackIOReader(read, _PIECE)), where)
    except (RuntimeError, MemoryError) as error:
        if failures:
            raise failures[0] from None
        raise CorruptIndexError(f"{where}: FAISS cannot read it: {faiss_message(error)}.") from error


def require_short_arrays(path: str, where: str) -> None:
    """Read an index under a limit of FAISS that fits the file; for child processes, whose limit it changes."""
    faiss_module().set_deserialization_vector_byte_limit(_longest_array(Path(path).stat().st_size))
    with Path(path).open("rb") as file:
        _read_index(file, where, range(0))


def map_index(path: Path) -> Any:
    """Open an index whose vectors, codes and graph stay in the file, to be paged in as they are read.

    FastScan codes are read into memory all the same, and so is all of a kind of index that FAISS cannot map:
    `is_mapped` tells. Bytes are used as they are: the caller has checked the file, and nobody changes or cuts it while
    the index lives. Raises CorruptIndexError.
    """
    faiss, reasons = import_faiss(), list[str]()
    for flags in (faiss.IO_FLAG_MMAP_IFC, 0):
        try:
            return _there(faiss.read_index(str(path), flags), str(path))
        except (RuntimeError, MemoryError) as error:
            reasons.append(faiss_message(error))
    raise CorruptIndexError(f"{path}: FAISS cannot read it: {reasons[-1]}.")


def _there(index: Any, where: str) -> Any:
    """FAISS has a file for no index at all, and reads it as None."""
    if index is None:
        raise CorruptIndexError(f"{where}: holds no index. Build the index again.")
    return index


def is_mapped(index: Any) -> bool:
    """Whether vectors or codes of an index are read from its file as they are needed."""
    return any(_lies_in_file(layer) for layer in unwrap(index))


def _lies_in_file(layer: Any) -> bool:
    faiss = faiss_module()
    inside = [getattr(layer, name, None) for name in ("refine_index", "storage")]
    if any(_lies_in_file(faiss.downcast_index(one)) for one in inside if one is not None):
        return True
    lists = faiss.downcast_InvertedLists(layer.invlists) if hasattr(layer, "invlists") else None
    if isinstance(lists, faiss.ArrayInvertedLists):
        return any(not lists.codes.at(number).is_owned for number in range(lists.codes.size()))
    return not getattr(getattr(layer, "codes", None), "is_owned", True)


def has_gpu(device: str) -> bool:
    """Whether the FAISS at hand is built for CUDA and sees the device "cuda" or "cuda:N"."""
    faiss = faiss_module()
    if not device.startswith("cuda") or not hasattr(faiss, "StandardGpuResources"):
        return False
    return bool(faiss.get_num_gpus() > _number(device))


def to_gpu(index: Any, device: str) -> Any:
    """A copy of the index on a GPU, to be trained, added to and searched there.

    `index` itself where the FAISS at hand has no such GPU, and for kinds without a GPU form or with one that does not
    come back as what it was: all but flat and IVF with whole vectors, scalar or 8-bit product quantizers. Raises
    MachineError if it does not fit.
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
                f"the index does not fit on {device}: {faiss_message(error)}. Use --device cpu."
            ) from error
        return index  # no GPU form: FastScan, RaBitQ, other sizes of codes


def to_cpu(index: Any) -> Any:
    """An index that can be saved: a copy on the CPU of one that is on a GPU, any other as it is."""
    return faiss_module().index_gpu_to_cpu(index) if is_on_gpu(index) else index


@contextmanager
def centroids_on(index: Any, device: str) -> Iterator[None]:
    """Within the block the centroids of inverted lists are trained on a GPU, and the index stays where it is.

    For kinds that `to_gpu` leaves where they are: with many lists, most of their training is that.
    """
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
