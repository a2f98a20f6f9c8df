"""Names of the arrays that pass between modules, by what they hold; those named by their type hold anything else.

Shapes stand in docstrings, in brackets: n rows or texts, d dimensions of an embedding, k of a vector.
"""

import numpy as np
import numpy.typing as npt

Embeddings = npt.NDArray[np.floating]  # (n, d), as an encoder gives them or an index stores them
Vectors = npt.NDArray[np.float32]  # (n, k), of unit length: what is searched
Scores = npt.NDArray[np.float32]  # inner products of vectors
RowIds = npt.NDArray[np.int64]  # numbers of rows, or of documents
Mask = npt.NDArray[np.bool_]  # (n,): which rows, or documents, are meant
SearchResult = tuple[Scores, RowIds]  # of one query, best first
TextHashes = npt.NDArray[np.uint64]  # (n, 2): 128-bit hashes of texts

Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
