"""The modules of a sentence-transformers folder between the pooling and the embedding.

    N_Dense/        config.json, model.safetensors: activation(x @ weight.T + bias), plus x with `use_residual`
    N_LayerNorm/    config.json, model.safetensors
    N_Normalize/    unit length
    N_Dropout/      no effect on a trained model

`indexer.encoders.output_layers` applies them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from indexer.errors import ModelError
from indexer.hashing import canonical_sha256
from indexer.models.model_files import file_sha256
from indexer.models.model_json import read_json

if TYPE_CHECKING:
    from indexer.arrays import Float32Array

KINDS = ("Dense", "LayerNorm", "Normalize", "Dropout")
ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU", "Sigmoid", "SiLU")
_CONFIG, _WEIGHTS = "config.json", "model.safetensors"
_EMBEDDING = "sentence_embedding"
_TENSORS = {"Dense": ("linear.weight", "linear.bias", "residual.weight"), "LayerNorm": ("norm.weight", "norm.bias")}


class _Config(msgspec.Struct, frozen=True):
    """The config.json of a module, as far as it affects the result."""

    activation_function: str = "torch.nn.modules.activation.Tanh"
    use_residual: bool = False
    module_input_name: str = _EMBEDDING
    module_output_name: str | None = None


@dataclass(frozen=True)
class OutputLayer:
    """A loaded module. `tensors` are float32, by their names in the file."""

    kind: str
    activation: str = "Identity"
    residual: bool = False
    tensors: "dict[str, Float32Array]" = field(default_factory=dict)


@dataclass(frozen=True)
class OutputModule:
    """A module and its folder."""

    kind: str
    folder: Path

    @property
    def hashes(self) -> dict[str, str]:
        """File name -> sha256 of the files that affect the result."""
        names = (_CONFIG, _WEIGHTS) if self.kind in _TENSORS else ()
        return {name: file_sha256(self.folder / name) for name in names}

    def load(self) -> OutputLayer:
        """Read the module. Raises ModelError for a setting that is not supported, and for missing tensors."""
        if self.kind not in _TENSORS:
            return OutputLayer(self.kind)
        path = self.folder / _CONFIG
        config = read_json(path, _Config)
        activation = config.activation_function.rpartition(".")[2] if self.kind == "Dense" else "Identity"
        if activation not in ACTIVATIONS:
            raise ModelError(f"{path}: activation_function is {activation}; expected one of {', '.join(ACTIVATIONS)}.")
        if {config.module_input_name, config.module_output_name or _EMBEDDING} != {_EMBEDDING}:
            raise ModelError(f"{path}: reads {config.module_input_name}; expected {_EMBEDDING}, one vector per text.")
        return OutputLayer(self.kind, activation, config.use_residual, self._tensors())

    def _tensors(self) -> "dict[str, Float32Array]":
        from indexer.system.safetensors_file import SafetensorsFile  # loads numpy

        file, (first, *_) = SafetensorsFile(self.folder / _WEIGHTS), _TENSORS[self.kind]
        tensors = {name: file.floats(name) for name in _TENSORS[self.kind] if name in file}
        if first not in tensors or tensors[first].ndim != (2 if self.kind == "Dense" else 1):
            raise ModelError(f"{file.path}: contains {', '.join(file.names)}; expected the {first} of {self.kind}.")
        return tensors


def module_hashes(modules: tuple[OutputModule, ...]) -> dict[str, str] | None:
    """Return number and kind -> sha256 of each module's files; None without any. Dropout does not count."""
    counted = [module for module in modules if module.kind != "Dropout"]
    hashes = {f"{number}_{each.kind}": canonical_sha256(each.hashes) for number, each in enumerate(counted, start=1)}
    return hashes or None


def output_width(layers: Sequence[OutputLayer], size: int) -> int:
    """Return the size of a row after the layers. Raises ModelError if a row of `size` numbers does not fit them."""
    for number, layer in enumerate(layers, start=1):
        weight = next(iter(layer.tensors.values()), None)
        if weight is None:
            continue
        if weight.shape[-1] != size:
            raise ModelError(f"module {number} ({layer.kind}) reads {weight.shape[-1]} numbers; expected {size}.")
        size = len(weight)
    return size
