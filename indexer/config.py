"""Settings: `BuildConfig` says WHAT is built (stored in the index), `RunOptions` HOW (never stored).

A recipe file (`configs/*.toml`) has one section for each dataclass below. Unknown keys are refused with the
nearest known one; `BuildConfig()` is the same as `configs/minilm.toml`.
"""

import dataclasses
import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from indexer.errors import ConfigError

Precision = Literal["float32", "bfloat16", "int8"]
Backend = Literal["auto", "torch", "openvino", "numpy"]
_MOST_IN_A_PART = 1_000_000  # a part is in memory as a whole
Pooling = Literal["auto", "cls", "mean", "max"]


@dataclass(frozen=True)
class CorpusConfig:
    """How rows become documents. Empty column names are looked up among the usual ones (see the README)."""

    text: tuple[str, ...] = ("title", "text")  # columns joined for encoding
    id_column: str = ""
    title_column: str = ""
    text_column: str = ""
    columns: dict[str, str] = field(default_factory=dict)  # metadata column -> type it is read as
    drop: tuple[str, ...] = ()  # metadata columns left out

    def __post_init__(self) -> None:
        if not self.text:
            raise ConfigError('corpus.text is empty; expected the columns to encode, such as ["title", "text"].')


@dataclass(frozen=True)
class ChunkConfig:
    """Long documents as overlapping windows of tokens; 0 means one window a document."""

    tokens: int = 0
    overlap: int = 32

    def __post_init__(self) -> None:
        if self.tokens != 0:
            raise ConfigError(
                f"chunk.tokens is {self.tokens}; this version makes one vector a document (chunk.tokens = 0) "
                "and counts those cut at encoder.max_length."
            )
        if self.overlap < 0:
            raise ConfigError(f"chunk.overlap is {self.overlap}; expected 0 or more.")


@dataclass(frozen=True)
class EncoderConfig:
    """Text to embedding. `layers` count as in the paper: 0 the embedding output, 1 the first block, -1 the last."""

    kind: Literal["transformer"] = "transformer"
    model: str = "sentence-transformers/all-MiniLM-L6-v2"  # hub id or folder
    pooling: Pooling = "mean"
    layers: tuple[int, ...] = (-1,)
    max_length: int = 256  # tokens; 0: the model's own limit
    precision: Precision = "bfloat16"  # a class of results, see the README; int8 is calibrated on the corpus
    batch_tokens: int = 0  # tokens in a batch, padding included; 0: the backend's default
    query_prefix: str = ""
    document_prefix: str = ""

    def __post_init__(self) -> None:
        if not self.model.strip():
            raise ConfigError("encoder.model is empty; expected a Hugging Face id or a folder.")
        if not self.layers:
            raise ConfigError("encoder.layers is empty; expected at least one, such as [-1] for the last.")
        if self.max_length < 0 or self.batch_tokens < 0:
            raise ConfigError("encoder.max_length and encoder.batch_tokens must be 0 (the default) or more.")


@dataclass(frozen=True)
class WhiteningConfig:
    """Embedding to vector; see `indexer.transforms.whitening`."""

    strength: float | Literal["none"] = 0.25  # 1 the paper, 0 centring and rotation, "none" no transform
    dim: int = 0  # leading directions kept; 0: all above the eigenvalue floor
    sample: int | Literal["all"] = 100_000  # documents the fit sees
    shrinkage: float = 0.0
    centre: Literal["role", "common", "none"] = "role"
    query_sample: str = ""  # a file of real queries, one a line

    def __post_init__(self) -> None:
        if self.strength != "none" and not 0.0 <= self.strength <= 1.0:
            raise ConfigError(f'whitening.strength is {self.strength}; expected 0 to 1, or "none".')
        if self.strength == "none" and (self.dim or self.shrinkage):
            raise ConfigError(
                'whitening.strength is "none", which leaves nothing for whitening.dim and shrinkage to do.'
            )
        if self.dim < 0:
            raise ConfigError(f"whitening.dim is {self.dim}; expected 0 (all) or more.")
        if self.sample != "all" and self.sample < 1:
            raise ConfigError(f'whitening.sample is {self.sample}; expected at least 1, or "all".')
        if not 0.0 <= self.shrinkage <= 1.0:
            raise ConfigError(f"whitening.shrinkage is {self.shrinkage}; expected 0 to 1.")


@dataclass(frozen=True)
class IndexConfig:
    """The FAISS index. "auto" and "flat" are exact; anything else is a FAISS factory string."""

    type: str = "auto"
    recall: float = 0.95  # an approximate index that finds fewer of its own rows fails the build
    memory: str = "0"  # budget when serving, such as "8G"; 0: no limit

    def __post_init__(self) -> None:
        if not self.type.strip():
            raise ConfigError('index.type is empty; expected "auto", "flat" or a FAISS factory string.')
        if not 0.0 < self.recall <= 1.0:
            raise ConfigError(f"index.recall is {self.recall}; expected more than 0 and at most 1.")
        if not re.fullmatch(r"\d+(\.\d+)?[KMGT]?", self.memory):
            raise ConfigError(f'index.memory is "{self.memory}"; expected a size such as "512M" or "8G", or "0".')
        if float(self.memory.rstrip("KMGT")) > 0:
            raise ConfigError(f'index.memory is "{self.memory}"; this version has no budget to keep to. Leave it "0".')


@dataclass(frozen=True)
class StoreConfig:
    """The index directory."""

    part_documents: int = 8192
    embeddings: Literal["float32", "float16"] = "float32"

    def __post_init__(self) -> None:
        if not 1 <= self.part_documents <= _MOST_IN_A_PART:
            raise ConfigError(f"store.part_documents is {self.part_documents}; expected 1 to {_MOST_IN_A_PART:,}.")


@dataclass(frozen=True)
class BuildConfig:
    """WHAT is built: the recipe. Stored in the manifest; the parts that shape vectors are fingerprinted."""

    corpus: CorpusConfig = field(default_factory=CorpusConfig)
    chunk: ChunkConfig = field(default_factory=ChunkConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    whitening: WhiteningConfig = field(default_factory=WhiteningConfig)
    index: IndexConfig = field(default_factory=IndexConfig)
    store: StoreConfig = field(default_factory=StoreConfig)

    @classmethod
    def load(cls, path: str | Path) -> "BuildConfig":
        """Read a recipe file. Raises ConfigError naming the file, the key and what was expected."""
        try:
            data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError(f"{path}: no such recipe file.") from None
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"{path}: cannot be read as TOML: {error}") from error
        try:
            return cls.from_dict(data)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "BuildConfig":
        """Build from nested mappings, as in a recipe or a manifest; missing keys take their defaults."""
        config: BuildConfig = _build(cls, data, "")
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
            section, dot, key = path.strip().partition(".")
            if not equals or not dot or not key:
                raise ConfigError(f'--set "{assignment}" is not of the form section.key=value.')
            if section not in data:
                raise ConfigError(_unknown("section", section, data))
            data[section][key] = _override(section, key, raw)
        return self.from_dict(data)

    def with_columns(
        self, names: Mapping[str, str], types: Iterable[str] = (), drop: Iterable[str] = ()
    ) -> "BuildConfig":
        """Set column rules: `names` such as {"text_column": "body"}, `types` as "year:int", columns to `drop`."""
        kinds = dict(self.corpus.columns)
        for entry in types:
            name, colon, kind = entry.rpartition(":")
            if not colon or not name or not kind:
                raise ConfigError(f'--column "{entry}" is not of the form name:type.')
            kinds[name] = kind
        rules: dict[str, Any] = {**names, "columns": kinds, "drop": (*self.corpus.drop, *drop)}
        corpus = dataclasses.replace(self.corpus, **rules)
        return dataclasses.replace(self, corpus=corpus)


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

    def __post_init__(self) -> None:
        if self.backend not in get_args(Backend):
            raise ConfigError(f'backend is "{self.backend}"; expected {_describe(Backend)}.')
        if self.workers < 1:
            raise ConfigError(f"workers is {self.workers}; expected at least 1.")
        if self.threads < 0:
            raise ConfigError(f"threads is {self.threads}; expected 0 (all cores) or more.")


def _override(section: str, key: str, raw: str) -> Any:
    """A value from the command line: TOML if it is, else the text as it stands; 0 for a text setting is "0"."""
    try:
        value = tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        return raw
    hint = get_type_hints(get_type_hints(BuildConfig)[section]).get(key)
    return raw if hint is str and not isinstance(value, str) else value


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f'did you mean "{close[0]}"?' if close else f"expected one of {', '.join(names)}."
    return f'unknown {what} "{name}"; {hint}'


def _build(cls: Any, data: Mapping[str, Any], where: str) -> Any:
    """Make the dataclass `cls` from a mapping, checking every key and type."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where or 'the recipe'} is {data!r}; expected a table of settings.")
    hints = get_type_hints(cls)
    values = {}
    for key, value in data.items():
        name = f"{where}.{key}" if where else key
        if key not in hints:
            raise ConfigError(_unknown("setting" if where else "section", name, _prefixed(hints, where)))
        hint = hints[key]
        values[key] = _build(hint, value, name) if dataclasses.is_dataclass(hint) else _typed(value, hint, name)
    return cls(**values)


def _prefixed(names: Iterable[str], where: str) -> list[str]:
    return [f"{where}.{name}" if where else name for name in names]


def _typed(value: Any, hint: Any, name: str) -> Any:
    """Check `value` against one of the few type forms used above; lists become tuples, whole numbers floats."""
    for option in get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,):
        origin, arguments = get_origin(option), get_args(option)
        if origin is Literal and value in arguments and isinstance(value, str):
            return value
        if origin is tuple and isinstance(value, list | tuple) and all(_is(v, arguments[0]) for v in value):
            return tuple(value)
        if origin is dict and isinstance(value, Mapping) and all(_is(v, str) for v in value.values()):
            return dict(value)
        if origin is None and _is(value, option):
            return float(value) if option is float else value
    raise ConfigError(f"{name} is {json.dumps(value, default=str)}; expected {_describe(hint)}.")


def _is(value: Any, kind: type) -> bool:
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, kind) and not (kind is int and isinstance(value, bool))


def _describe(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(_describe(argument) for argument in arguments)
    if origin is Literal:
        return " or ".join(json.dumps(argument) for argument in arguments)
    if origin is tuple:
        return f"a list of {_describe(arguments[0])}"
    if origin is dict:
        return "a table of text"
    return {int: "a whole number", float: "a number", str: "text"}[hint]
