"""Unit vectors that say whose they are: as long as raw embeddings, they would else be taken for such.

An embedding becomes a vector by an index's transform, which often keeps its length. Transformed a second time it would
find documents that have nothing to do with the query, and nothing would show it. So what the engine hands out is marked
with the vector space it belongs to and the role of its texts, and whoever takes vectors looks at the mark.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.config import Role
from indexer.errors import ConfigError


@dataclass(frozen=True)
class Mark:
    """`space` names an encoder and a transform: vectors of one space can be compared. `role`: what the texts were."""

    space: str
    role: Role


class UnitVectors(np.ndarray[tuple[int, ...], np.dtype[np.float32]]):
    """Unit vectors (n, k), float32, made by a transform; an array like any other, with a `mark`.

    Views and copies keep the mark. What is calculated from them, joined or unpickled has none (`mark` is None): nobody
    can tell what it is. `numpy.asarray` gives the plain array, and a file holds nothing else.
    """

    mark: Mark | None
    __array_priority__ = 1.0  # so that they stay `UnitVectors` when they are joined

    def __new__(cls, vectors: npt.NDArray[np.float32], mark: Mark) -> "UnitVectors":
        marked = vectors.view(cls)
        marked.mark = mark
        return marked

    def __array_finalize__(self, source: Any) -> None:
        self.mark = getattr(source, "mark", None)

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        """The result of a calculation."""
        if return_scalar:
            return array[()]
        if array.ndim != self.ndim or array.shape[-1] != self.shape[-1] or array.dtype != self.dtype:
            return np.asarray(array)  # scores, lengths: no vectors any more
        result = array.view(type(self))
        result.mark = None
        return result


def require_array(array: object, dim: int) -> None:
    """Raises ConfigError for what is no array (n, dim) of finite numbers."""
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiu":
        found = f"an array of {array.dtype}" if isinstance(array, np.ndarray) else f"of type {type(array).__name__}"
        raise ConfigError(f"query vectors are {found}; expected a numpy array of numbers, (n, {dim}).")
    if array.ndim != 2 or array.shape[1] != dim:
        raise ConfigError(f"query vectors have shape {array.shape}; expected (n, {dim}).")
    finite = np.isfinite(array).all(axis=1)
    if not finite.all():
        raise ConfigError(f"query vector {int(np.argmin(finite)) + 1} is not finite (NaN or infinity).")


def require_mark(vectors: UnitVectors, mark: Mark, index: str) -> None:
    """Raises ConfigError for vectors that do not carry this mark, which those of queries of `index` do."""
    if vectors.mark == mark:
        return
    found = "were calculated or joined from what embed gave"
    if vectors.mark is not None:
        same = vectors.mark.space == mark.space
        found = f'have the role "{vectors.mark.role}"' if same else "were made by another encoder or transform"
    raise ConfigError(
        f"the query vectors {found}; expected raw embeddings, as a plain array, or what "
        f'embed(texts, "{mark.role}") gives for {index}.'
    )
