"""Training of an empty index.

Most of it is finding the centroids of inverted lists: 68 s for 4,096 of them among 262,144 vectors of 381 dimensions on
two cores. They depend only on the vectors and the number of lists, so all kinds of index with equally many lists share
them. Several threads find them, which gives the same bits.
"""

from typing import Any

import numpy as np

from indexer.ann.factory import deal_out_dimensions, make_index
from indexer.ann.faiss_index import (
    apply_pretransforms,
    centroids_on,
    faiss_message,
    faiss_module,
    innermost,
    is_flat,
    prefer_matrix_products,
    single_faiss_thread,
    training_threads,
    unwrap,
)
from indexer.arrays import Vectors
from indexer.errors import ConfigError

_ROWS_A_LIST = 64  # sampled for k-means; FAISS's default of 256 takes four times as long for the same recall


class IndexTrainer:
    """Builds empty indexes trained on a sample of vectors (n, k), on a CUDA device where FAISS supports it."""

    def __init__(self, sample: Vectors, device: str = "cpu") -> None:
        self.sample = np.ascontiguousarray(sample, dtype=np.float32)
        self._device = device
        self._centroids: dict[int, Vectors] = {}

    def trained(self, factory: str) -> Any:
        """Return an empty trained index. Raises ConfigError for a kind that needs more training vectors."""
        index = make_index(factory, self.sample.shape[1])
        self.train(index)
        return index

    def train(self, index: Any) -> None:
        """Train an index, if it needs training. Raises as `trained`."""
        if index.is_trained:
            return
        prefer_matrix_products(index.d)
        _train_plainly(index)
        deal_out_dimensions(index, self.sample)
        try:
            if _has_plain_lists(index):
                self._train_with_lists(index)
            else:
                with training_threads(index), centroids_on(index, self._device):
                    index.train(self.sample)
        except RuntimeError as error:
            raise ConfigError(
                f"the index cannot be trained on {len(self.sample):,} vectors: {faiss_message(error)}. "
                'Fix: choose a smaller index.type, or "flat".'
            ) from error

    def _train_with_lists(self, index: Any) -> None:
        lists = innermost(index)
        coarse = faiss_module().downcast_index(lists.quantizer)
        if lists.nlist not in self._centroids:
            self._centroids[lists.nlist] = self._find_centroids(lists.nlist)
        _, shaped = apply_pretransforms(index, self._centroids[lists.nlist])
        coarse.reset()
        coarse.add(shaped)  # FAISS trains no centroids if there are as many as lists
        with single_faiss_thread():
            index.train(self.sample)

    def _find_centroids(self, count: int) -> Vectors:
        """Return centroids (count, k) in the space of the vectors."""
        plain = make_index(f"IVF{count},Flat", self.sample.shape[1])
        _train_plainly(plain)
        plain.cp.max_points_per_centroid = _ROWS_A_LIST
        with training_threads(plain), centroids_on(plain, self._device):
            plain.train(self.sample)
        centroids: Vectors = faiss_module().downcast_index(plain.quantizer).reconstruct_n(0, count)
        return centroids


def _has_plain_lists(index: Any) -> bool:
    """Whether an index has inverted lists with a flat quantizer and at most padding in front of them."""
    faiss, lists = faiss_module(), innermost(index)
    if not hasattr(lists, "quantizer") or not is_flat(faiss.downcast_index(lists.quantizer)):
        return False
    shaping = [layer for layer in unwrap(index) if isinstance(layer, faiss.IndexPreTransform)]
    return not shaping or (shaping[0] is unwrap(index)[0] and all(map(_only_pads, shaping)) and len(shaping) == 1)


def _only_pads(layer: Any) -> bool:
    faiss = faiss_module()
    steps = (faiss.downcast_VectorTransform(layer.chain.at(number)) for number in range(layer.chain.size()))
    return all(isinstance(step, faiss.RemapDimensionsTransform) for step in steps)


def _train_plainly(index: Any) -> None:
    """Switch off useless parts of the training. K-means would warn on stderr about few vectors, although recall is
    measured afterwards. Product quantizers would order their centroids for polysemous search, which takes several times
    as long."""
    faiss, parts = faiss_module(), unwrap(index)
    stores = [getattr(part, name, None) for part in parts for name in ("refine_index", "storage")]
    for part in [*parts, *(faiss.downcast_index(inside) for inside in stores if inside is not None)]:
        if hasattr(part, "do_polysemous_training"):
            part.do_polysemous_training = False
        for owner in (part, getattr(part, "pq", None)):
            if owner is not None and hasattr(owner, "cp"):
                owner.cp.min_points_per_centroid = 1
