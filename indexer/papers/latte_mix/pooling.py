"""Latte-Mix as a pooling: what `indexer.recipe.paper_methods` asks of a module."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from indexer.arrays import Float32Array, Int32Array, Int64Array
from indexer.encoders.pooling import TokenVectors, average_layers, pool
from indexer.encoders.token_embeddings import FitRequest, TokenEmbeddings, TokenGroup
from indexer.errors import MismatchError
from indexer.models.encoder_spec import EncoderSpec
from indexer.papers.latte_mix.model import FILES, LatteMix, load_latte_mix, save_latte_mix
from indexer.papers.latte_mix.settings import LatteMixConfig
from indexer.system.threads import single_blas_thread

if TYPE_CHECKING:
    from torch import Tensor

STATE_FILES = FILES


def identity_value(settings: LatteMixConfig) -> dict[str, Any]:
    """Return what an encoder's identity states of the settings."""
    return asdict(settings)


def fit(request: FitRequest) -> dict[str, Any]:
    """Train Latte-Mix and write its two files; return what is kept about it. Raises what `training` raises."""
    from indexer.papers.latte_mix.training import train_latte_mix

    spec = request.spec
    outputs = TokenEmbeddings(spec, request.options)
    count = sum(map(len, request.texts()))

    def stream() -> Iterator[TokenGroup]:
        for block in request.texts():
            yield from outputs(block)

    config = LatteMixConfig(**spec.identity.of_pooling["latte_mix"])
    latte = train_latte_mix(stream, count, config, request.on_step, device=_device(request.options.device))
    known = {
        "encoder": spec.identity.token_fingerprint,
        "model": spec.model,
        "layers": list(spec.identity.layers),
    }
    latte = replace(latte, about={**latte.about, **known})
    save_latte_mix(latte, request.folder)
    return dict(latte.about)


def _device(device: str) -> str:
    """Return where torch trains: "auto" is a CUDA device if there is one, else the CPU. Raises MachineError."""
    from indexer.encoders.device import choose_device

    chosen = choose_device(device)
    return str(chosen) if chosen.type == "cuda" else "cpu"


def check_state(spec: EncoderSpec, folder: Path) -> None:
    """Raise MismatchError for a folder that was trained on other token vectors or by other settings."""
    latte = load_latte_mix(folder)
    if latte.about.get("encoder") != spec.identity.token_fingerprint:
        raise MismatchError(
            f"encoder.fitted: {folder} was trained on the token vectors of another encoder "
            f"({latte.about.get('model', 'unknown')}, layers {latte.about.get('layers')}); train one with this recipe."
        )
    wanted = spec.identity.of_pooling["latte_mix"]
    other = [
        f"{name} is {value} there and {wanted[name]} here"
        for name, value in asdict(latte.config).items()
        if value != wanted[name]
    ]
    if other:
        raise MismatchError(
            f"encoder.fitted: {folder} was trained by other settings than papers.latte_mix: {', '.join(other)}. Take "
            f"its own recipe: --config {folder / 'recipe.toml'}"
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
    """Return the pooler of a model."""
    return LatteMixPooler(load_latte_mix(spec.fitted_folder("latte-mix")))


class LatteMixTablePooler:
    """The same for a table. Each distinct token of some texts passes through the auto-encoder once."""

    def __init__(self, latte: LatteMix) -> None:
        self._latte = latte

    def __call__(self, ids: Int32Array, starts: Int64Array, vectors: TokenVectors) -> Float32Array:
        distinct, places = np.unique(ids, return_inverse=True)
        posteriors = self._latte.posterior(vectors(distinct))
        rows = np.empty((len(starts) - 1, posteriors.shape[1]), np.float32)
        for text, (start, stop) in enumerate(pairwise(starts.tolist())):
            tokens, times = np.unique(places[start:stop], return_counts=True)
            shares = (times / (stop - start)).astype(np.float32)
            with single_blas_thread():
                rows[text] = shares @ posteriors[tokens]
        return rows

    def width(self, size: int) -> int:
        return self._latte.width


def open_table_pooler(spec: EncoderSpec) -> LatteMixTablePooler:
    """Return the pooler of a table."""
    return LatteMixTablePooler(load_latte_mix(spec.fitted_folder("latte-mix")))
