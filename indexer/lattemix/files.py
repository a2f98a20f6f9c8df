"""The two files of a Latte-Mix: latte-mix.safetensors (weights) and latte-mix.json (settings, scale, how it was made).

The second holds the sha256 of the first, so that files of two trainings are never taken for one.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from indexer.config import LatteMixConfig
from indexer.errors import ConfigError, ModelError
from indexer.lattemix.model import LatteMix, Rows, layer_shapes
from indexer.regular_files import read_regular
from indexer.settings import from_mapping
from indexer.typed_json import decode_json

WEIGHTS, FACTS = "latte-mix.safetensors", "latte-mix.json"
FILES = (WEIGHTS, FACTS)
_FORMAT = 1


@dataclass(frozen=True)
class _Facts:
    """What latte-mix.json holds."""

    format: int
    sha256: str
    config: dict[str, Any]
    size: int
    scale: float
    about: dict[str, Any]


def save_latte_mix(latte: LatteMix, folder: Path) -> None:
    """Write both files into the folder, which is made where it does not exist. The same state gives the same bytes.

    Raises ModelError where the folder cannot be written.
    """
    weights = save_tensors({name: np.ascontiguousarray(latte.parameters[name]) for name in sorted(latte.parameters)})
    digest, config = hashlib.sha256(weights).hexdigest(), dataclasses.asdict(latte.config)
    facts = dataclasses.asdict(_Facts(_FORMAT, digest, config, latte.size, latte.scale, latte.about))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _replace(folder / WEIGHTS, weights)
        _replace(folder / FACTS, (json.dumps(facts, indent=1, sort_keys=True) + "\n").encode())
    except OSError as error:
        raise ModelError(f"{folder}: cannot be written: {error.strerror}.") from error


def load_latte_mix(folder: Path) -> LatteMix:
    """What `save_latte_mix` wrote.

    Raises ModelError for files that are missing, damaged, of two trainings, or something else.
    """
    facts, data = _facts(folder / FACTS), _bytes(folder / WEIGHTS)
    if facts.sha256 != hashlib.sha256(data).hexdigest():
        raise ModelError(
            f"{folder / WEIGHTS}: its sha256 is not the one in {FACTS}; the file was changed, or the two are of "
            "different trainings. Train again."
        )
    tensors = _tensors(data, folder / WEIGHTS)
    try:
        config: LatteMixConfig = from_mapping(LatteMixConfig, facts.config, "config")
    except ConfigError as error:
        raise ModelError(f"{folder / FACTS}: not the settings of a Latte-Mix: {error}") from error
    latte = LatteMix(config, facts.size, facts.scale, tensors, facts.about)
    if not 0 < facts.scale < float("inf"):
        raise ModelError(f"{folder / FACTS}: the scale is {facts.scale}; expected a number above 0.")
    if config.decoder_layers > len(tensors):
        raise ModelError(f"{folder / FACTS}: has {config.decoder_layers:,} layers, {WEIGHTS} {len(tensors)} arrays.")
    _check_shapes(latte, folder / WEIGHTS)
    return latte


def _check_shapes(latte: LatteMix, path: Path) -> None:
    found = {name: array.shape for name, array in latte.parameters.items()}
    expected = layer_shapes(latte.config, latte.size)
    for name in sorted(found.keys() | expected.keys()):
        if found.get(name) != expected.get(name):
            raise ModelError(
                f"{path}: {name} has the shape {found.get(name)}; expected {expected.get(name)} by {FACTS} "
                "(None: no such array)."
            )


def _facts(path: Path) -> _Facts:
    try:
        facts = decode_json(_bytes(path), _Facts)
    except ValueError as error:
        raise ModelError(f"{path}: not the description of a Latte-Mix: {error}.") from error
    if facts.format != _FORMAT:
        raise ModelError(f"{path}: a Latte-Mix in format {facts.format}; expected format {_FORMAT}.")
    return facts


def _tensors(data: bytes, path: Path) -> Mapping[str, Rows]:
    try:
        tensors: Mapping[str, Rows] = load_tensors(data)
    except (SafetensorError, KeyError) as error:  # KeyError: a type that numpy does not have
        raise ModelError(f"{path}: not a safetensors file of float32 numbers: {error}.") from error
    if any(array.dtype != np.float32 or not np.isfinite(array).all() for array in tensors.values()):
        raise ModelError(f"{path}: holds something else than finite float32 numbers.")
    return tensors


def _bytes(path: Path) -> bytes:
    try:
        return read_regular(path)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror}); expected a trained Latte-Mix there.") from error


def _replace(path: Path, data: bytes) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_bytes(data)
    beside.replace(path)
