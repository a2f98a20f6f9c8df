"""The indexes inside an index that store data for each row: of every refine layer, and the innermost."""

from typing import Any

from indexer.ann.faiss_index import faiss_module, pretransformed, unwrap
from indexer.arrays import Vectors


def leaves_of(index: Any) -> list[Any]:
    """Return the stores of refine layers, outermost first, and the innermost index."""
    faiss, layers = faiss_module(), unwrap(index)
    finer = [faiss.downcast_index(layer.refine_index) for layer in layers if isinstance(layer, faiss.IndexRefine)]
    return [*finer, layers[-1]]


def vectors_for_leaves(index: Any, vectors: Vectors) -> list[Vectors]:
    """Return the vectors as each of `leaves_of` receives them: after the rotations and padding in front of it."""
    faiss, shaped = faiss_module(), []
    for layer in unwrap(index):
        if isinstance(layer, faiss.IndexPreTransform):
            vectors = pretransformed([layer], vectors)
        elif isinstance(layer, faiss.IndexRefine):
            shaped.append(vectors)
    return [*shaped, vectors]


def set_rows(index: Any, rows: int) -> None:
    """Set the number of rows on an index and its layers after rows were added to its leaves."""
    for layer in (*unwrap(index), index):  # Python has two objects for one in C++
        layer.ntotal = rows
