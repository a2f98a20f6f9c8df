"""Latte-Mix and its controls on the pairs of a task: trained with several seeds, compared by several similarities."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from indexer.config import LatteMixConfig
from indexer.pooling.latte_mix import LatteMix, train_latte_mix
from indexer.pooling.latte_mix.divergence import js_similarity, mixture_l2, negative_l2
from indexer.progress import Progress
from search.evaluation.sts.correlation import Array, Positions, cosines
from search.evaluation.sts.data import Task
from search.evaluation.sts.methods.names import Method, MethodsPlan
from search.evaluation.sts.methods.tokens import Rows, SentenceTokens, TrainingTokens

Pairs = tuple[Positions, Positions]
TaskScores = Mapping[str, Sequence[Array]]
"""Similarities (pairs,) of each subset, by task."""


@dataclass(frozen=True)
class Variant:
    """One method with one seed (None: nothing is drawn), and what it says of every pair."""

    label: str
    method: str
    seed: int | None
    scores: TaskScores
    facts: Mapping[str, object] = field(default_factory=dict)  # for its row; JSON types
    untrained: str = ""  # the label of its untrained control


@dataclass(frozen=True)
class Trained:
    """What is trained, and on what: `layers` name the token vectors in labels."""

    method: Method
    config: LatteMixConfig
    layers: str
    sentences: SentenceTokens
    training: TrainingTokens


def mixture_variants(
    plan: MethodsPlan, config: LatteMixConfig, layers: str, sentences: SentenceTokens, training: TrainingTokens
) -> Iterator[Trained]:
    """Every auto-encoder that the plan asks for, seed by seed; beside Latte-Mix its untrained control."""
    kinds: list[tuple[Method, dict[str, object]]] = []
    if plan.wants("latte-mix"):
        kinds += [("latte-mix", {"latent": "categorical"})] if config.epochs else []
        kinds.append(("latte-mix", {"latent": "categorical", "epochs": 0}))
    if plan.wants("auto-encoder"):
        kinds.append(("auto-encoder", {"latent": "none"}))
    if plan.wants("normal-vae"):
        kinds.append(("normal-vae", {"latent": "normal"}))
    for method, changes in kinds:
        for seed in range(plan.seeds):
            changed = dataclasses.replace(config, seed=seed, **changes)  # type: ignore[arg-type]
            yield Trained(method, changed, layers, sentences, training)


def train_and_score(trained: Trained, tasks: Sequence[Task], progress: Progress) -> list[Variant]:
    """One auto-encoder, trained and compared by each of its similarities."""
    config = trained.config
    name, control = (_name(trained, untrained) for untrained in (not config.epochs, True))
    progress.phase(f"{name}, seed {config.seed}", None)
    latte = train_latte_mix(trained.training, trained.training.texts, config)
    facts = {"trained_texts": trained.training.texts if config.epochs else 0, "epochs": config.epochs}
    compared = trained.method == "latte-mix" and config.epochs > 0
    return [
        Variant(
            f"{name} {similarity}",
            trained.method,
            config.seed,
            scores,
            facts,
            f"{control} {similarity}" if compared else "",
        )
        for similarity, scores in _scores(latte, trained.sentences, tasks).items()
    ]


def _name(trained: Trained, untrained: bool) -> str:
    return " ".join(filter(None, [trained.method, trained.layers, "untrained" * untrained]))


def _scores(latte: LatteMix, sentences: SentenceTokens, tasks: Sequence[Task]) -> dict[str, TaskScores]:
    rows = sentences.pooled(latte.posterior)
    double = rows.astype(np.float64)
    compared: dict[str, Callable[[Pairs], Array]] = {"cosine": lambda pairs: cosines(double, *pairs)}
    if latte.config.latent == "categorical":
        compared["js"] = lambda pairs: js_similarity(rows[pairs[0]], rows[pairs[1]], latte.config.dims)
    if latte.config.latent == "normal":
        compared["mixture l2"] = lambda pairs: _mixtures(latte, sentences, pairs)
    else:
        compared["l2"] = lambda pairs: negative_l2(rows[pairs[0]], rows[pairs[1]])
    return {name: score_tasks(compare, sentences.positions, tasks) for name, compare in compared.items()}


def score_tasks(compare: Callable[[Pairs], Array], positions: Mapping[str, int], tasks: Sequence[Task]) -> TaskScores:
    """What `compare` says of every pair of every subset."""
    return {
        task.name: [
            compare(
                (
                    np.array([positions[text] for text in subset.first], np.intp),
                    np.array([positions[text] for text in subset.second], np.intp),
                )
            )
            for subset in task.subsets
        ]
        for task in tasks
    }


def _mixtures(latte: LatteMix, sentences: SentenceTokens, pairs: Pairs) -> Array:
    """Minus the l2 distance of two sentences as mixtures of their tokens' Gaussians."""
    needed = np.unique(np.concatenate(pairs)).tolist()
    normals: dict[int, tuple[Rows, Rows]] = {one: latte.normal(sentences.tokens(one)) for one in needed}
    first, second = (positions.tolist() for positions in pairs)
    return np.array([-mixture_l2(normals[a], normals[b]) for a, b in zip(first, second, strict=True)])
