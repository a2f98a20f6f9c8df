"""Settings: `BuildConfig` says WHAT is built (stored in the index), `RunOptions` HOW (never stored).

A recipe file (`configs/*.toml`) has one section for each dataclass of `indexer.sections`. Unknown keys are refused with
the nearest known one; `BuildConfig()` is the same as `configs/minilm.toml`.
"""

import dataclasses
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from indexer.errors import ConfigError
from indexer.regular_files import read_regular
from indexer.sections import ChunkConfig as ChunkConfig
from indexer.sections import CorpusConfig as CorpusConfig
from indexer.sections import EncoderConfig as EncoderConfig
from indexer.sections import IndexConfig as IndexConfig
from indexer.sections import Pooling as Pooling
from indexer.sections import Precision as Precision
from indexer.sections import StoreConfig as StoreConfig
from indexer.sections import WhiteningConfig as WhiteningConfig
from indexer.settings import build, describe, override, setting_hint, unknown

Backend = Literal["auto", "torch", "openvino", "numpy"]
_RECIPE_BYTES = 1 << 20  # of a recipe file
VECTOR_COLUMN = "vector"  # where embeddings are looked for, unless corpus.vector_column says otherwise


@dataclass(frozen=True)
class BuildConfig:
    """WHAT is built: the recipe. Stored in the manifest; the parts that shape vectors are fingerprinted."""

    corpus: CorpusConfig = field(default_factory=CorpusConfig)
    chunk: ChunkConfig = field(default_factory=ChunkConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    whitening: WhiteningConfig = field(default_factory=WhiteningConfig)
    index: IndexConfig = field(default_factory=IndexConfig)
    store: StoreConfig = field(default_factory=StoreConfig)

    def __post_init__(self) -> None:
        if self.encoder.kind == "vectors":
            self._require_no_texts()
            corpus = dataclasses.replace(self.corpus, vector_column=self.corpus.vector_column or VECTOR_COLUMN)
            object.__setattr__(self, "corpus", corpus)
        elif self.corpus.vector_column:
            raise ConfigError(
                f'corpus.vector_column is "{self.corpus.vector_column}", but encoder.kind is "{self.encoder.kind}", '
                'which makes its own embeddings; expected encoder.kind = "vectors".'
            )
        if self.whitening.kind == "hellinger" and not self.gives_probabilities:
            raise ConfigError(
                'whitening.kind is "hellinger", which takes square roots of probabilities; expected encoder.pooling = '
                f'"latte-mix" with a categorical latent, not "{self.encoder.pooling}".'
            )

    @property
    def gives_probabilities(self) -> bool:
        """Whether embeddings are categorical distributions side by side."""
        return self.encoder.pooling == "latte-mix" and self.encoder.latte_mix.latent == "categorical"

    def _require_no_texts(self) -> None:
        """Refuse settings that need texts to be encoded."""
        if self.chunk.tokens:
            raise ConfigError(
                f'chunk.tokens is {self.chunk.tokens}, but encoder.kind is "vectors": a document has the embedding it '
                "came with, and no windows. Leave chunk.tokens at 0."
            )
        files = {"whitening.query_sample": self.whitening.query_sample, "index.queries": self.index.queries}
        for name, file in files.items():
            if file and not file.lower().endswith(".npy"):
                raise ConfigError(
                    f'{name} is "{file}", but encoder.kind is "vectors": no text can be encoded. Name a .npy file of '
                    "query embeddings, or none."
                )

    @classmethod
    def load(cls, path: str | Path) -> "BuildConfig":
        """Read a recipe file. Raises ConfigError naming the file, the key and what was expected."""
        try:
            data = tomllib.loads(read_regular(path, _RECIPE_BYTES).decode())
        except FileNotFoundError:
            raise ConfigError(f"{path}: no such recipe file.") from None
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror or error}.") from error
        except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
            raise ConfigError(f"{path}: cannot be read as TOML: {error}") from error
        try:
            return cls.from_dict(data)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "BuildConfig":
        """Build from nested mappings, as in a recipe or a manifest; missing keys take their defaults."""
        config: BuildConfig = build(cls, data, "")
        return config

    def to_dict(self) -> dict[str, Any]:
        """Nested dicts and lists of JSON types; `from_dict` gives the same object back."""
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return plain

    def with_overrides(self, assignments: Iterable[str]) -> "BuildConfig":
        """Apply `section.key=value` strings; a value is read as TOML, else as plain text."""
        data = self.to_dict()
        for assignment in assignments:
            path, equals, raw = assignment.partition("=")
            *tables, key = path.strip().split(".")
            if not equals or not tables or not key:
                raise ConfigError(f'--set "{assignment}" is not of the form section.key=value.')
            if tables[0] not in data:
                raise ConfigError(unknown("section", tables[0], data))
            section: Any = data
            for name in tables:
                section = section.get(name)
                if not isinstance(section, dict):
                    raise ConfigError(f'--set "{assignment}": there is no table of settings "{name}".')
            section[key] = override(setting_hint(BuildConfig, [*tables, key]), raw)
        return self.from_dict(data)

    def with_columns(
        self, names: Mapping[str, str], types: Iterable[str] = (), drop: Iterable[str] = ()
    ) -> "BuildConfig":
        """Set column rules: `names` such as {"text_column": "body"}, `types` as "year:int", columns to `drop`.

        A vector_column makes the encoder one of kind "vectors".
        """
        kinds = dict(self.corpus.columns)
        for entry in types:
            name, colon, kind = entry.rpartition(":")
            if not colon or not name or not kind:
                raise ConfigError(f'--column "{entry}" is not of the form name:type.')
            kinds[name] = kind
        rules: dict[str, Any] = {**names, "columns": kinds, "drop": (*self.corpus.drop, *drop)}
        corpus, encoder = dataclasses.replace(self.corpus, **rules), self.encoder
        if names.get("vector_column"):
            encoder = dataclasses.replace(encoder, kind="vectors")
        return dataclasses.replace(self, corpus=corpus, encoder=encoder)


MOST_THREADS = 4096  # or processes: more than any machine runs at once


@dataclass(frozen=True)
class RunOptions:
    """HOW a build or a query runs. None of it changes the result beyond rounding, and none of it is stored."""

    device: str = "auto"  # auto, cpu, cuda, cuda:N, mps
    backend: Backend = "auto"  # auto: the fastest installed one that computes the recipe's precision
    texts: Literal["many", "few"] = "many"  # few: for one question or two, the backend that starts quickest
    workers: int = 1  # encoding processes
    threads: int = 0  # CPU threads in all; 0: as many as there are cores
    half: Literal["auto", "bfloat16", "float16"] = "auto"  # how precision class bfloat16 is computed on CUDA
    compile: bool = False  # run torch's compiler over the model first; pays for long runs on a GPU
    overwrite: bool = False  # publish the next generation over a complete index of another recipe or corpus
    allow_low_recall: bool = False  # publish an approximate index that misses index.recall, with what it reached

    def __post_init__(self) -> None:
        if self.backend not in get_args(Backend):
            raise ConfigError(f'backend is "{self.backend}"; expected {describe(Backend)}.')
        if not 1 <= self.workers <= MOST_THREADS:
            raise ConfigError(f"workers is {self.workers}; expected 1 to {MOST_THREADS:,}.")
        if not 0 <= self.threads <= MOST_THREADS:
            raise ConfigError(f"threads is {self.threads}; expected 0 (all cores) to {MOST_THREADS:,}.")
