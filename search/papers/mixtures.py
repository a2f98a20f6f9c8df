"""Latte-Mix and its controls on the pairs of a task: trained with several seeds, compared by several similarities.

Token vectors of the tasks' sentences are in memory, those of the training corpus in a file that every seed reads.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from indexer.arrays import Float32Array, Float64Array
from indexer.encoders.token_embeddings import TokenEmbeddings, TokenGroup
from indexer.papers.latte_mix.divergence import js_similarity, mixture_l2, negative_l2
from indexer.papers.latte_mix.model import LatteMix
from indexer.papers.latte_mix.settings import LatteMixConfig
from indexer.papers.latte_mix.training import train_latte_mix
from indexer.progress import Progress
from search.evaluation.embeddings import digest_of
from search.evaluation.sts.data import Task
from search.evaluation.sts.score import Positions, cosines
from search.papers.method_settings import Method, MethodsOptions

Ints = npt.NDArray[np.int64]
_STORED = np.float16  # half the disk; token vectors are of the order of 1
_TEXTS = 1024  # texts read together
_BLOCK_TOKENS = 1 << 14  # tokens that pass through an auto-encoder together


@dataclass(frozen=True)
class SentenceTokens:
    """Concatenated token vectors (tokens, d) of distinct sentences; sentence i is rows[starts[i]:starts[i + 1]]."""

    positions: dict[str, int]
    rows: Float32Array
    starts: Ints

    @classmethod
    def of(cls, outputs: TokenEmbeddings, texts: Sequence[str], layers: Sequence[int]) -> "SentenceTokens":
        """Return the token vectors of texts, each distinct text once."""
        distinct = list(dict.fromkeys(texts))
        groups = list(outputs(distinct, layers))
        lengths = np.concatenate([np.diff(starts) for _, starts in groups])
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return cls({text: row for row, text in enumerate(distinct)}, np.concatenate([r for r, _ in groups]), starts)

    def tokens(self, sentence: int) -> Float32Array:
        """Return the token vectors of one sentence."""
        return self.rows[self.starts[sentence] : self.starts[sentence + 1]]

    def pooled(self, posterior: Callable[[Float32Array], Float32Array]) -> Float32Array:
        """Return the mean of `posterior` over each sentence's tokens, (sentences, width) float32."""
        ends, blocks, first = self.starts[1:], [], 0
        while first < len(ends):
            last = int(np.searchsorted(ends, self.starts[first] + _BLOCK_TOKENS, side="right"))
            last = max(last, first + 1)
            inside = self.starts[first : last + 1] - self.starts[first]
            block = posterior(self.rows[self.starts[first] : self.starts[last]])
            blocks.append(np.add.reduceat(block, inside[:-1], axis=0) / np.diff(inside)[:, None].astype(np.float32))
            first = last
        return np.concatenate(blocks)


@dataclass(frozen=True)
class TrainingTokens:
    """Token vectors of a corpus in a file of float16, read in groups."""

    path: Path
    size: int
    starts: Ints

    @property
    def texts(self) -> int:
        return len(self.starts) - 1

    @classmethod
    def write(
        cls, outputs: TokenEmbeddings, texts: Sequence[str], layers: Sequence[int], folder: Path, progress: Progress
    ) -> "TrainingTokens":
        """Encode the texts, unless `folder` contains their token vectors by this encoder."""
        encoder = outputs.encoder
        encoded = f"{encoder.spec.identity.token_fingerprint} {list(layers)} {encoder.backend}"
        path = folder / f"{digest_of(encoded.encode(), texts)}.tokens"
        starts_file = path.with_suffix(".starts.npy")
        if not starts_file.exists():
            progress.phase("encoding the training corpus", len(texts))
            lengths = [np.zeros(0, np.int64)]
            with path.open("wb") as file:
                for rows, starts in outputs(texts, layers):
                    file.write(rows.astype(_STORED).tobytes())
                    lengths.append(np.diff(starts))
                    progress.advance(len(starts) - 1)
            np.save(starts_file, np.concatenate([[0], np.cumsum(np.concatenate(lengths))]))  # last: marks completion
        starts = np.load(starts_file)
        size = path.stat().st_size // (np.dtype(_STORED).itemsize * max(int(starts[-1]), 1))
        return cls(path, size, starts)

    def __call__(self) -> Iterator[TokenGroup]:
        rows = np.memmap(self.path, _STORED, "r").reshape(-1, self.size)
        for first in range(0, self.texts, _TEXTS):
            starts = self.starts[first : first + _TEXTS + 1]
            yield rows[starts[0] : starts[-1]].astype(np.float32), starts - starts[0]


Pairs = tuple[Positions, Positions]
TaskScores = Mapping[str, Sequence[Float64Array]]
"""Similarities (pairs,) of each subset, by task."""


@dataclass(frozen=True)
class MethodScores:
    """One method with one seed (None: not random), and its similarity of every pair."""

    label: str
    method: str
    seed: int | None
    scores: TaskScores
    facts: Mapping[str, object] = field(default_factory=dict)  # further fields of the row, JSON types
    untrained: str = ""  # label of the untrained control


@dataclass(frozen=True)
class Mixtures:
    """Latte-Mix and its controls on the token vectors of some layers, which labels name `layers`."""

    layers: str
    sentences: SentenceTokens
    training: TrainingTokens
    tasks: Sequence[Task]
    progress: Progress

    def measured(self, plan: MethodsOptions, config: LatteMixConfig) -> Iterator[MethodScores]:
        """Yield every auto-encoder of the plan, seed by seed, with Latte-Mix's untrained control."""
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
                yield from self._trained(method, changed)

    def _trained(self, method: Method, config: LatteMixConfig) -> Iterator[MethodScores]:
        """Train an auto-encoder and compare by each of its similarities."""
        trained, control = (" ".join(filter(None, [method, self.layers, end])) for end in ("", "untrained"))
        name = trained if config.epochs else control
        self.progress.phase(f"{name}, seed {config.seed}", None)
        latte = train_latte_mix(self.training, self.training.texts, config)
        facts = {"trained_texts": self.training.texts if config.epochs else 0, "epochs": config.epochs}
        compared = method == "latte-mix" and config.epochs > 0
        for similarity, scores in _scores(latte, self.sentences, self.tasks).items():
            untrained = f"{control} {similarity}" if compared else ""
            yield MethodScores(f"{name} {similarity}", method, config.seed, scores, facts, untrained)


def _scores(latte: LatteMix, sentences: SentenceTokens, tasks: Sequence[Task]) -> dict[str, TaskScores]:
    rows = sentences.pooled(latte.posterior)
    double = rows.astype(np.float64)
    compared: dict[str, Callable[[Pairs], Float64Array]] = {"cosine": lambda pairs: cosines(double, *pairs)}
    if latte.config.latent == "categorical":
        compared["js"] = lambda pairs: js_similarity(rows[pairs[0]], rows[pairs[1]], latte.config.dims)
    if latte.config.latent == "normal":
        compared["mixture l2"] = lambda pairs: _mixtures(latte, sentences, pairs)
    else:
        compared["l2"] = lambda pairs: negative_l2(rows[pairs[0]], rows[pairs[1]])
    return {name: score_tasks(compare, sentences.positions, tasks) for name, compare in compared.items()}


def score_tasks(
    compare: Callable[[Pairs], Float64Array], positions: Mapping[str, int], tasks: Sequence[Task]
) -> TaskScores:
    """Return the result of `compare` for every pair of every subset."""

    def rows(texts: Sequence[str]) -> Positions:
        return np.array([positions[text] for text in texts], np.intp)

    return {
        task.name: [compare((rows(subset.first), rows(subset.second))) for subset in task.subsets] for task in tasks
    }


def _mixtures(latte: LatteMix, sentences: SentenceTokens, pairs: Pairs) -> Float64Array:
    """Return minus the l2 distance of sentence pairs as mixtures of their tokens' Gaussians."""
    normals: dict[int, tuple[Float32Array, Float32Array]] = {
        sentence: latte.normal(sentences.tokens(sentence)) for sentence in np.unique(np.concatenate(pairs)).tolist()
    }
    first, second = (positions.tolist() for positions in pairs)
    return np.array([-mixture_l2(normals[a], normals[b]) for a, b in zip(first, second, strict=True)])
