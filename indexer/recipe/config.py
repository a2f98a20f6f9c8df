"""Settings: `BuildConfig` says WHAT is built (stored in the index), `RunOptions` (`indexer.recipe.run_options`) HOW.

A recipe file (`configs/*.toml`) has one section for each dataclass that `BuildConfig` holds. Unknown keys are refused
with the nearest known one; `BuildConfig()` is the same as `configs/minilm.toml`.
"""

import dataclasses
import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from indexer.errors import ConfigError
from indexer.recipe.loading import (
    did_you_mean,
    from_mapping,
    parse_value,
    setting_type,
)
from indexer.recipe.named_recipes import recipe_path
from indexer.recipe.paper_methods import (
    POOLINGS,
    TRANSFORMS,
    checked_sections,
    current_name,
    settings_class,
    settings_of,
    with_moved_settings,
)
from indexer.recipe.ranking import HybridConfig, RerankConfig
from indexer.system.regular_files import read_regular

Role = Literal["document", "query"]
EncoderKind = Literal["transformer", "static", "vectors"]
Precision = Literal["float32", "bfloat16", "int8"]
BasicPooling = Literal["cls", "mean", "max"]
PoolingMode = Literal[BasicPooling, "sif", "sbert-wk", "latte-mix"]  # the latter: `indexer.recipe.paper_methods`
Pooling = Literal["auto", PoolingMode]
VECTOR_COLUMN = "vector"  # where embeddings are looked for, unless corpus.vector_column says otherwise
_RECIPE_BYTES = 1 << 20  # of a recipe file
_FEWEST_LAYERS = 2  # of which SBERT-WK can compare any
MOST_IN_A_PART = 1_000_000  # a part is in memory as a whole
_FEWEST_TOKENS = 8  # in a window


@dataclass(frozen=True)
class KindTraits:
    """What holds for every encoder of a kind."""

    encodes_texts: bool = True  # else embeddings come with the corpus
    has_layers: bool = False  # it is a model of blocks
    has_table: bool = False  # token vectors are rows of a table; a token without one is left out of a text


KIND_TRAITS: dict[EncoderKind, KindTraits] = {
    "transformer": KindTraits(has_layers=True),
    "static": KindTraits(has_table=True),
    "vectors": KindTraits(encodes_texts=False),
}


@dataclass(frozen=True)
class CorpusConfig:
    """How rows become documents. Empty column names are looked up among the usual ones (see the README)."""

    text: tuple[str, ...] = ("title", "text")  # columns joined for encoding
    id_column: str = ""
    title_column: str = ""
    text_column: str = ""
    vector_column: str = ""  # embeddings, with encoder.kind = "vectors"
    columns: dict[str, str] = field(default_factory=dict)  # metadata column -> type it is read as
    drop: tuple[str, ...] = ()  # metadata columns left out

    def __post_init__(self) -> None:
        if not self.text:
            raise ConfigError('corpus.text is empty; expected the columns to encode, such as ["title", "text"].')
        named = (self.id_column, self.title_column, self.text_column, *self.drop)
        if self.vector_column and self.vector_column in named:
            raise ConfigError(
                f'corpus.vector_column is "{self.vector_column}", a column that is named as id, title or text, or is '
                "dropped; expected one of its own."
            )


@dataclass(frozen=True)
class ChunkConfig:
    """Long documents as overlapping windows of tokens, each with a vector; see `indexer.encoders.chunking`."""

    tokens: int = 0  # most tokens in a window, special ones and the prefix aside; 0: one vector a document
    overlap: int = 32  # tokens that a window shares with the one before, at least

    def __post_init__(self) -> None:
        if self.tokens != 0 and self.tokens < _FEWEST_TOKENS:
            raise ConfigError(
                f"chunk.tokens is {self.tokens}; expected at least {_FEWEST_TOKENS}, or 0 for one vector a document."
            )
        if self.overlap < 0:
            raise ConfigError(f"chunk.overlap is {self.overlap}; expected 0 or more.")
        if 0 < self.tokens <= self.overlap:
            raise ConfigError(
                f"chunk.overlap is {self.overlap} of the {self.tokens} tokens of a window; expected fewer."
            )


@dataclass(frozen=True)
class EncoderConfig:
    """Text to embedding. `layers` count as in the paper: 0 the embedding output, 1 the first block, -1 the last.

    Kind "static" looks tokens up in a table: word vectors (GloVe, word2vec) or a model2vec folder, named by `model`.
    Kind "vectors" takes embeddings from the corpus itself. `model` is then just a name, by which those of different
    models are told apart (the default is no name, ""); nothing else can be set.

    Precision "int8" and the poolings "sif" and "latte-mix" are fitted to a corpus before a build, by `isotrope train`,
    whose folder `fitted` names. "sbert-wk" weighs all `layers` instead of averaging them.
    """

    kind: EncoderKind = "transformer"
    model: str = "sentence-transformers/all-MiniLM-L6-v2"  # hub id or folder
    pooling: Pooling = "mean"
    layers: tuple[int, ...] = (-1,)
    max_length: int = 256  # tokens; 0: the model's own limit
    precision: Precision = "bfloat16"  # a class of results, see the README; int8 is calibrated on a corpus
    batch_tokens: int = 0  # tokens in a batch, padding included; 0: the backend's default
    query_prefix: str = ""
    document_prefix: str = ""
    fitted: str = ""  # a folder that `isotrope train` wrote; empty: the command line trains on the corpus of a build

    def __post_init__(self) -> None:
        if self.kind == "vectors":
            self._require_no_model()
        elif not self.model.strip():
            raise ConfigError("encoder.model is empty; expected a Hugging Face id or a folder.")
        elif self.kind == "static":
            self._require_table()
        self._require_fitting_pooling()
        if not self.layers:
            raise ConfigError("encoder.layers is empty; expected at least one, such as [-1] for the last.")
        if self.max_length < 0 or self.batch_tokens < 0:
            raise ConfigError("encoder.max_length and encoder.batch_tokens must be 0 (the default) or more.")

    @property
    def traits(self) -> KindTraits:
        """What holds for every encoder of this kind."""
        return KIND_TRAITS[self.kind]

    @property
    def needs_fitting(self) -> bool:
        """Whether the encoder is fitted to a corpus before it encodes."""
        paper = POOLINGS.get(self.pooling)
        return self.precision == "int8" or (paper is not None and paper.fitted)

    def _require_no_model(self) -> None:
        for setting in dataclasses.fields(self):
            value = getattr(self, setting.name)
            if setting.name not in ("kind", "model") and value != setting.default:
                raise ConfigError(
                    f"encoder.{setting.name} is {json.dumps(value, default=str)}, but encoder.kind is "
                    '"vectors": the embeddings are there already and no model is run. Leave it out.'
                )
        if self.model == EncoderConfig.model:
            object.__setattr__(self, "model", "")

    def _require_table(self) -> None:
        if self.model == EncoderConfig.model:
            raise ConfigError(
                'encoder.kind is "static", but encoder.model does not name a table; expected a GloVe or word2vec file, '
                "or a model2vec folder or hub id."
            )
        if self.pooling in ("cls", "sbert-wk"):
            raise ConfigError(
                f'encoder.pooling is "{self.pooling}", but a static table has no [CLS] state and no layers; expected '
                '"mean", "max", "sif" or "latte-mix".'
            )
        if self.layers != (-1,):
            raise ConfigError(f"encoder.layers is {list(self.layers)}, but a static table has no layers. Leave it out.")
        if self.precision == "int8":
            raise ConfigError('encoder.precision is "int8", but a static table is looked up in float32. Leave it out.')

    def _require_fitting_pooling(self) -> None:
        paper = POOLINGS.get(self.pooling)
        if self.fitted and not self.needs_fitting:
            fitted = " or ".join(f'"{name}"' for name, pooling in POOLINGS.items() if pooling.fitted)
            raise ConfigError(
                f'encoder.fitted is "{self.fitted}", but encoder.pooling is "{self.pooling}", which takes nothing that '
                f'was trained; expected encoder.pooling = {fitted}, or encoder.precision = "int8".'
            )
        if self.precision == "int8" and paper:
            raise ConfigError(
                f'encoder.pooling is "{self.pooling}", which is not computed in int8; expected encoder.precision = '
                '"float32" or "bfloat16".'
            )
        if self.pooling == "sbert-wk" and len(set(self.layers)) < _FEWEST_LAYERS:
            raise ConfigError(
                f'encoder.layers is {list(self.layers)}, but encoder.pooling is "sbert-wk", which weighs layers '
                f"by one another; expected at least {_FEWEST_LAYERS}, such as [0, 1, 2, 3, 4, 5, 6] for 6 blocks."
            )


@dataclass(frozen=True)
class WhiteningConfig:
    """Embedding to vector; see `indexer.transforms`.

    Kind "flow" is BERT-flow, an invertible network instead of an affine map: of the other settings it follows `sample`,
    `centre` and `query_sample`. Kind "hellinger" takes square roots, for embeddings that are probabilities (pooling
    "latte-mix"): their inner product is then what `query --similarity js` searches by.
    """

    kind: Literal["whitening", "flow", "hellinger"] = "whitening"
    strength: float | Literal["none"] = 0.25  # 1 the paper, 0 centring and rotation, "none" no transform
    dim: int = 0  # leading directions kept; 0: all above the eigenvalue floor
    sample: int | Literal["all"] = 100_000  # documents the fit sees
    shrinkage: float = 0.0
    centre: Literal["role", "common", "none"] = "role"
    query_sample: str = ""  # a file of real queries, one a line, or a .npy file of their embeddings
    remove: int | Literal["auto"] = "auto"  # leading directions taken out first; "auto": 1 after pooling "sif", else 0

    def __post_init__(self) -> None:
        if self.strength != "none" and not 0.0 <= self.strength <= 1.0:
            raise ConfigError(f'whitening.strength is {self.strength}; expected 0 to 1, or "none".')
        if self.kind != "whitening" and (self.dim or self.shrinkage or self.remove != "auto"):
            raise ConfigError(
                f'whitening.kind is "{self.kind}", which has nothing for whitening.dim, shrinkage and remove to do.'
            )
        if self.remove != "auto" and self.remove < 0:
            raise ConfigError(f'whitening.remove is {self.remove}; expected 0 or more, or "auto".')
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

    @property
    def centres_by_role(self) -> bool:
        """Whether queries are to be centred by a mean of their own."""
        affine = self.kind == "whitening" and self.strength != "none"
        return self.centre == "role" and (affine or (self.kind in TRANSFORMS and TRANSFORMS[self.kind].centres))

    def removed(self, pooling: str) -> int:
        """How many leading directions are taken out of embeddings pooled so."""
        if self.remove == "auto":
            paper = POOLINGS.get(pooling)
            return paper.removes if paper and self.kind == "whitening" else 0
        return self.remove


@dataclass(frozen=True)
class IndexConfig:
    """The FAISS index: "auto" is chosen by measuring, "flat" exact, anything else a FAISS factory string."""

    type: str = "auto"
    recall: float = 0.95  # recall@10 that an approximate index must reach
    memory: str = "0"  # most bytes of vectors and links in memory when serving, such as "8G"; 0: no limit
    queries: str = ""  # a file of real queries, one a line, to measure recall with; empty: documents, moved
    segment_rows: int = 0  # about so many rows a segment, whole parts; 0: one segment of all

    def __post_init__(self) -> None:
        if not self.type.strip():
            raise ConfigError('index.type is empty; expected "auto", "flat" or a FAISS factory string.')
        if not 0.0 < self.recall <= 1.0:
            raise ConfigError(f"index.recall is {self.recall}; expected more than 0 and at most 1.")
        if not re.fullmatch(r"\d+(\.\d+)?[KMGT]?", self.memory):
            raise ConfigError(f'index.memory is "{self.memory}"; expected a size such as "512M" or "8G", or "0".')
        if self.segment_rows < 0:
            raise ConfigError(f"index.segment_rows is {self.segment_rows}; expected 1 or more, or 0 for one segment.")

    @property
    def memory_bytes(self) -> int:
        """`memory` in bytes; K, M, G and T are powers of 1024. 0: no limit."""
        number = self.memory.rstrip("KMGT")
        return int(float(number) * 1024 ** " KMGT".index(self.memory[len(number) :] or " "))


PART_BYTES = 64 << 20  # of text in a part of several documents, whatever the machine: where parts end is stored


@dataclass(frozen=True)
class StoreConfig:
    """The index directory."""

    part_documents: int = 8192  # in a part, at most; a part of several documents also has at most `PART_BYTES` of text
    embeddings: Literal["float32", "float16"] = "float32"

    def __post_init__(self) -> None:
        if not 1 <= self.part_documents <= MOST_IN_A_PART:
            raise ConfigError(f"store.part_documents is {self.part_documents}; expected 1 to {MOST_IN_A_PART:,}.")


@dataclass(frozen=True)
class BuildConfig:
    """WHAT is built: the recipe. Stored in the manifest; the parts that shape vectors are fingerprinted."""

    corpus: CorpusConfig = field(default_factory=CorpusConfig)
    chunk: ChunkConfig = field(default_factory=ChunkConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    whitening: WhiteningConfig = field(default_factory=WhiteningConfig)
    index: IndexConfig = field(default_factory=IndexConfig)
    hybrid: HybridConfig = field(default_factory=HybridConfig)
    rerank: RerankConfig = field(default_factory=RerankConfig)
    store: StoreConfig = field(default_factory=StoreConfig)
    papers: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Sections of papers' methods, such as [papers.flow]; only settings that differ from the defaults."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "papers", checked_sections(self.papers))
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
        latent = self.papers.get("latte_mix", {}).get("latent", "categorical")
        return self.encoder.pooling == "latte-mix" and latent == "categorical"

    def transform_settings(self) -> dict[str, Any]:
        """Return the settings of the transform's paper that differ from the defaults."""
        method = TRANSFORMS.get(self.whitening.kind)
        return self.papers.get(method.section, {}) if method else {}

    def paper(self, section: str) -> Any:
        """Return the settings of a section of [papers], as the dataclass of its paper."""
        return settings_of(section, self.papers.get(section, {}))

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
        """Read a recipe: a file, or a shipped one by name. Raises ConfigError: file, key, what was expected."""
        path = recipe_path(path)
        try:
            data = tomllib.loads(read_regular(path, _RECIPE_BYTES).decode())
        except FileNotFoundError:
            raise ConfigError(f"{path}: no such recipe file.") from None
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror or error}.") from error
        except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
            raise ConfigError(f"{path}: cannot be read as TOML: {error}") from error
        try:
            return cls.from_dict(with_moved_settings(data, used_only=False))
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "BuildConfig":
        """Build from nested mappings, as in a recipe or a manifest; missing keys take their defaults."""
        if isinstance(data, Mapping):
            data = with_moved_settings(data, used_only=True)
        config: BuildConfig = from_mapping(cls, data, "")
        return config

    def to_toml(self, remarks: Sequence[str] = ()) -> str:
        """Return a recipe file with the settings that differ from the defaults; `remarks` become comments above it."""
        import tomli_w

        comments = [f"# {line}".rstrip() for remark in remarks for line in remark.splitlines()]
        usual = BuildConfig().to_dict()
        changed = {
            section: {key: value for key, value in settings.items() if value != usual.get(section, {}).get(key)}
            for section, settings in self.to_dict().items()
        }
        written = {section: settings for section, settings in changed.items() if settings}
        return "\n".join([*comments, "", ""] if comments else []) + tomli_w.dumps(written)

    def to_dict(self) -> dict[str, Any]:
        """Return nested dicts and lists of JSON types, from which `from_dict` builds the same object.

        Every setting is there, except those of papers that have their default.
        """
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return plain if self.papers else {name: value for name, value in plain.items() if name != "papers"}

    def with_overrides(self, assignments: Iterable[str]) -> "BuildConfig":
        """Apply `section.key=value` strings; a value is read as TOML, else as plain text."""
        data = self.to_dict()
        sections = data.setdefault("papers", {})
        for assignment in assignments:
            path, equals, raw = assignment.partition("=")
            *tables, key = current_name(path.strip()).split(".")
            if not equals or not tables or not key:
                raise ConfigError(f'--set "{assignment}" is not of the form section.key=value.')
            if tables[0] not in data:
                raise ConfigError(did_you_mean("section", tables[0], data))
            if tables[0] == "papers" and len(tables) > 1:
                kind = setting_type(settings_class(tables[1]), [*tables[2:], key])
                sections.setdefault(tables[1], {})
            else:
                kind = setting_type(BuildConfig, [*tables, key])
            section: Any = data
            for name in tables:
                section = section.get(name)
                if not isinstance(section, dict):
                    raise ConfigError(f'--set "{assignment}": there is no table of settings "{name}".')
            section[key] = parse_value(kind, raw)
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
