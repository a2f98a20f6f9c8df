"""ScaNN, SVS, DiskANN and turbovec as peers of `benchmarks.ann`, each imported when it is used.

They are not dependencies of this project. Install them separately (`pip install --target FOLDER --no-deps scann
scalable-vs archspec toml diskannpy turbovec`) and put the folder on PYTHONPATH.
"""

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ann_peers import DEPTH, Peer
from indexer.arrays import RowIds, Vectors

_SHARES = (0.03, 0.06, 0.09, 0.12, 0.15, 0.18, 0.22, 0.28, 0.36, 0.5)  # of ScaNN's leaves
_REORDERED = (30, 60, 100, 200)
_WINDOWS = (10, 16, 20, 26, 32, 40, 52, 64, 96, 128, 192, 256, 384)
_DEGREE, _BUILD_WINDOW = 32, 200  # of the graphs of SVS and DiskANN


@dataclass
class Scann:
    """ScaNN: as many leaves as the square root of the rows, codes of two dimensions, and rescored candidates."""

    vectors: Vectors
    threads: int
    reordering: str = "FLOAT32"  # or BFLOAT16
    settings: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        import scann
        from scann.scann_ops.py.scann_builder import ReorderType

        leaves = round(math.sqrt(len(self.vectors)))
        builder = scann.scann_ops_pybind.builder(self.vectors, DEPTH, "dot_product").set_n_training_threads(
            self.threads
        )
        builder = builder.tree(leaves, leaves // 10, training_sample_size=min(len(self.vectors), 250_000))
        builder = builder.score_ah(2, anisotropic_quantization_threshold=0.2)
        self._index = builder.reorder(100, quantize=ReorderType[self.reordering]).build()
        self._index.set_num_threads(self.threads)
        self.settings = [
            (max(1, round(share * leaves)), reordered) for share, reordered in product(_SHARES, _REORDERED)
        ]
        with tempfile.TemporaryDirectory() as folder:
            self._index.serialize(folder)
            self.bytes = _size(Path(folder))

    def set(self, setting: Any) -> None:
        self._leaves, self._reordered = setting

    def search(self, queries: Vectors) -> RowIds:
        rows, _ = self._index.search_batched_parallel(
            queries, leaves_to_search=self._leaves, pre_reorder_num_neighbors=self._reordered
        )
        return np.asarray(rows, np.int64)


@dataclass
class Svs:
    """Intel's Scalable Vector Search: a Vamana graph of float32 vectors or of LVQ codes (4 and 8 bits)."""

    vectors: Vectors
    threads: int
    compressed: bool = False
    settings: list[Any] = field(default_factory=lambda: list(_WINDOWS))

    def __post_init__(self) -> None:
        import svs

        parameters = svs.VamanaBuildParameters(
            alpha=0.95, graph_max_degree=_DEGREE, window_size=_BUILD_WINDOW, max_candidate_pool_size=4 * _BUILD_WINDOW
        )
        with tempfile.TemporaryDirectory() as folder:
            data: Any = self.vectors
            if self.compressed:
                svs.write_vecs(self.vectors, f"{folder}/vectors.fvecs")
                svs.convert_vecs_to_svs(f"{folder}/vectors.fvecs", f"{folder}/vectors.svs")
                loader = svs.VectorDataLoader(f"{folder}/vectors.svs", svs.DataType.float32)
                data = svs.LVQLoader(loader, primary=4, residual=8)
            self._index = svs.Vamana.build(parameters, data, svs.DistanceType.MIP, num_threads=self.threads)
            parts = [Path(folder) / name for name in ("config", "graph", "data")]
            self._index.save(*map(str, parts))
            self.bytes = sum(map(_size, parts))

    def set(self, setting: Any) -> None:
        self._index.search_window_size = setting

    def search(self, queries: Vectors) -> RowIds:
        rows, _ = self._index.search(queries, DEPTH)
        return np.asarray(rows, np.int64)


@dataclass
class DiskAnn:
    """DiskANN's index in memory, by cosine, which equals the inner product of unit vectors."""

    vectors: Vectors
    threads: int
    settings: list[Any] = field(default_factory=lambda: list(_WINDOWS))

    def __post_init__(self) -> None:
        import diskannpy

        with tempfile.TemporaryDirectory() as folder:
            diskannpy.build_memory_index(
                self.vectors, "cosine", folder, _BUILD_WINDOW // 2, 2 * _DEGREE, self.threads, alpha=1.2
            )
            self.bytes = _size(Path(folder))
            self._index = diskannpy.StaticMemoryIndex(folder, self.threads, max(_WINDOWS))

    def set(self, setting: Any) -> None:
        self._window = setting

    def search(self, queries: Vectors) -> RowIds:
        hits = self._index.batch_search(queries, DEPTH, self._window, self.threads)
        return np.asarray(hits.identifiers, np.int64)


@dataclass
class TurboVec:
    """turbovec: an exhaustive scan of codes of four bits a dimension."""

    vectors: Vectors
    threads: int
    settings: list[Any] = field(default_factory=lambda: ["exhaustive"])

    def __post_init__(self) -> None:
        import turbovec

        padded = -self.vectors.shape[1] % 8  # turbovec needs a multiple of eight dimensions
        self._width = ((0, 0), (0, padded))
        self._index = turbovec.TurboQuantIndex(self.vectors.shape[1] + padded, 4)
        self._index.add(np.pad(self.vectors, self._width))
        self.bytes = len(self._index.to_bytes())

    def set(self, setting: Any) -> None:
        """Do nothing: there are no settings; RAYON_NUM_THREADS sets the threads."""

    def search(self, queries: Vectors) -> RowIds:
        _, rows = self._index.search(np.pad(queries, self._width), DEPTH)
        return np.asarray(rows, np.int64)


LIBRARIES: dict[str, tuple[str, Callable[[Vectors, int], Peer]]] = {
    "ScaNN": ("tree, AH 2, float32", Scann),
    "ScaNN bf16": ("tree, AH 2, bfloat16", partial(Scann, reordering="BFLOAT16")),
    "SVS": ("Vamana 32", Svs),
    "SVS LVQ": ("Vamana 32, LVQ4x8", partial(Svs, compressed=True)),
    "DiskANN": ("Vamana 64", DiskAnn),
    "turbovec": ("4 bits", TurboVec),
}


def _size(path: Path) -> int:
    """Return the size of a file, or of all files in a folder."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
