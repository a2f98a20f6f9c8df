"""Sizes of encoders, from `constants.json` for well-known names or from a model's folder."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from indexer.errors import ConfigError, ModelError
from indexer.recipe.config import EncoderConfig
from indexer.recipe.loading import did_you_mean
from indexer.system.regular_files import read_regular
from search.plan.ledger import read_constants

_CONFIG_BYTES = 1 << 20
_HIDDEN = ("hidden_size", "dim", "d_model")
_LAYERS = ("num_hidden_layers", "n_layers", "num_layers")
_INNER = ("intermediate_size", "hidden_dim", "d_ff")


@dataclass(frozen=True)
class ModelShape:
    """Sizes of an encoder: `blocks` of width `hidden` and `inner`; a static table has no blocks."""

    name: str
    hidden: int
    blocks: int = 0
    inner: int = 0

    @property
    def parameters(self) -> int:
        """Weights of the matrices of all blocks."""
        return self.blocks * (4 * self.hidden**2 + 2 * self.hidden * self.inner)

    def flops(self, tokens: float) -> float:
        """Return the FLOPs of one text without padding; a multiplication and an addition count as two."""
        return 2 * self.parameters * tokens + 4 * self.blocks * self.hidden * tokens**2


def model_shape(encoder: EncoderConfig) -> ModelShape:
    """Return the shape of a recipe's encoder, up to the highest layer that the recipe uses, without downloads.

    Raises ConfigError for an unknown name, ModelError for a folder whose config.json lacks the sizes.
    """
    folder = Path(encoder.model).expanduser()
    name = folder.name
    if encoder.kind == "vectors":
        raise ConfigError("a plan needs an encoder, but encoder.kind is vectors. Fix: name an encoder with --model.")
    if (folder / "config.json").is_file():
        return _cut(_of_folder(folder, encoder.kind == "static"), encoder.layers)
    models: dict[str, list[int]] = read_constants()["models"]  # hidden, blocks, inner; static tables: only hidden
    known = {known: sizes for known, sizes in models.items() if len(sizes) == 1 or encoder.kind != "static"}
    if name.lower() in known:
        return _cut(ModelShape(name, *known[name.lower()]), encoder.layers)
    if folder.is_dir():
        raise ConfigError(
            f"--model: {folder} is a folder without config.json; expected the folder of a model, or a name such as "
            "bert-base-uncased or potion-base-4M."
        )
    raise ConfigError(f"--model: {did_you_mean('model', name.lower(), known)} Or name a folder with config.json.")


def _cut(shape: ModelShape, layers: tuple[int, ...]) -> ModelShape:
    if not shape.blocks:
        return shape
    highest = max(shape.blocks + 1 + layer if layer < 0 else layer for layer in layers)
    return ModelShape(shape.name, shape.hidden, min(shape.blocks, highest), shape.inner)


def _of_folder(folder: Path, static: bool) -> ModelShape:
    path = folder / "config.json"
    try:
        config = json.loads(read_regular(path, _CONFIG_BYTES))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read: {error}.") from error
    if not isinstance(config, dict):
        raise ModelError(f"{path}: expected a JSON object.")
    if static or config.get("model_type") == "model2vec":
        return ModelShape(folder.name, _size(config, ("hidden_dim", *_HIDDEN), path))
    return ModelShape(folder.name, _size(config, _HIDDEN, path), _size(config, _LAYERS, path),
                      _size(config, _INNER, path))  # fmt: skip


def _size(config: Mapping[str, Any], names: tuple[str, ...], path: Path) -> int:
    for name in names:
        if isinstance(config.get(name), int) and config[name] > 0:
            return int(config[name])
    raise ModelError(f"{path}: has no {names[0]}; expected a whole number above 0.")
