"""The compared methods by name, and their settings."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from indexer.errors import ConfigError
from indexer.recipe.config import BuildConfig, WhiteningConfig
from search.evaluation.sts.score import Protocol
from search.evaluation.sweep import Setting, frozen_settings

Method = Literal[
    "cls", "mean", "max", "layers", "whitening", "sif", "sbert-wk", "flow", "latte-mix", "auto-encoder", "normal-vae"
]
METHODS: tuple[Method, ...] = get_args(Method)
OF_TRANSFORMERS: tuple[Method, ...] = ("cls", "layers", "sbert-wk")
TRAINED: tuple[Method, ...] = ("latte-mix", "auto-encoder", "normal-vae")
DRAWN: tuple[Method, ...] = ("flow", *TRAINED)  # random methods
SEEDS = 3
STRENGTHS = (0.25, 0.5, 1.0)
RAW = WhiteningConfig(strength="none", centre="none")
Layers = tuple[int, ...]


@dataclass(frozen=True)
class MethodsOptions:
    """The methods to compare. Whitening, flows and SIF's counts are fitted on the data that `fit` names; Latte-Mix and
    its controls are trained on `documents` documents of `corpus`, with `seeds` seeds each."""

    methods: Sequence[Method] = METHODS
    protocols: Sequence[Protocol] = ("mean",)
    fit: str = ""
    corpus: Path | None = None
    documents: int = 0  # 0: all
    seeds: int = SEEDS

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ConfigError(f"--seeds is {self.seeds}; expected at least 1.")
        if self.documents < 0:
            raise ConfigError(f"--documents is {self.documents}; expected 0 (all) or more.")
        if self.documents and self.corpus is None:
            raise ConfigError("--documents needs --corpus. Fix: add --corpus PATH.")
        if set(self.methods) & set(TRAINED) and self.corpus is None:
            named = ", ".join(method for method in self.methods if method in TRAINED)
            raise ConfigError(f"{named}: training needs a corpus. Fix: add --corpus PATH.")

    def wants(self, *methods: Method) -> bool:
        """Return whether any of these methods is compared."""
        return bool(set(methods) & set(self.methods))


def methods_of(names: Sequence[str], layered: bool) -> tuple[Method, ...]:
    """Return the named methods ("all": every method of the encoder), with mean pooling as the control.

    Raises ConfigError for a method of transformers if the encoder is a table.
    """
    offered = tuple(method for method in METHODS if layered or method not in OF_TRANSFORMERS)
    if "all" in names:
        return offered
    missing = [name for name in names if name not in offered]
    if missing:
        raise ConfigError(f"--method {', '.join(missing)}: a static table has no layers. Fix: leave it out.")
    return tuple(method for method in METHODS if method in names or method == "mean")


def plain_settings(plan: MethodsOptions, blocks: int, whitening: WhiteningConfig) -> list[Setting]:
    """Return the settings that need only embeddings: pooling, layers, whitening, SBERT-WK. 0 blocks: a table."""
    last: Layers = (-1,) if blocks else ()
    settings = [Setting("cls", last, RAW)] if plan.wants("cls") else []
    settings.append(Setting("mean", last, RAW))
    if plan.wants("max"):
        settings.append(Setting("max", last, RAW))
    if plan.wants("layers"):
        settings += [Setting("mean", layers, RAW) for layers in ((1,), (1, -1))]
    if plan.wants("whitening"):
        pairs = [(layers, strength) for layers in layer_choices(blocks) for strength in STRENGTHS]
        settings += [Setting("mean", layers, strengthened(whitening, strength)) for layers, strength in pairs]
    if plan.wants("sbert-wk"):
        settings += [Setting("sbert-wk", layers, RAW) for layers in sbert_wk_layers(blocks)]
    return settings


def flow_settings(blocks: int, recipe: BuildConfig, seed: int) -> list[Setting]:
    """Return settings with BERT-flow instead of whitening, with one seed."""
    flow = frozen_settings(recipe.papers.get("flow", {}) | {"seed": seed})
    config = WhiteningConfig(kind="flow", centre="common", sample=recipe.whitening.sample)
    return [Setting("mean", layers, config, flow) for layers in layer_choices(blocks)]


def sif_settings(blocks: int, whitening: WhiteningConfig) -> list[Setting]:
    """Return settings of SIF: its weights alone, with the first direction removed, and whitened."""
    last: Layers = (-1,) if blocks else ()
    weights_only = dataclasses.replace(RAW, remove=0)
    softly = strengthened(whitening, STRENGTHS[0])
    return [Setting("sif", last, config) for config in (weights_only, RAW, softly)]


def strengthened(whitening: WhiteningConfig, strength: float) -> WhiteningConfig:
    """Return whitening about one mean, because STS has one role."""
    return WhiteningConfig(strength=strength, centre="common", sample=whitening.sample)


def layer_choices(blocks: int) -> list[Layers]:
    """Return the last layer, layer 1 (the rawest) and the paper's average of both; no layers for a table."""
    return [(-1,), (1,), (1, -1)] if blocks else [()]


def sbert_wk_layers(blocks: int) -> list[Layers]:
    """Return SBERT-WK's layers: the upper two thirds as published (4 to 12 of 12 blocks), and all with embeddings."""
    upper = tuple(range(round(blocks / 3), blocks + 1))
    return list(dict.fromkeys([upper, tuple(range(blocks + 1))]))
