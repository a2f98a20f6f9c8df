"""Types of the arrays that pass between modules, named by their content or, for any other content, by their type.

Docstrings give shapes in brackets: n rows or texts, d dimensions of an embedding, k of a vector.
"""

import numpy as np
import numpy.typing as npt

Embeddings = npt.NDArray[np.floating]  # (n, d), as encoders return them and indexes store them
Vectors = npt.NDArray[np.float32]  # (n, k), of unit length, for search
Scores = npt.NDArray[np.float32]  # inner products of vectors
RowIds = npt.NDArray[np.int64]  # numbers of rows, or of documents
Mask = npt.NDArray[np.bool_]  # (n,): selected rows or documents
SearchResult = tuple[Scores, RowIds]  # of one query, best first
TextHashes = npt.NDArray[np.uint64]  # (n, 2): 128-bit hashes of texts

Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
