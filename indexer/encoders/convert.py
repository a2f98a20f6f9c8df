"""Pickled weights to safetensors, once, so that nothing pickled is read when an index is built or searched."""

import pickle
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from indexer.encoders.model_files import inside, read_json
from indexer.errors import ExistsError, ModelError

_SINGLE = "pytorch_model.bin"
_INDEX = "pytorch_model.bin.index.json"


def convert_folder(source: Path, target: Path) -> None:
    """Copy the model in `source` to the new folder `target`, its weights as model.safetensors.

    Reads pytorch_model.bin, or the shards its index names, with `torch.load(weights_only=True)`, which runs no code of
    the pickle. Tensors that share memory are written once each, as copies. `target` appears only when complete.

    Raises ModelError when there is nothing to convert or it cannot be read, ExistsError when `target` exists.
    """
    if target.exists():
        raise ExistsError(f"{target}: is already there; expected the name of a new folder.")
    if not source.is_dir():
        raise ModelError(f"{source}: no such folder; expected one with {_SINGLE}.")
    if target.resolve().is_relative_to(source.resolve()):
        raise ModelError(f"{target}: lies inside {source}; expected a folder outside it.")
    pickles = _pickles(source)
    tensors = _read(source, pickles)
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        folder = beside / target.name
        shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.bin", _INDEX, ".git", "*.h5", "*.msgpack"))
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        folder.rename(target)
    except OSError as error:
        raise ModelError(f"{target}: cannot be written: {error}") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _pickles(source: Path) -> list[Path]:
    if (source / _SINGLE).is_file():
        return [source / _SINGLE]
    index = source / _INDEX
    if not index.is_file():
        raise ModelError(f"{source}: nothing to convert; expected {_SINGLE}, or shards with {_INDEX}.")
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{index}: has no weight_map; expected the name of a shard for each tensor.")
    shards = [inside(source, str(name)) for name in sorted({str(shard) for shard in weight_map.values()})]
    missing = [shard.name for shard in shards if not shard.is_file()]
    if missing:
        raise ModelError(f"{source}: {len(missing)} of {len(shards)} shards are missing: {', '.join(missing)}.")
    return shards


def _read(source: Path, pickles: list[Path]) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for path in pickles:
        for name, value in _load(path).items():
            if not isinstance(value, torch.Tensor):
                raise ModelError(f'{path}: "{name}" is {type(value).__name__}; expected only tensors.')
            tensors[name] = value
    # save_file refuses tensors that share memory; a copy of each is larger but says the same.
    return {name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}


def _load(path: Path) -> dict[str, Any]:
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError) as error:
        first = str(error).strip().split("\n")[0]
        raise ModelError(f"{path}: cannot be read as plain weights: {first}") from error
    if not isinstance(loaded, dict):
        raise ModelError(f"{path}: holds a {type(loaded).__name__}; expected a dict of tensors.")
    return loaded
