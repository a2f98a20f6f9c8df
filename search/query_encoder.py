"""An encoder of queries other than the index's own: texts to unit vectors of the index's space, without its model.

`isotrope distill` and `isotrope migrate --mode map` write such encoders; `indexer.models.query_encoder_spec` describes
their folders.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from indexer.arrays import Float64Array, Vectors
from indexer.encoders.load import open_encoder
from indexer.encoders.protocol import Encoder, EncodeStats, with_query_prompt
from indexer.errors import ModelError
from indexer.models.query_encoder_spec import FILE, QueryEncoderSpec
from indexer.recipe.run_options import RunOptions
from indexer.transforms.whitening import unit_rows
from search.unit_vectors import Mark, UnitVectors


@dataclass(frozen=True)
class AffineMap:
    """`embeddings @ matrix + bias`, scaled to unit length: `matrix` (d, k), `bias` (k,)."""

    matrix: Float64Array
    bias: Float64Array

    def __call__(self, embeddings: npt.NDArray[np.floating]) -> Vectors:
        """Return unit vectors (n, k) of embeddings (n, d)."""
        return unit_rows(np.asarray(embeddings), lambda block: np.asarray(block, np.float64) @ self.matrix + self.bias)

    @classmethod
    def read(cls, file: Path) -> "AffineMap":
        """Read a map. Raises ModelError for a file that is none."""
        try:
            arrays = load_file(file)
            matrix, bias = (np.asarray(arrays[name], np.float64) for name in ("matrix", "bias"))
        except (OSError, SafetensorError, KeyError) as error:
            raise ModelError(f"{file}: is not a map of embeddings: {error}.") from error
        if (
            matrix.ndim != 2
            or bias.shape != matrix.shape[1:]
            or not (np.isfinite(matrix).all() and np.isfinite(bias).all())
        ):
            raise ModelError(
                f"{file}: is not a map of embeddings: expected finite numbers, matrix (d, k) and bias (k,)."
            )
        return cls(matrix, bias)

    def write(self, file: Path) -> None:
        """Write the map."""
        file.write_bytes(save({"matrix": np.ascontiguousarray(self.matrix), "bias": self.bias}))


@dataclass(frozen=True)
class QueryEncoder:
    """A loaded query encoder: its encoder, and the map of embeddings into the space, None for none."""

    spec: QueryEncoderSpec
    encoder: Encoder
    map: AffineMap | None = None

    def vectors(self, texts: Sequence[str], log: EncodeStats | None = None, prompt: str | None = None) -> UnitVectors:
        """Return marked unit vectors (n, k) of queries."""
        embeddings = with_query_prompt(self.encoder, prompt).encode(texts, "query", log)
        unit = self.map(embeddings) if self.map else unit_rows(embeddings, lambda rows: np.asarray(rows, np.float64))
        return UnitVectors(unit, Mark(self.spec.file.space, "query"))


def open_query_encoder(spec: QueryEncoderSpec, options: RunOptions) -> QueryEncoder:
    """Load a resolved query encoder. Raises ModelError for a folder whose sizes disagree, and as `open_encoder`."""
    encoder = open_encoder(spec.encoder, options)
    found, expected = encoder.dim, spec.file.dim
    chosen = None
    if spec.map_file:
        chosen = AffineMap.read(spec.map_file)
        rows, found = chosen.matrix.shape
        if rows != encoder.dim:
            raise ModelError(f"{spec.map_file}: maps {rows} dimensions; expected {encoder.dim}, those of its encoder.")
    if found != expected:
        raise ModelError(f"{spec.folder / FILE}: has dim {expected}, but its vectors have {found} dimensions.")
    return QueryEncoder(spec, encoder, chosen)
