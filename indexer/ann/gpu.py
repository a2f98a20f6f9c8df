"""FAISS on a GPU: which kinds of index go there, and the way back. Files always hold CPU indexes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from indexer.ann.faiss_module import loaded_faiss, reason_of
from indexer.ann.layers import innermost, is_on_gpu
from indexer.errors import MachineError

MOST_ROWS = 2048  # that FAISS selects for a query on a GPU


def has_gpu(device: str) -> bool:
    """Whether the FAISS at hand is built for CUDA and sees the device "cuda" or "cuda:N"."""
    faiss = loaded_faiss()
    if not device.startswith("cuda") or not hasattr(faiss, "StandardGpuResources"):
        return False
    return bool(faiss.get_num_gpus() > _number(device))


def to_device(index: Any, device: str) -> Any:
    """A copy of the index on a GPU, to be trained, added to and searched there.

    `index` itself where the FAISS at hand has no such GPU, and for kinds without a GPU form or with one that does not
    come back as what it was: all but flat and IVF with whole vectors, scalar or 8-bit product quantizers. Raises
    MachineError if it does not fit.
    """
    if not has_gpu(device):
        return index
    faiss = loaded_faiss()
    if not isinstance(faiss.downcast_index(index), faiss.IndexFlat | faiss.IndexIVF):
        return index
    options = faiss.GpuClonerOptions()
    options.useFloat16 = options.useFloat16CoarseQuantizer = False
    try:
        return faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), _number(device), index, options)
    except RuntimeError as error:
        if "alloc" in str(error) or "memory" in str(error):
            raise MachineError(f"the index does not fit on {device}: {reason_of(error)}. Use --device cpu.") from error
        return index  # no GPU form: FastScan, RaBitQ, other sizes of codes


def to_cpu(index: Any) -> Any:
    """An index that can be saved: a copy on the CPU of one that is on a GPU, any other as it is."""
    return loaded_faiss().index_gpu_to_cpu(index) if is_on_gpu(index) else index


@contextmanager
def centroids_on(index: Any, device: str) -> Iterator[None]:
    """Within the block the centroids of inverted lists are trained on a GPU, and the index stays where it is.

    For kinds that `to_device` leaves where they are: with many lists, most of their training is that.
    """
    if is_on_gpu(index) or not has_gpu(device) or not hasattr(innermost(index), "clustering_index"):
        yield
        return
    lists = innermost(index)
    nearest = to_device(loaded_faiss().IndexFlat(lists.d, lists.metric_type), device)
    lists.clustering_index = nearest
    try:
        yield
    finally:
        lists.clustering_index = None


def _number(device: str) -> int:
    return int(device.partition(":")[2] or 0)
