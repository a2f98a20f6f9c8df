"""Postings on disk: a safetensors file of one-dimensional arrays, memory-mapped to be read."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save as save_tensors

from search.hybrid.postings import Postings, Strings

_STRINGS = ("terms", "ids")
_ARRAYS = ("prefixes", "starts", "documents", "counts", "lengths")
_TYPES = {"U8": "u1", "U16": "<u2", "U32": "<u4", "U64": "<u8"}


def write_postings(path: Path, postings: Postings) -> None:
    """Equal postings give equal bytes."""
    arrays = {name: getattr(postings, name) for name in _ARRAYS}
    for name in _STRINGS:
        strings: Strings = getattr(postings, name)
        arrays |= {f"{name}.data": strings.data, f"{name}.starts": strings.starts}
    path.write_bytes(save_tensors(arrays))


def map_postings(path: Path) -> Postings:
    """The postings that `write_postings` wrote; only what is looked at is read from the disk."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    data = np.asarray(np.memmap(path, np.uint8, "r", offset=8 + size))
    arrays = {name: data[slice(*entry["data_offsets"])].view(_TYPES[entry["dtype"]]) for name, entry in header.items()}
    strings = {name: Strings(arrays.pop(f"{name}.data"), arrays.pop(f"{name}.starts")) for name in _STRINGS}
    return Postings(terms=strings["terms"], ids=strings["ids"], **arrays)
