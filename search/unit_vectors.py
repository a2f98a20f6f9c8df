"""Unit vectors with a marker, because raw embeddings have the same length and could be confused with them.

An index's transform turns an embedding into a vector, often of as many numbers. A vector that is transformed a second
time finds unrelated documents, without an error. So the engine marks its vectors with their vector space and the role
of their texts, and every function that takes query vectors checks the marker.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.errors import ConfigError
from indexer.recipe.config import Role


@dataclass(frozen=True)
class Mark:
    """The vector space of comparable vectors (encoder and transform), and the role of their texts."""

    space: str
    role: Role


class UnitVectors(np.ndarray[tuple[int, ...], np.dtype[np.float32]]):
    """Unit vectors (n, k), float32, from a transform: an array with a `mark`.

    Views and copies keep the mark. Calculated, joined and unpickled arrays have none (`mark` is None). `numpy.asarray`
    returns the plain array; files hold plain arrays.
    """

    mark: Mark | None
    __array_priority__ = 1.0  # joined arrays stay `UnitVectors`

    def __new__(cls, vectors: npt.NDArray[np.float32], mark: Mark) -> "UnitVectors":
        marked = vectors.view(cls)
        marked.mark = mark
        return marked

    def __array_finalize__(self, source: Any) -> None:
        self.mark = getattr(source, "mark", None)

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        """Return the result of a calculation."""
        if return_scalar:
            return array[()]
        if array.ndim != self.ndim or array.shape[-1] != self.shape[-1] or array.dtype != self.dtype:
            return np.asarray(array)  # scores or lengths, not vectors
        result = array.view(type(self))
        result.mark = None
        return result


def joined(pieces: Sequence[npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
    """Return the rows of encoded queries as one array, with the mark of `UnitVectors`."""
    rows = np.concatenate(pieces)
    mark = getattr(pieces[0], "mark", None)
    return rows if mark is None else UnitVectors(rows, mark)


def require_array(array: object, dim: int) -> None:
    """Raise ConfigError if `array` is not an array (n, dim) of finite numbers. `dim` 0: any, as in an index without
    documents whose first vectors decide it.
    """
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiu":
        kind = f"an array of {array.dtype}" if isinstance(array, np.ndarray) else f"of type {type(array).__name__}"
        raise ConfigError(f"query vectors are {kind}; expected a numpy array of numbers, (n, {dim}).")
    if array.ndim != 2 or (dim and array.shape[1] != dim):
        raise ConfigError(f"query vectors have shape {array.shape}; expected (n, {dim}).")
    finite = np.isfinite(array).all(axis=1)
    if not finite.all():
        raise ConfigError(f"query vector {int(np.argmin(finite)) + 1} is not finite (NaN or infinity).")


def require_mark(vectors: UnitVectors, mark: Mark, index: str) -> None:
    """Raise ConfigError for vectors without this mark, the mark of query vectors of `index`."""
    if vectors.mark == mark:
        return
    fault = "were calculated or joined from results of embed"
    if vectors.mark is not None:
        same = vectors.mark.space == mark.space
        fault = f'have the role "{vectors.mark.role}"' if same else "come from another encoder or transform"
    raise ConfigError(
        f"the query vectors {fault}; expected raw embeddings as a plain array, or the result of "
        f'embed(texts, "{mark.role}") for {index}.'
    )
