"""The target of a measurement: a recipe, or an index with its recipe."""

import dataclasses
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from indexer.encoders.precomputed import cannot_encode
from indexer.errors import ConfigError, as_argument, spelled
from indexer.models.encoder_spec import EncoderSpec
from indexer.models.resolution import resolve_spec
from indexer.moments import Moments
from indexer.pipeline.rows import RowView
from indexer.progress import NoProgress, Progress
from indexer.recipe.config import BuildConfig
from indexer.recipe.paper_methods import TRANSFORMS, gives_probabilities
from indexer.recipe.run_options import RunOptions
from indexer.transforms import FitData
from indexer.typed_arguments import checked
from search.evaluation.embeddings import EmbeddingSource
from search.evaluation.sweep import Setting, Sweep, frozen_settings
from search.index import Index, LiveRows


@dataclass(frozen=True)
class Target:
    """A recipe with its resolved encoder, and the index that the recipe comes from, if any."""

    config: BuildConfig
    spec: EncoderSpec
    index: Index | None = None
    options: RunOptions = field(default_factory=RunOptions)

    @classmethod
    @checked
    def of(cls, subject: "Subject") -> "Target":
        """Return the target of a subject. Raises what `of_recipe` and `of_index` raise."""
        if isinstance(subject, Target):
            return subject
        return cls.of_recipe(subject) if isinstance(subject, BuildConfig) else cls.of_index(subject)

    @classmethod
    @checked
    def of_recipe(cls, config: BuildConfig, options: RunOptions | None = None) -> "Target":
        """Return the target of a recipe, without loading the model. Raises ModelError and ConfigError."""
        return cls(config, resolve_spec(config), None, options or RunOptions())

    @classmethod
    @checked
    def of_index(
        cls, index: str | Path, model: str | Path | None = None, options: RunOptions | None = None
    ) -> "Target":
        """Return the target of an index. Raises what `SearchEngine` raises, also if `model` is not the index's."""
        opened = Index.open(index)
        return cls(opened.config, opened.encoder_spec(model), opened, options or RunOptions())

    @property
    def own(self) -> Setting:
        """The recipe's own setting with its pooling resolved."""
        layers = self.config.encoder.layers if self.spec.traits.has_layers else ()
        settings = frozen_settings(self.config.transform_settings())
        return Setting(self.spec.identity.pooling, layers, self.config.whitening, settings)

    @checked
    def settings(self, sweep: Sweep) -> list[Setting]:
        """Return the settings of a sweep around the recipe's own. Raises ConfigError for impossible settings."""
        swept = spelled("layers and poolings", "--layers and --pooling")
        if not self.spec.traits.encodes_texts and (sweep.layers or sweep.poolings):
            raise ConfigError(f"{cannot_encode(self.spec)} Fix: leave out {swept}.")
        if self.spec.traits.is_remote and (sweep.layers or sweep.poolings):
            raise ConfigError(f'encoder.kind is "server", whose layers and pooling are fixed. Fix: leave out {swept}.')
        if sweep.layers and not self.spec.traits.has_layers:
            raise ConfigError(
                f'encoder.kind is "static": a table has no layers. Fix: leave out {as_argument("layers")}.'
            )
        settings = [self._with_paper(setting) for setting in sweep.settings(self.own)]
        for setting in settings:
            special = setting.whitening.kind == "hellinger"
            if special and not gives_probabilities(setting.pooling, self.config.papers):
                raise ConfigError(
                    f'"{setting.label}": square roots need probabilities, which only pooling "latte-mix" with a '
                    f"categorical latent returns. Fix: leave out {spelled('hellinger', '--transform hellinger')}."
                )
        return settings

    def _with_paper(self, setting: Setting) -> Setting:
        section = TRANSFORMS[setting.whitening.kind].section if setting.whitening.kind in TRANSFORMS else ""
        return dataclasses.replace(setting, paper=frozen_settings(self.config.papers.get(section, {})))

    @checked
    def states(
        self, settings: list[Setting], cache: Path | None = None, progress: Progress | None = None
    ) -> EmbeddingSource:
        """Return the encoder for some settings."""
        return EmbeddingSource(self.config, settings, self.spec, self.options, cache, progress or NoProgress())

    @cached_property
    def stored(self) -> LiveRows:
        """The rows of the index, after hashing its files."""
        if self.index is None:
            raise ValueError("a recipe has no rows")
        return LiveRows(self.index)

    @cached_property
    def sample(self) -> RowView:
        """The rows that the index's transform was fitted on."""
        return self.stored.sample(self.config.whitening.sample)

    @cached_property
    def moments(self) -> Moments:
        """Moments of the raw embeddings that the index's transform was fitted on."""
        return self.sample.moments()

    @property
    def material(self) -> FitData:
        """The raw embeddings that the index's transform was fitted on."""
        return FitData(lambda: self.moments, self.sample.fit_data().blocks)


Subject = Target | BuildConfig | str | Path
"""A `Target`, a recipe, or the folder of an index."""
