"""The two files of a Latte-Mix: latte-mix.safetensors (weights) and latte-mix.json (settings, scale, how it was made).

The second holds the sha256 of the first, so that files of two trainings are never taken for one.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from indexer.errors import ConfigError, ModelError
from indexer.lattemix.model import LatteMix, Rows, layer_shapes
from indexer.method_config import LatteMixConfig

WEIGHTS, FACTS = "latte-mix.safetensors", "latte-mix.json"
FILES = (WEIGHTS, FACTS)
_FORMAT = 1


def save_latte_mix(latte: LatteMix, folder: Path) -> None:
    """Write both files into the folder, which is made where it does not exist. The same state gives the same bytes.

    Raises ModelError where the folder cannot be written.
    """
    weights = save_tensors({name: np.ascontiguousarray(latte.parameters[name]) for name in sorted(latte.parameters)})
    facts = {
        "format": _FORMAT,
        "sha256": hashlib.sha256(weights).hexdigest(),
        "config": dataclasses.asdict(latte.config),
        "size": latte.size,
        "scale": latte.scale,
        "about": latte.about,
    }
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
    if facts.get("sha256") != hashlib.sha256(data).hexdigest():
        raise ModelError(
            f"{folder / WEIGHTS}: its sha256 is not the one in {FACTS}; the file was changed, or the two are of "
            "different trainings. Train again."
        )
    tensors = _tensors(data, folder / WEIGHTS)
    try:
        config, size, scale = LatteMixConfig(**facts["config"]), int(facts["size"]), float(facts["scale"])
        latte = LatteMix(config, size, scale, tensors, dict(facts["about"]))
    except (ConfigError, KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{folder / FACTS}: not the settings of a Latte-Mix: {error!r}.") from error
    if not 0 < scale < float("inf"):
        raise ModelError(f"{folder / FACTS}: the scale is {scale}; expected a number above 0.")
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


def _facts(path: Path) -> dict[str, Any]:
    try:
        facts = json.loads(_bytes(path))
    except ValueError as error:
        raise ModelError(f"{path}: not JSON: {error}.") from error
    if not isinstance(facts, dict) or facts.get("format") != _FORMAT:
        raise ModelError(f"{path}: not the description of a Latte-Mix in format {_FORMAT}.")
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
        return path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror}); expected a trained Latte-Mix there.") from error


def _replace(path: Path, data: bytes) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_bytes(data)
    beside.replace(path)
