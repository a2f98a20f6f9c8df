"""Fitted transforms and their file: safetensors arrays with the kind and settings as metadata."""

import json
from pathlib import Path
from typing import get_args

import msgspec
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from indexer.config import Role
from indexer.encoders.safetensors_file import parse_header
from indexer.errors import CorruptIndexError
from indexer.store.checked import as_damage, read_checked
from indexer.store.manifest import Manifest
from indexer.transforms.flow import Flow as Flow
from indexer.transforms.hellinger import Hellinger as Hellinger
from indexer.transforms.protocol import Transform as Transform
from indexer.transforms.whitening import Normalisation as Normalisation
from indexer.transforms.whitening import Whitening as Whitening
from indexer.transforms.whitening import fit_whitening as fit_whitening
from indexer.typed_json import decode_json

__all__ = [
    "Flow",
    "Hellinger",
    "Normalisation",
    "Transform",
    "Whitening",
    "dump_transform",
    "fit_whitening",
    "load_transform",
    "parse_transform",
]


def dump_transform(transform: Transform) -> bytes:
    """The bytes of a transform file."""
    arrays = {name: np.ascontiguousarray(array) for name, array in transform.arrays().items()}
    metadata = {"kind": transform.kind, "settings": json.dumps(transform.settings(), sort_keys=True)}
    # One metadata key only: safetensors keeps them in a hash map, and the order of two would vary from run to run.
    return save_tensors(arrays, metadata={"isotrope": json.dumps(metadata, sort_keys=True)})


class _Metadata(msgspec.Struct, frozen=True):
    kind: str
    settings: str  # JSON


class _Settings(msgspec.Struct, frozen=True):
    dim: int
    note: str = ""
    levels: int = 0  # of a flow, as is its depth
    depth: int = 0


def parse_transform(data: bytes, where: str) -> Transform:
    """The transform in bytes whose hash has been checked. `where` names the file in errors."""
    try:
        arrays = load_tensors(data)
        length = int.from_bytes(data[:8], "little")
        header = parse_header(data[8 : 8 + length], len(data))
        metadata = decode_json(header.metadata["isotrope"].encode(), _Metadata)
        settings = decode_json(metadata.settings.encode(), _Settings)
        if metadata.kind == "normalisation":
            return Normalisation(settings.dim, settings.note)
        if metadata.kind == "whitening":
            return Whitening.from_arrays(arrays, settings.note)
        if metadata.kind == "flow":
            return Flow.from_arrays(arrays, msgspec.structs.asdict(settings))
        if metadata.kind == "hellinger":
            return Hellinger(settings.dim, settings.note)
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise CorruptIndexError(f"{where}: not a transform file: {error}.") from error
    raise CorruptIndexError(f'{where}: holds a transform of kind "{metadata.kind}", which this version does not know.')


def load_transform(index: Path, manifest: Manifest) -> Transform:
    """The transform of a generation. Raises CorruptIndexError, also for one of other dimensions than it should have."""
    name, dim, into = manifest.transform["file"], manifest.encoder["dim"], manifest.transform["dim"]
    transform = parse_transform(read_checked(index / name, manifest.files[name]), str(index / name))
    with as_damage(index / name):
        for role in get_args(Role):
            made = transform.transform(np.ones((1, dim), np.float32), role)
            if made.shape != (1, into) or transform.dim != into or not np.isfinite(made).all():
                raise ValueError(f"it does not turn {dim} dimensions into {into}")
    return transform
