"""The recipe of an index with another encoder."""

import dataclasses
from collections.abc import Sequence

from indexer.errors import ConfigError, as_argument, spelled
from indexer.pipeline.build_inputs import recipe_of
from indexer.recipe.config import BuildConfig, EncoderConfig
from indexer.recipe.ranking import QueriesConfig
from search.index import Index


def migrated_recipe(index: Index, model: str = "", assignments: Sequence[str] = ()) -> BuildConfig:
    """Return the recipe of an index with the encoder `model`, or with its own encoder, and changed settings.

    `model` is a hub id, a folder, or a file of word vectors. Raises ConfigError if no other encoder is named.
    """
    if not model and not assignments:
        raise ConfigError(
            f"{index.path}: no other encoder is named. Fix: name a model with {spelled('model', '--to')}, or change "
            f"the encoder's settings, such as {as_argument('set', 'encoder.layers=[1,-1]')}."
        )
    config = dataclasses.replace(index.config, queries=QueriesConfig())  # its query encoder is for the old vectors
    if model:
        corpus = dataclasses.replace(config.corpus, vector_column="")
        config = recipe_of(dataclasses.replace(config, encoder=EncoderConfig(), corpus=corpus), {"model": model})
    return config.with_overrides(assignments)
