"""The methods of papers by name, each in a module of `indexer.papers`.

A module is imported when a recipe, a transform file's kind or an index's encoder identity names it. The rest of the
program contains no import statement of a paper, and works without the folder.

A pooling's module offers `open_pooler(spec, vocabulary)` (see `indexer.encoders.pooling.Pooler`). With `in_tables` it
offers `open_table_pooler(spec)` (`indexer.encoders.pooling.TablePooler`), with `weighs_tokens` `token_weights(spec)`.
With `fitted` it offers `STATE_FILES`, `fit(spec, texts, folder, options, on_step)` and `check_state(spec, folder)`,
with `identity` `identity_value(settings)`.

A transform's module offers `TRANSFORM`, a class with `from_arrays`, and `fit(data, settings, on_step)`.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from indexer.errors import ConfigError
from indexer.recipe.loading import did_you_mean, from_mapping

PAPERS = "indexer.papers"


@dataclass(frozen=True)
class PaperPooling:
    """A pooling of a paper. It reads token states, which only torch computes, and never int8."""

    module: str
    section: str = ""  # of the recipe's [papers]
    identity: str = ""  # the key of its settings in an encoder's identity
    fitted: bool = False  # to a corpus, before a build
    in_tables: bool = True  # available for static tables
    weighs_tokens: bool = False  # a mean of weighted token vectors
    removes: int = 0  # leading directions that whitening.remove = "auto" removes after it


@dataclass(frozen=True)
class PaperTransform:
    """A transform of a paper."""

    module: str
    section: str = ""
    centres: bool = False  # by a separate mean of queries


POOLINGS = {
    "sif": PaperPooling(f"{PAPERS}.sif", "sif", "sif_a", fitted=True, weighs_tokens=True, removes=1),
    "sbert-wk": PaperPooling(f"{PAPERS}.sbert_wk", in_tables=False),
    "latte-mix": PaperPooling(f"{PAPERS}.latte_mix.pooling", "latte_mix", "latte_mix", fitted=True),
}
TRANSFORMS = {
    "flow": PaperTransform(f"{PAPERS}.flow", "flow", centres=True),
    "hellinger": PaperTransform(f"{PAPERS}.latte_mix.hellinger"),
}
SETTINGS = {
    "sif": (f"{PAPERS}.sif", "SifConfig"),
    "latte_mix": (f"{PAPERS}.latte_mix.settings", "LatteMixConfig"),
    "flow": (f"{PAPERS}.flow", "FlowConfig"),
}
Sections = dict[str, dict[str, Any]]
"""The recipe's [papers]: for each section the settings that differ from the defaults."""


def gives_probabilities(pooling: str, papers: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether embeddings of a pooling consist of categorical distributions."""
    return pooling == "latte-mix" and papers.get("latte_mix", {}).get("latent", "categorical") == "categorical"


def load_method(method: PaperPooling | PaperTransform) -> Any:
    """Return the module of a method. Raises ConfigError as `load_module`."""
    return load_module(method.module)


def settings_class(section: str) -> Any:
    """Return the dataclass of a section of [papers]. Raises ConfigError for an unknown section."""
    if section not in SETTINGS:
        known = [f"papers.{name}" for name in SETTINGS]
        raise ConfigError(did_you_mean("section", f"papers.{section}", known))
    module, name = SETTINGS[section]
    return getattr(load_module(module), name)


def settings_of(section: str, given: Mapping[str, Any]) -> Any:
    """Return a section's settings as its dataclass; missing keys have defaults. Raises ConfigError."""
    return from_mapping(settings_class(section), given, f"papers.{section}")


def checked_sections(given: Mapping[str, Mapping[str, Any]]) -> Sections:
    """Return the settings that differ from the defaults of their paper, section by section. Raises ConfigError."""
    sections = {}
    for name, values in given.items():
        settings = settings_of(name, values)
        changed = {
            field.name: value
            for field in dataclasses.fields(settings)
            if (value := getattr(settings, field.name)) != field.default
        }
        if changed:
            sections[name] = changed
    return sections


def load_module(module: str) -> Any:
    """Return a module of a paper. Raises ConfigError if the folder of the papers is missing."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        raise ConfigError(f"this needs {module}, which is not part of this installation.") from error
