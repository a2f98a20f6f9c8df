"""Fitting what an encoder needs beside its model: int8 ranges, SIF's token counts, Latte-Mix's auto-encoder.

Each writes a few files into a folder; `spec.with_fitted_state` makes them part of the encoder.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from indexer.config import LatteMixConfig
from indexer.encoders.model_files import file_sha256
from indexer.encoders.protocol import EncoderSpec
from indexer.encoders.spec import with_fitted_state
from indexer.errors import MismatchError, ModelError
from indexer.run_options import RunOptions

Texts = Callable[[], Iterator[list[str]]]
"""The texts to fit on, block by block, any number of times."""
OnStep = Callable[[int, int], None]
RECIPE = "recipe.toml"  # beside what was trained: how to build with it
_DEFAULTS = RunOptions()


def fit_state(
    spec: EncoderSpec,
    texts: Texts,
    folder: Path,
    options: RunOptions = _DEFAULTS,
    on_step: OnStep | None = None,
) -> None:
    """Write the fitted state of an encoder into `folder`: fitted on `texts`, or taken from where it was trained.

    `on_step(done, total)` hears of training. Raises ConfigError where there is no text, and what reading a trained
    state raises.
    """
    if spec.trained:
        load_fitted_state(spec)
        _copy(Path(spec.trained), folder)
    elif spec.identity.precision == "int8":
        _calibrate(spec, texts, folder)
    elif spec.identity.pooling == "sif":
        _count(spec, texts, folder, options)
    else:
        fit_latte_mix(spec, texts, folder, options, on_step)


def load_fitted_state(spec: EncoderSpec) -> EncoderSpec:
    """The encoder with the state that `isotrope train` wrote for it.

    Raises ModelError for a folder without one, MismatchError for one that was trained on other token vectors or by
    other settings.
    """
    from indexer.pooling.latte_mix import FILES, load_latte_mix

    folder = Path(spec.trained)
    if not folder.is_dir():
        raise ModelError(f"encoder.fitted: {folder}: no such folder; expected one that `isotrope train` wrote.")
    latte = load_latte_mix(folder)
    if latte.about.get("encoder") != spec.identity.token_fingerprint:
        raise MismatchError(
            f"encoder.fitted: {folder} was trained on the token vectors of another encoder "
            f"({latte.about.get('model', 'unknown')}, layers {latte.about.get('layers')}); train one with this recipe."
        )
    wanted = spec.identity.latte_mix or {}
    if asdict(latte.config) != wanted:
        other = [
            f"{name} is {value} there and {wanted[name]} here"
            for name, value in asdict(latte.config).items()
            if value != wanted[name]
        ]
        raise MismatchError(
            f"encoder.fitted: {folder} was trained by other settings than encoder.latte_mix: {', '.join(other)}. Take "
            f"its own recipe: --config {folder / RECIPE}"
        )
    return with_fitted_state(spec, folder, {name: file_sha256(folder / name) for name in FILES})


def fit_latte_mix(
    spec: EncoderSpec,
    texts: Texts,
    folder: Path,
    options: RunOptions = _DEFAULTS,
    on_step: OnStep | None = None,
) -> dict[str, Any]:
    """Train Latte-Mix on texts and write it into `folder`; returns what is kept about it.

    Raises what `latte_mix.training` raises.
    """
    from indexer.encoders.token_embeddings import TokenEmbeddings, TokenGroup
    from indexer.pooling.latte_mix import save_latte_mix, train_latte_mix

    outputs = TokenEmbeddings(spec, options)
    count = sum(map(len, texts()))

    def stream() -> Iterator[TokenGroup]:
        for block in texts():
            yield from outputs(block)

    config = LatteMixConfig(**spec.identity.latte_mix or {})
    latte = train_latte_mix(stream, count, config, on_step, device=training_device(options.device))
    layers = list(spec.identity.layers)
    known = {"encoder": spec.identity.token_fingerprint, "model": spec.model, "layers": layers}
    latte = replace(latte, about={**latte.about, **known})
    save_latte_mix(latte, folder)
    return dict(latte.about)


def training_device(device: str) -> str:
    """Where torch trains: "auto" is a CUDA device if there is one, else the CPU. Raises MachineError."""
    from indexer.encoders.device import choose_device

    chosen = choose_device(device)
    return str(chosen) if chosen.type == "cuda" else "cpu"


def _count(spec: EncoderSpec, texts: Texts, folder: Path, options: RunOptions) -> None:
    from indexer.encoders.token_embeddings import TokenEmbeddings
    from indexer.pooling.sif import count_tokens, write_counts

    outputs = TokenEmbeddings(spec, options)
    write_counts(folder, count_tokens((outputs.tokens(block).ids for block in texts()), outputs.vocabulary))


def _calibrate(spec: EncoderSpec, texts: Texts, folder: Path) -> None:
    from indexer.encoders.int8 import CALIBRATION_TEXTS, quantise

    quantise(spec, _spread([text for block in texts() for text in block], CALIBRATION_TEXTS), folder)


def _spread(texts: Sequence[str], most: int) -> list[str]:
    """At most so many of the texts, at even distances."""
    if len(texts) <= most:
        return list(texts)
    return [texts[place * len(texts) // most] for place in range(most)]


def _copy(source: Path, folder: Path) -> None:
    from indexer.pooling.latte_mix import FILES

    for name in FILES:
        shutil.copyfile(source / name, folder / name)
