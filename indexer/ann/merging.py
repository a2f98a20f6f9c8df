"""One index filled by many workers: shards of rows, quantised separately by one trained state, then merged in order.

FAISS quantises a row by the trained state alone, so the worker makes no difference. A shard contains plain quantised
vectors: FastScan packs them in blocks of 32 rows, and merging packed blocks (`merge_from`) writes beyond their memory.
So shards are merged in the plain form and the result is packed last, which gives the bytes of an index filled at once.
Graphs cannot be merged: their links lead from any row to any other.
"""

from collections.abc import Sequence
from io import BytesIO
from typing import IO, Any

from indexer.ann.factory import require_finite
from indexer.ann.faiss_index import (
    Reader,
    faiss_module,
    import_faiss,
    is_on_gpu,
    load_index,
    prefer_matrix_products,
    save_index,
)
from indexer.ann.leaves import leaves_of, reserve_codes, set_rows, vectors_for_leaves
from indexer.ann.score_aware import score_aware
from indexer.arrays import Vectors

# The plain form of each packed kind. FastScan forms of residual and additive quantizers are filled at once.
_PACKED = {
    "IndexPQFastScan": "IndexPQ",
    "IndexRaBitQFastScan": "IndexRaBitQ",
    "IndexIVFPQFastScan": "IndexIVFPQ",
    "IndexIVFRaBitQFastScan": "IndexIVFRaBitQ",
}


def is_mergeable(index: Any) -> bool:
    """Whether workers can fill shards of this kind of index separately, on CPUs."""
    return not is_on_gpu(index) and all(_is_packed(leaf) or _merges(leaf) for leaf in leaves_of(index))


class IndexShard:
    """Quantises rows with a trained, empty index, which stays empty; writes one shard after another."""

    def __init__(self, trained: Any) -> None:
        self._trained = trained
        self._leaves = _plain_leaves(trained)

    def add(self, vectors: Vectors, threads: int = 0) -> None:
        """Append vectors (n, k), as `add_vectors`. Raises ConfigError for NaN and infinity."""
        vectors = require_finite(vectors)
        prefer_matrix_products(self._trained.d)
        *finer, innermost = vectors_for_leaves(self._trained, vectors)
        coded = score_aware(self._trained, innermost, threads)
        for leaf, shaped in zip(self._leaves, [*finer, coded], strict=True):
            leaf.add(shaped)

    def save(self, file: IO[bytes]) -> list[int]:
        """Write the quantised vectors and drop them. Return the bytes of each index that they are written as."""
        sizes = []
        for leaf in self._leaves:
            written = BytesIO()
            save_index(leaf, written)
            sizes.append(file.write(written.getbuffer()))
            leaf.reset()
        return sizes


class IndexMerger:
    """Fills a trained, empty index with shards, in the order of their rows.

    Packing at the end keeps both forms of one layer at a time in memory.
    """

    def __init__(self, trained: Any, rows: int) -> None:
        """`rows` is the number of rows of all shards."""
        self._index, self._leaves = trained, _plain_leaves(trained)
        reserve_codes(self._leaves, rows)

    def take(self, file: Reader, sizes: Sequence[int], where: str) -> None:
        """Append a shard written by `IndexShard.save`. `where` names the file in errors."""
        for leaf, size in zip(self._leaves, sizes, strict=True):
            shard = load_index(BytesIO(file.read(size)), where, size)  # owns the index that `downcast_index` returns
            numbering = (leaf.ntotal,) if hasattr(leaf, "nlist") else ()  # inverted lists store row numbers
            leaf.merge_from(faiss_module().downcast_index(shard), *numbering)

    def finish(self) -> None:
        """Pack the vectors of packed kinds; call it once."""
        rows = self._leaves[0].ntotal
        for leaf in leaves_of(self._index):
            _pack(self._leaves.pop(0), leaf)
        set_rows(self._index, rows)


def _is_packed(leaf: Any) -> bool:
    return type(leaf).__name__ in _PACKED


def _merges(leaf: Any) -> bool:
    """Whether FAISS can append an index of this kind to another."""
    faiss = faiss_module()
    excluded = "FastScan" in type(leaf).__name__ or isinstance(leaf, faiss.IndexIVFFlatDedup)
    return not excluded and isinstance(leaf, faiss.IndexIVF | faiss.IndexFlatCodes)


def _plain_leaves(index: Any) -> list[Any]:
    return [_plain(leaf) if _is_packed(leaf) else leaf for leaf in leaves_of(index)]


def _plain(leaf: Any) -> Any:
    """Return an empty plain index with the trained state of a packed one, whose centroids it borrows."""
    kind, metric = getattr(import_faiss(), _PACKED[type(leaf).__name__]), leaf.metric_type
    if hasattr(leaf, "nlist"):
        quantizer = (leaf.pq.M, leaf.pq.nbits, metric) if hasattr(leaf, "pq") else (metric, True, leaf.rabitq.nb_bits)
        plain = kind(leaf.quantizer, leaf.d, leaf.nlist, *quantizer)
        plain.by_residual = leaf.by_residual
    elif hasattr(leaf, "pq"):
        plain = kind(leaf.d, leaf.pq.M, leaf.pq.nbits, metric)
    else:
        plain = kind(leaf.d, metric, leaf.rabitq.nb_bits)
        plain.center = leaf.center
    for trained in ("pq", "rabitq"):
        if hasattr(leaf, trained):
            setattr(plain, trained, getattr(leaf, trained))
    plain.is_trained = True
    return plain


def _pack(plain: Any, into: Any) -> None:
    if not _is_packed(into):
        return  # `plain` is `into`
    packed = type(into)(plain, into.bbs)
    if hasattr(into, "nlist"):
        packed.own_invlists = False
        into.replace_invlists(packed.invlists, True)
    else:
        into.codes, into.ntotal2 = packed.codes, packed.ntotal2
    into.ntotal = packed.ntotal
