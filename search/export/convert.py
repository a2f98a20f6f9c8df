"""Converts pickled weights to safetensors, so that building and searching never read a pickle."""

import pickle
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from indexer.errors import ExistsError, ModelError
from indexer.models.hub import DOWNLOADED
from indexer.models.model_files import ONNX_FILES, own_file, require_plain_files, shards
from indexer.system.regular_files import open_regular

_SINGLE = "pytorch_model.bin"
_INDEX = "pytorch_model.bin.index.json"
# The files of a model that this project reads, and its licences. No other file is copied.
_COPIED = (*DOWNLOADED, "README.md", "LICENSE*", "NOTICE*")
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json")


def convert_to_safetensors(source: Path, target: Path) -> None:
    """Copy the model in `source` to the new folder `target`, its weights as model.safetensors.

    Copies the model's other files, and follows no link out of `source`, except to the blobs of the same model in the
    Hugging Face cache. Reads pytorch_model.bin, or the shards of its index, with `torch.load(weights_only=True)`, which
    runs no code of the pickle. Each tensor that shares memory is written as a copy. `target` appears only when
    complete.

    Raises ModelError for missing or unreadable weights and for a link that leads elsewhere, ExistsError if `target`
    exists.
    """
    if target.exists():
        raise ExistsError(f"{target}: already exists; expected the name of a new folder.")
    if not source.is_dir():
        raise ModelError(f"{source}: no such folder; expected a folder with {_SINGLE}.")
    if target.resolve().is_relative_to(source.resolve()):
        raise ModelError(f"{target}: is inside {source}; expected a folder outside it.")
    require_plain_files(source)
    copied = {name: own_file(source, name) for name in _names(source)}
    tensors = _read(_pickles(source))
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        folder = temporary / target.name
        folder.mkdir()
        for name, path in copied.items():
            _copy(path, folder / name)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        folder.rename(target)
    except OSError as error:
        raise ModelError(f"{target}: cannot be written: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _pickles(source: Path) -> list[Path]:
    if (source / _SINGLE).is_file():
        return [own_file(source, _SINGLE)]
    if not (source / _INDEX).is_file():
        if onnx := next((name for name in ONNX_FILES if (source / name).is_file()), ""):
            raise ModelError(f"{source}: nothing to convert; OpenVINO runs {onnx} as it is (encoder.model={source}).")
        raise ModelError(f"{source}: nothing to convert; expected {_SINGLE}, or shards with {_INDEX}.")
    return [own_file(source, name) for name in shards(source, _INDEX)]


def _names(source: Path) -> list[str]:
    """Return the files to copy, relative to the folder; some can be links."""
    paths = {path.relative_to(source) for pattern in _COPIED for path in source.glob(pattern)}
    return sorted(path.as_posix() for path in paths if not any(map(path.match, _WEIGHTS)))


def _copy(path: Path, target: Path) -> None:
    target.parent.mkdir(exist_ok=True)
    with open_regular(path, follow_links=False) as source, target.open("xb") as copy:
        shutil.copyfileobj(source, copy)


def _read(pickles: list[Path]) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for path in pickles:
        for name, value in _load(path).items():
            if not isinstance(value, torch.Tensor):
                raise ModelError(f'{path}: "{name}" is {type(value).__name__}; expected only tensors.')
            tensors[name] = value
    # save_file rejects tensors that share memory, so each is copied.
    return {name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}


def _load(path: Path) -> dict[str, Any]:
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError) as error:
        first = str(error).strip().split("\n")[0]
        raise ModelError(f"{path}: cannot be read as plain weights: {first}") from error
    if not isinstance(loaded, dict):
        raise ModelError(f"{path}: contains a {type(loaded).__name__}; expected a dict of tensors.")
    return loaded
