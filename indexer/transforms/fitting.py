"""Fitting the transform that a recipe asks for, whatever its kind."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from indexer.config import WhiteningConfig
from indexer.errors import ConfigError
from indexer.moments import Moments
from indexer.sampling import Sample
from indexer.transforms.flow import Flow, fit_flow
from indexer.transforms.hellinger import Hellinger
from indexer.transforms.protocol import Rows, Transform
from indexer.transforms.whitening import Whitening, fit_whitening

OnStep = Callable[[int, int], None]


@dataclass(frozen=True)
class Material:
    """The embeddings a transform is fitted on: their moments, and block by block, any number of times."""

    moments: Callable[[], Moments]
    blocks: Callable[[], Iterator[Rows]]

    @classmethod
    def of(cls, rows: Rows) -> "Material":
        """Embeddings (n, d) in memory."""
        return cls(lambda: Moments.of(rows), lambda: iter([rows]))

    @classmethod
    def of_sample(cls, sample: Sample) -> "Material":
        """The sampled rows of an index's parts."""
        return cls(sample.moments, lambda: map(sample.embeddings, range(len(sample.folders))))

    @classmethod
    def of_moments(cls, moments: Moments) -> "Material":
        """Where only moments are left. A kind that needs more raises ConfigError."""
        return cls(lambda: moments, _no_rows)


def fit_transform(
    material: Material, config: WhiteningConfig, pooling: str, on_step: OnStep | None = None
) -> Transform:
    """The transform of some settings for embeddings pooled so; queries are centred as documents are.

    `on_step(done, total)` hears of training. Raises what `fit_whitening` and `fit_flow` raise.
    """
    if config.kind == "flow":
        return fit_flow(material.blocks, sum(map(len, material.blocks())), config.flow, on_step)
    if config.kind == "hellinger":
        return Hellinger(int(next(material.blocks()).shape[1]))
    return fit_whitening(material.moments(), config, config.removed(pooling))


def has_role_means(transform: Transform, config: WhiteningConfig) -> bool:
    """Whether queries are centred by a mean of their own."""
    centres = isinstance(transform, Whitening) and config.strength != "none"
    return config.centre == "role" and (centres or isinstance(transform, Flow))


def _no_rows() -> Iterator[Rows]:
    raise ConfigError(
        'whitening.kind "flow" is trained on embeddings one by one, of which only moments are at hand here; '
        "leave the kind out, or measure it with `isotrope evaluate sts` or `isotrope refit`."
    )
