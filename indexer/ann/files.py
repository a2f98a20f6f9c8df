"""Index files: FAISS's own format, through readers and writers that hash and sync."""

from pathlib import Path
from typing import IO, Any, Protocol

from indexer.ann.faiss_module import loaded_faiss, reason_of, require_faiss
from indexer.ann.layers import layers_of
from indexer.errors import CorruptIndexError

_NO_LIMIT = 1 << 40  # bytes of one array; FAISS's own limit


class Reader(Protocol):
    """What `load_index` reads from."""

    def read(self, size: int) -> bytes: ...


def save_index(index: Any, file: IO[bytes]) -> None:
    """Write in FAISS's own format through `file`, which does the hashing and syncing (FAISS does neither)."""
    faiss = require_faiss()
    writer = faiss.PyCallbackIOWriter(file.write, 1 << 22)
    faiss.write_index(index, writer)
    del writer  # flushes


def load_index(file: Reader, where: str, size: int = _NO_LIMIT) -> Any:
    """Read an index from `size` bytes that are checked as they are read. `where` names the file in errors.

    No array in it can be longer than the file, whatever the file says: memory is not asked for beyond that.
    """
    faiss = require_faiss()
    faiss.set_deserialization_vector_byte_limit(max(size, 1 << 20))
    failures: list[Exception] = []

    def read(size: int) -> bytes:
        try:
            return file.read(size)
        except Exception as error:
            failures.append(error)  # C++ would turn it into a message without a type
            raise

    try:
        return _there(faiss.read_index(faiss.PyCallbackIOReader(read, 1 << 22)), where)
    except (RuntimeError, MemoryError) as error:
        if failures:
            raise failures[0] from None
        raise CorruptIndexError(f"{where}: FAISS cannot read it: {reason_of(error)}.") from error


def map_index(path: Path) -> Any:
    """Open an index whose vectors, codes and graph stay in the file, to be paged in as they are read.

    FastScan codes are read into memory all the same, and so is all of a kind of index that FAISS cannot map:
    `is_mapped` tells. Bytes are used as they are: the caller has checked the file, and nobody changes or cuts it while
    the index lives. Raises CorruptIndexError.
    """
    faiss, reasons = require_faiss(), list[str]()
    faiss.set_deserialization_vector_byte_limit(_NO_LIMIT)  # of a file that was mapped nothing is allocated
    for flags in (faiss.IO_FLAG_MMAP_IFC, 0):
        try:
            return _there(faiss.read_index(str(path), flags), str(path))
        except (RuntimeError, MemoryError) as error:
            reasons.append(reason_of(error))
    raise CorruptIndexError(f"{path}: FAISS cannot read it: {reasons[-1]}.")


def _there(index: Any, where: str) -> Any:
    """FAISS has a file for no index at all, and reads it as None."""
    if index is None:
        raise CorruptIndexError(f"{where}: holds no index. Build the index again.")
    return index


def is_mapped(index: Any) -> bool:
    """Whether vectors or codes of an index are read from its file as they are needed."""
    return any(_lies_in_file(layer) for layer in layers_of(index))


def _lies_in_file(layer: Any) -> bool:
    faiss = loaded_faiss()
    inside = [getattr(layer, name, None) for name in ("refine_index", "storage")]
    if any(_lies_in_file(faiss.downcast_index(one)) for one in inside if one is not None):
        return True
    lists = faiss.downcast_InvertedLists(layer.invlists) if hasattr(layer, "invlists") else None
    if isinstance(lists, faiss.ArrayInvertedLists):
        return any(not lists.codes.at(number).is_owned for number in range(lists.codes.size()))
    return not getattr(getattr(layer, "codes", None), "is_owned", True)
