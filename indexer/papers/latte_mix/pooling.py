"""Latte-Mix as a pooling: the functions that `indexer.recipe.paper_methods` expects of a module."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from indexer.arrays import Float32Array, Int32Array, Int64Array
from indexer.encoders.pooling import TokenVectors, average_layers, pool
from indexer.encoders.token_embeddings import OnStep, Texts, TokenEmbeddings, TokenGroup
from indexer.errors import MismatchError, spelled
from indexer.models.encoder_spec import EncoderSpec
from indexer.papers.latte_mix.model import FILES, LatteMix, load_latte_mix, save_latte_mix
from indexer.papers.latte_mix.settings import LatteMixConfig
from indexer.recipe.run_options import RunOptions
from indexer.system.threads import single_blas_thread

if TYPE_CHECKING:
    from torch import Tensor

STATE_FILES = FILES


def identity_value(settings: LatteMixConfig) -> dict[str, Any]:
    return asdict(settings)


def fit(spec: EncoderSpec, texts: Texts, folder: Path, options: RunOptions, on_step: OnStep | None) -> dict[str, Any]:
    """Train Latte-Mix and write its two files; return facts about the training. Raises as `training` does."""
    from indexer.papers.latte_mix.training import train_latte_mix

    outputs, identity = TokenEmbeddings(spec, options), spec.identity

    def stream() -> Iterator[TokenGroup]:
        for block in texts():
            yield from outputs(block)

    config = LatteMixConfig(**identity.of_pooling["latte_mix"])
    latte = train_latte_mix(stream, sum(map(len, texts())), config, on_step, _device(options.device))
    known = {"encoder": identity.token_fingerprint, "model": spec.model, "layers": list(identity.layers)}
    save_latte_mix(replace(latte, about=latte.about | known), folder)
    return latte.about | known


def _device(device: str) -> str:
    """Return the training device: "auto" is a CUDA device if there is one, else the CPU. Raises MachineError."""
    from indexer.encoders.device import choose_device

    chosen = choose_device(device)
    return str(chosen) if chosen.type == "cuda" else "cpu"


def check_state(spec: EncoderSpec, folder: Path) -> None:
    """Raise MismatchError for a folder that was trained on other token vectors or with other settings."""
    latte = load_latte_mix(folder)
    if latte.about.get("encoder") != spec.identity.token_fingerprint:
        raise MismatchError(
            f"encoder.fitted: {folder} was trained on the token vectors of another encoder "
            f"({latte.about.get('model', 'unknown')}, layers {latte.about.get('layers')}). Fix: train with this recipe."
        )
    wanted = spec.identity.of_pooling["latte_mix"]
    settings = asdict(latte.config).items()
    other = [f"{name} is {value} there and {wanted[name]} here" for name, value in settings if value != wanted[name]]
    if other:
        raise MismatchError(
            f"encoder.fitted: {folder} was trained with other settings than papers.latte_mix: {', '.join(other)}. "
            "Fix: use its recipe: "
            + spelled(f'BuildConfig.load("{folder / "recipe.toml"}")', f"--config {folder / 'recipe.toml'}")
        )


class LatteMixPooler:
    """The mean of the posteriors of a model's tokens."""

    def __init__(self, latte: LatteMix) -> None:
        from indexer.papers.latte_mix.network import LatteMixHead

        self._head, self._width = LatteMixHead(latte), latte.width

    def __call__(self, states: "Sequence[Tensor]", ids: "Tensor", mask: "Tensor | None") -> "Tensor":
        return pool(self._head.to(ids.device)(average_layers(states)), mask, "mean")

    def width(self, size: int) -> int:
        return self._width


def open_pooler(spec: EncoderSpec, vocabulary: int) -> LatteMixPooler:
    return LatteMixPooler(load_latte_mix(spec.fitted_folder("latte-mix")))


class LatteMixTablePooler:
    """The mean of the posteriors of table vectors; each distinct token is encoded once."""

    def __init__(self, latte: LatteMix) -> None:
        self._latte = latte

    def __call__(self, ids: Int32Array, starts: Int64Array, vectors: TokenVectors) -> Float32Array:
        distinct, places = np.unique(ids, return_inverse=True)
        posteriors = self._latte.posterior(vectors(distinct))
        rows = np.empty((len(starts) - 1, posteriors.shape[1]), np.float32)
        for text, (start, stop) in enumerate(pairwise(starts.tolist())):
            tokens, counts = np.unique(places[start:stop], return_counts=True)
            shares = (counts / (stop - start)).astype(np.float32)
            with single_blas_thread():
                rows[text] = shares @ posteriors[tokens]
        return rows

    def width(self, size: int) -> int:
        return self._latte.width


def open_table_pooler(spec: EncoderSpec) -> LatteMixTablePooler:
    return LatteMixTablePooler(load_latte_mix(spec.fitted_folder("latte-mix")))
