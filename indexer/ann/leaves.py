"""The indexes inside an index that store data for each row: of every refine layer, and the innermost."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.ann.faiss_index import faiss_module, pretransformed, unwrap
from indexer.arrays import RowIds, Vectors

Codes = npt.NDArray[np.uint8]  # (rows, bytes)


def leaves_of(index: Any) -> list[Any]:
    """Return the stores of refine layers, outermost first, and the innermost index; none of an index on a GPU."""
    faiss, layers = faiss_module(), unwrap(index)
    finer = [faiss.downcast_index(layer.refine_index) for layer in layers if isinstance(layer, faiss.IndexRefine)]
    return [*finer, *layers[-1:]]


def vectors_for_leaves(index: Any, vectors: Vectors) -> list[Vectors]:
    """Return the vectors as each of `leaves_of` receives them: after the rotations and padding in front of it."""
    faiss, shaped = faiss_module(), []
    for layer in unwrap(index):
        if isinstance(layer, faiss.IndexPreTransform):
            vectors = pretransformed([layer], vectors)
        elif isinstance(layer, faiss.IndexRefine):
            shaped.append(vectors)
    return [*shaped, vectors]


def reserve_rows(index: Any, rows: int) -> None:
    """Allocate the memory of an empty index for `rows` rows."""
    reserve_codes(leaves_of(index), rows)


def reserve_codes(leaves: Sequence[Any], rows: int) -> None:
    """Allocate the codes of empty leaves for `rows` rows. An array that grows is copied into one of twice its size,
    which takes up to twice the memory; inverted lists are short, and grow one at a time."""
    faiss = faiss_module()
    for leaf in leaves:
        store = faiss.downcast_index(leaf.storage) if hasattr(leaf, "storage") else leaf
        if isinstance(store, faiss.IndexFlatCodes):
            store.codes.resize(rows * store.code_size)
            store.codes.resize(0)  # keeps the memory


def codes_of(store: Any) -> Codes:
    """Return a view of the codes of an IndexFlatCodes, in memory or in a mapped file."""
    codes: Codes = faiss_module().rev_swig_ptr(store.codes.data(), store.codes.size())
    return codes.reshape(store.ntotal, store.code_size)


def stored_codes(index: Any, rows: RowIds) -> Iterator[Codes]:
    """Yield the bytes of some rows in each of `leaves_of`, in any order of rows; a flat index has vectors.

    Leaves that pack the codes of 32 rows together ("FastScan") have none.
    """
    faiss = faiss_module()
    for leaf in leaves_of(index):
        store = faiss.downcast_index(leaf.storage) if hasattr(leaf, "storage") else leaf
        if isinstance(store, faiss.IndexFlatCodes):
            yield codes_of(store)[rows]
        elif isinstance(store, faiss.IndexIVF) and "FastScan" not in type(store).__name__:
            yield np.concatenate([_codes_in_list(store, number, rows) for number in range(store.nlist)])


def _codes_in_list(store: Any, number: int, rows: RowIds) -> Codes:
    """Return the codes of those of some rows that are in an inverted list."""
    faiss, lists = faiss_module(), store.invlists
    size, width = lists.list_size(number), lists.code_size
    if not size:
        return np.zeros((0, width), np.uint8)
    ids = faiss.rev_swig_ptr(lists.get_ids(number), size)
    codes: Codes = faiss.rev_swig_ptr(lists.get_codes(number), size * width).reshape(size, width)
    return codes[np.isin(ids, rows)]


def set_rows(index: Any, rows: int) -> None:
    """Set the number of rows on an index and its layers after rows were added to its leaves."""
    for layer in (*unwrap(index), index):  # Python has two objects for one in C++
        layer.ntotal = rows
