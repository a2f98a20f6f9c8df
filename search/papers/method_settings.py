"""The methods that are compared, by name, and the settings that some of them are."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from indexer.errors import ConfigError
from indexer.recipe.config import BuildConfig, WhiteningConfig
from search.evaluation.settings import Setting, frozen_settings
from search.evaluation.sts.score import Protocol

Method = Literal[
    "cls", "mean", "max", "layers", "whitening", "sif", "sbert-wk", "flow", "latte-mix", "auto-encoder", "normal-vae"
]
METHODS: tuple[Method, ...] = get_args(Method)
OF_TRANSFORMERS: tuple[Method, ...] = ("cls", "layers", "sbert-wk")
TRAINED: tuple[Method, ...] = ("latte-mix", "auto-encoder", "normal-vae")
DRAWN: tuple[Method, ...] = ("flow", *TRAINED)  # that depend on a seed
SEEDS = 3
STRENGTHS = (0.25, 0.5, 1.0)
RAW = WhiteningConfig(strength="none", centre="none")
Layers = tuple[int, ...]


@dataclass(frozen=True)
class MethodsOptions:
    """What is compared. Whitening, flows and SIF's counts are fitted as `fit` says; Latte-Mix and its controls are
    trained on `documents` documents of `corpus`, with `seeds` seeds each."""

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
            raise ConfigError("--documents says how much of --corpus is used; name that too.")
        if set(self.methods) & set(TRAINED) and self.corpus is None:
            named = ", ".join(method for method in self.methods if method in TRAINED)
            raise ConfigError(f"{named}: trained without labels on a corpus; name one with --corpus PATH.")

    def wants(self, *methods: Method) -> bool:
        """Whether one of these is compared."""
        return bool(set(methods) & set(self.methods))


def methods_of(names: Sequence[str], layered: bool) -> tuple[Method, ...]:
    """The methods asked for ("all" is every one that the encoder has), mean pooling beside them as the control.

    Raises ConfigError for a method of transformers where the encoder is a table.
    """
    offered = tuple(method for method in METHODS if layered or method not in OF_TRANSFORMERS)
    if "all" in names:
        return offered
    missing = [name for name in names if name not in offered]
    if missing:
        raise ConfigError(f"--method {', '.join(missing)}: a static table has no layers. Leave it out.")
    return tuple(method for method in METHODS if method in names or method == "mean")


def plain_settings(plan: MethodsOptions, blocks: int, whitening: WhiteningConfig) -> list[Setting]:
    """The settings that need nothing but embeddings: pooling, layers, whitening, SBERT-WK. 0 blocks: a table."""
    last: Layers = (-1,) if blocks else ()
    found: list[Setting] = []
    if plan.wants("cls"):
        found.append(Setting("cls", last, RAW))
    found.append(Setting("mean", last, RAW))
    if plan.wants("max"):
        found.append(Setting("max", last, RAW))
    if plan.wants("layers"):
        found += [Setting("mean", layers, RAW) for layers in ((1,), (1, -1))]
    if plan.wants("whitening"):
        found += [
            Setting("mean", layers, strengthened(whitening, strength))
            for layers in layer_choices(blocks)
            for strength in STRENGTHS
        ]
    if plan.wants("sbert-wk"):
        found += [Setting("sbert-wk", layers, RAW) for layers in sbert_wk_layers(blocks)]
    return found


def flow_settings(blocks: int, recipe: BuildConfig, seed: int) -> list[Setting]:
    """Return settings of BERT-flow in the place of whitening, with one seed."""
    flow = frozen_settings(recipe.papers.get("flow", {}) | {"seed": seed})
    config = WhiteningConfig(kind="flow", centre="common", sample=recipe.whitening.sample)
    return [Setting("mean", layers, config, flow) for layers in layer_choices(blocks)]


def sif_settings(blocks: int, whitening: WhiteningConfig) -> list[Setting]:
    """SIF with the first direction removed, its weights alone, and whitened."""
    last: Layers = (-1,) if blocks else ()
    weights_only = dataclasses.replace(RAW, remove=0)
    softly = strengthened(whitening, STRENGTHS[0])
    return [Setting("sif", last, config) for config in (weights_only, RAW, softly)]


def strengthened(whitening: WhiteningConfig, strength: float) -> WhiteningConfig:
    """Whitening about one mean, as STS has one role."""
    return WhiteningConfig(strength=strength, centre="common", sample=whitening.sample)


def layer_choices(blocks: int) -> list[Layers]:
    """The last layer, layer 1 (the rawest) and the paper's average of both; a table has none."""
    return [(-1,), (1,), (1, -1)] if blocks else [()]


def sbert_wk_layers(blocks: int) -> list[Layers]:
    """SBERT-WK's layers: the upper two thirds as published (4 to 12 of 12 blocks), and all with the embeddings."""
    upper = tuple(range(round(blocks / 3), blocks + 1))
    return list(dict.fromkeys([upper, tuple(range(blocks + 1))]))
