"""The recipe `BuildConfig`: what is built, as stored in the index. `indexer.recipe.run_options` says how it runs.

A recipe file (`configs/*.toml`) has one section for each dataclass in `BuildConfig`. Unknown keys are rejected with
the closest known one. `BuildConfig()` equals `configs/minilm.toml`.
"""

import dataclasses
import json
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from indexer.errors import ConfigError, set_to, spelled
from indexer.recipe.corpus_config import ChunkConfig, CorpusConfig, ResolvedBy
from indexer.recipe.earlier_names import current_name, with_current_names
from indexer.recipe.index_config import IndexConfig, StoreConfig
from indexer.recipe.loading import (
    did_you_mean,
    from_mapping,
    parse_value,
    recipe_path,
    recipe_text,
    require_at_least,
    setting_type,
)
from indexer.recipe.paper_methods import (
    POOLINGS,
    TRANSFORMS,
    checked_sections,
    gives_probabilities,
    settings_class,
    settings_of,
)
from indexer.recipe.ranking import OF_ROWS, HybridConfig, QueriesConfig, RerankConfig
from indexer.system.urls import require_server_url
from indexer.typed_arguments import checked

Role = Literal["document", "query"]
EncoderKind = Literal["transformer", "static", "vectors", "server"]
Precision = Literal["float32", "bfloat16", "int8"]
BasicPooling = Literal["cls", "mean", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
PoolingMode = Literal[BasicPooling, "sif", "sbert-wk", "latte-mix"]  # of `indexer.recipe.paper_methods`
Pooling = Literal["auto", PoolingMode]
AUTO = "auto"  # a prompt that is the model's own
VECTOR_COLUMN = "vector"  # the default of corpus.vector_column with encoder.kind = "vectors"
_FEWEST_LAYERS = 2  # for SBERT-WK, which compares layers


@dataclass(frozen=True)
class KindTraits:
    """Properties of all encoders of a kind."""

    encodes_texts: bool = True  # else the corpus brings embeddings
    has_layers: bool = False  # a model of blocks
    has_table: bool = False  # token vectors are rows of a table; unknown tokens are ignored
    is_remote: bool = False  # another program runs the model, and there are no files


KIND_TRAITS: dict[EncoderKind, KindTraits] = {
    "transformer": KindTraits(has_layers=True),
    "static": KindTraits(has_table=True),
    "vectors": KindTraits(encodes_texts=False),
    "server": KindTraits(is_remote=True),
}
_OF_SERVERS = ("kind", "model", "url", "query_prompt", "document_prompt", "truncate_dim")


@checked
@dataclass(frozen=True)
class EncoderConfig:
    """The encoder, which turns texts into embeddings.

    With kind "vectors", the only other setting that applies is `model`; with kind "server", `model`, `url`, the prompts
    and `truncate_dim` apply.
    """

    kind: EncoderKind = "transformer"
    """Source of embeddings: a model that runs here ("transformer"), a table of token vectors ("static"), the corpus
    itself ("vectors"), or an OpenAI-compatible server ("server")."""
    model: str = "sentence-transformers/all-MiniLM-L6-v2"
    """Hugging Face id or folder. With "static" also a GloVe or word2vec file; with "server" the server's name of the
    model; with "vectors" any name that distinguishes embeddings of different models, by default none."""
    pooling: Pooling = "auto"
    """How token states become one vector. "auto": as the model's folder states, otherwise the mean. Methods of
    papers: "sif", "sbert-wk" and "latte-mix"."""
    layers: tuple[int, ...] = (-1,)
    """Layers to average: 0 is the embedding output, 1 the first block, -1 the last. Pooling "sbert-wk" weighs them
    instead."""
    max_length: int = 0
    """Most tokens of a text; the rest is cut off and counted. 0: the model's own limit."""
    precision: Precision = "bfloat16"
    """Class of results: how close vectors are to those in float32. "int8" is calibrated on a corpus before a build."""
    batch_tokens: int = 0
    """Tokens in a batch, padding included. 0: the backend's default."""
    query_prompt: str = AUTO
    """Text before each query, or the name of one of the model's prompts. "auto": the model's own; "": none."""
    document_prompt: str = AUTO
    """The same for documents."""
    truncate_dim: int = 0
    """Leading dimensions kept before the transform, for Matryoshka models. 0: all."""
    model_settings: bool = True
    """Use the pooling, prompts, maximum length, lower case and modules of the model's folder. false: use the
    transformer alone."""
    url: str = ""
    """Address of a server, such as http://127.0.0.1:8000/v1; without a path, /v1 is added."""
    fitted: str = ""
    """Folder of `isotrope train`, for precision "int8" and the poolings "sif" and "latte-mix". Empty: the command line
    trains on the corpus of the build."""

    def __post_init__(self) -> None:
        if self.kind == "vectors":
            self._require_no_model()
        elif not self.model.strip():
            raise ConfigError("encoder.model is empty; expected a Hugging Face id or a folder.")
        elif self.kind == "static":
            self._require_table()
        if self.kind == "server":
            self._require_defaults(_OF_SERVERS, "another program runs the model")
            require_server_url(self.url, "encoder.url")
        elif self.url:
            raise ConfigError(
                f'encoder.url is "{self.url}", but encoder.kind is "{self.kind}"; expected encoder.kind = "server".'
            )
        self._require_fitting_pooling()
        if not self.layers:
            raise ConfigError("encoder.layers is empty; expected at least one, such as [-1] for the last.")
        for name in ("max_length", "batch_tokens", "truncate_dim"):
            require_at_least(f"encoder.{name}", getattr(self, name), 0)

    @property
    def traits(self) -> KindTraits:
        """Properties of all encoders of this kind."""
        return KIND_TRAITS[self.kind]

    @property
    def needs_fitting(self) -> bool:
        """Whether the encoder is fitted to a corpus before it encodes."""
        paper = POOLINGS.get(self.pooling)
        return self.precision == "int8" or (paper is not None and paper.fitted)

    @property
    def location(self) -> str:
        """Where the model is: the server's URL, else the hub id or folder."""
        return self.url or self.model

    def _require_no_model(self) -> None:
        self._require_defaults(("kind", "model"), "the corpus brings the embeddings and no model runs")
        if self.model == EncoderConfig.model:
            object.__setattr__(self, "model", "")

    def _require_defaults(self, known: Collection[str], reason: str) -> None:
        """Raise ConfigError for a setting other than the `known` ones of this kind."""
        for setting in dataclasses.fields(self):
            value = getattr(self, setting.name)
            if setting.name not in known and value != setting.default:
                raise ConfigError(
                    f"encoder.{setting.name} is {json.dumps(value, default=str)}, but encoder.kind is "
                    f'"{self.kind}": {reason}. Fix: leave it out.'
                )

    def _require_table(self) -> None:
        if self.model == EncoderConfig.model:
            raise ConfigError(
                'encoder.kind is "static", but encoder.model is not a table; expected a GloVe or word2vec file, '
                "or a model2vec folder or hub id."
            )
        if self.pooling not in (AUTO, "mean", "max", "sif", "latte-mix"):
            raise ConfigError(
                f'encoder.pooling is "{self.pooling}", but a static table has no token states and no layers; expected '
                '"mean", "max", "sif" or "latte-mix".'
            )
        if self.layers != (-1,):
            raise ConfigError(f"encoder.layers is {list(self.layers)}, but static tables have none. Fix: leave it out.")
        if self.precision == "int8":
            raise ConfigError('encoder.precision is "int8", but a static table is float32. Fix: leave it out.')

    def _require_fitting_pooling(self) -> None:
        paper = POOLINGS.get(self.pooling)
        if self.fitted and not self.needs_fitting:
            fitted = " or ".join(f'"{name}"' for name, pooling in POOLINGS.items() if pooling.fitted)
            raise ConfigError(
                f'encoder.fitted is "{self.fitted}", but encoder.pooling is "{self.pooling}", which is not trained; '
                f'expected encoder.pooling = {fitted}, or encoder.precision = "int8".'
            )
        if self.truncate_dim and self.pooling == "latte-mix":
            raise ConfigError(
                f'encoder.truncate_dim is {self.truncate_dim}, but pooling "latte-mix" gives distributions, which '
                "cannot be cut. Fix: leave out encoder.truncate_dim, or set papers.latte_mix."
            )
        if self.precision == "int8" and paper:
            raise ConfigError(
                f'encoder.pooling is "{self.pooling}", which int8 does not support; expected encoder.precision = '
                '"float32" or "bfloat16".'
            )
        if self.pooling == "sbert-wk" and len(set(self.layers)) < _FEWEST_LAYERS:
            raise ConfigError(
                f'encoder.layers is {list(self.layers)}, but encoder.pooling is "sbert-wk", which compares layers; '
                f"expected at least {_FEWEST_LAYERS}, such as [0, 1, 2, 3, 4, 5, 6] for 6 blocks."
            )


class DefaultStrength(float):
    """The strength of a recipe that states none. Equals its number; with given vectors it stands for "none"."""


@checked
@dataclass(frozen=True)
class WhiteningConfig:
    """The transform of embeddings to vectors; see `indexer.transforms`."""

    kind: Literal["whitening", "flow", "hellinger"] = "whitening"
    """Kind of transform: an affine map ("whitening"); BERT-flow, an invertible network, which uses only `sample`,
    `centre` and `query_sample` of this section ("flow"); or square roots of probabilities, for pooling "latte-mix"
    ("hellinger")."""
    strength: float | Literal["none"] = DefaultStrength(0.25)
    """0 to 1: 1 is the whitening of the papers, 0 only centres and rotates; "none" is no transform, the default with
    `encoder.kind = "vectors"`."""
    dim: int = 0
    """Leading directions kept. 0: all above the eigenvalue floor."""
    sample: int | Literal["all"] = 100_000
    """Documents that the transform is fitted on."""
    shrinkage: float = 0.0
    """Shrinkage of the covariance towards a multiple of the identity, 0 to 1."""
    centre: Literal["role", "common", "none"] = "role"
    """Means that are subtracted: one of documents and one of queries ("role"), one for both ("common"), or none."""
    query_sample: str = ""
    """File of real queries, one per line, or .npy file of their embeddings, for the mean of queries. Empty: titles,
    sentences and windows of documents."""
    remove: int | Literal["auto"] = "auto"
    """Leading directions removed first. "auto": 1 after pooling "sif", otherwise 0."""

    def __post_init__(self) -> None:
        if self.strength != "none" and not 0.0 <= self.strength <= 1.0:
            raise ConfigError(f'whitening.strength is {self.strength}; expected 0 to 1, or "none".')
        if self.kind != "whitening" and (self.dim or self.shrinkage or self.remove != "auto"):
            raise ConfigError(f'whitening.kind is "{self.kind}", which does not use whitening.dim, shrinkage, remove.')
        if self.remove != "auto" and self.remove < 0:
            raise ConfigError(f'whitening.remove is {self.remove}; expected 0 or more, or "auto".')
        if self.strength == "none" and (self.dim or self.shrinkage):
            given = set_to("whitening.strength", 0.25)
            raise ConfigError(f'whitening.strength is "none", which uses no whitening.dim or shrinkage. Fix: {given}.')
        if self.dim < 0:
            raise ConfigError(f"whitening.dim is {self.dim}; expected 0 (all) or more.")
        if self.sample != "all" and self.sample < 1:
            raise ConfigError(f'whitening.sample is {self.sample}; expected at least 1, or "all".')
        if not 0.0 <= self.shrinkage <= 1.0:
            raise ConfigError(f"whitening.shrinkage is {self.shrinkage}; expected 0 to 1.")

    @property
    def centres_by_role(self) -> bool:
        """Whether queries are centred by a separate mean."""
        affine = self.kind == "whitening" and self.strength != "none"
        return self.centre == "role" and (affine or (self.kind in TRANSFORMS and TRANSFORMS[self.kind].centres))

    def is_fitted(self, pooling: str) -> bool:
        """Whether the transform of embeddings with a pooling depends on a sample of them."""
        if self.kind == "whitening":
            return self.strength != "none" or self.removed(pooling) > 0
        return self.kind in TRANSFORMS and TRANSFORMS[self.kind].centres

    def removed(self, pooling: str) -> int:
        """Return the number of leading directions that are removed after a pooling."""
        if self.remove == "auto":
            paper = POOLINGS.get(pooling)
            return paper.removes if paper and self.kind == "whitening" else 0
        return self.remove


@checked
@dataclass(frozen=True)
class BuildConfig:
    """The recipe of an index. The manifest stores it; the settings that affect vectors are fingerprinted."""

    corpus: CorpusConfig = field(default_factory=CorpusConfig)
    chunk: ChunkConfig = field(default_factory=ChunkConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    whitening: WhiteningConfig = field(default_factory=WhiteningConfig)
    index: IndexConfig = field(default_factory=IndexConfig)
    queries: QueriesConfig = field(default_factory=QueriesConfig)
    hybrid: HybridConfig = field(default_factory=HybridConfig)
    rerank: RerankConfig = field(default_factory=RerankConfig)
    store: StoreConfig = field(default_factory=StoreConfig)
    papers: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Sections of papers' methods, such as [papers.flow], with only the settings that differ from the defaults."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "papers", checked_sections(self.papers))
        object.__setattr__(self, "chunk", self.chunk.resolved(self.corpus.documents))
        if self.encoder.kind == "vectors":
            self._require_no_texts()
            corpus = dataclasses.replace(self.corpus, vector_column=self.corpus.vector_column or VECTOR_COLUMN)
            object.__setattr__(self, "corpus", corpus)
            if isinstance(self.whitening.strength, DefaultStrength):
                object.__setattr__(self, "whitening", dataclasses.replace(self.whitening, strength="none"))
        elif self.corpus.vector_column:
            raise ConfigError(
                f'corpus.vector_column is "{self.corpus.vector_column}", but encoder.kind is "{self.encoder.kind}", '
                'which computes embeddings; expected encoder.kind = "vectors".'
            )
        if self.whitening.kind == "hellinger" and not self.gives_probabilities:
            raise ConfigError(
                'whitening.kind is "hellinger", which needs probabilities; expected encoder.pooling = "latte-mix" with '
                f'a categorical latent, not "{self.encoder.pooling}".'
            )

    @property
    def gives_probabilities(self) -> bool:
        """Whether embeddings consist of categorical distributions."""
        return gives_probabilities(self.encoder.pooling, self.papers)

    def transform_settings(self) -> dict[str, Any]:
        """Return the settings of the transform's paper that differ from the defaults."""
        method = TRANSFORMS.get(self.whitening.kind)
        return self.papers.get(method.section, {}) if method else {}

    @checked
    def paper(self, section: str) -> Any:
        """Return the settings of a section of [papers], as the dataclass of its paper."""
        return settings_of(section, self.papers.get(section, {}))

    def _require_no_texts(self) -> None:
        if self.chunk.tokens:
            raise ConfigError(
                f'chunk.tokens is {self.chunk.tokens}, but encoder.kind is "vectors": each document has one embedding '
                "and no windows. Fix: leave chunk.tokens at 0."
            )
        files = {"whitening.query_sample": self.whitening.query_sample, "index.queries": self.index.queries}
        for name, file in files.items():
            if file and not file.lower().endswith(".npy"):
                raise ConfigError(
                    f'{name} is "{file}", but encoder.kind is "vectors", which cannot encode texts; expected a .npy '
                    'file of query embeddings, or "".'
                )

    @classmethod
    @checked
    def load(cls, path: str | Path) -> "BuildConfig":
        """Read a recipe: a file, or a shipped one by name. Raises ConfigError with file, key and expected value."""
        path = recipe_path(path)
        text = recipe_text(path)
        try:
            data = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise ConfigError(f"{path}: cannot be read as TOML: {error}") from error
        try:
            return cls.from_dict(with_current_names(data, used_only=False))
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None

    @classmethod
    @checked
    def from_dict(cls, data: Mapping[str, Any]) -> "BuildConfig":
        """Return the recipe of nested mappings, as in a file or a manifest; missing keys have defaults."""
        if isinstance(data, Mapping):
            data = with_current_names(data, used_only=True)
        config: BuildConfig = from_mapping(cls, data, "")
        return config

    @checked
    def to_toml(self, remarks: Sequence[str] = (), whole: Sequence[str] = ()) -> str:
        """Return a recipe file with the settings that differ from the defaults, below `remarks` as comments.

        The sections in `whole` are complete.
        """
        import tomli_w

        comments = [f"# {line}".rstrip() for remark in remarks for line in remark.splitlines()]
        usual = BuildConfig().to_dict()
        if not self.encoder.traits.encodes_texts:
            usual["whitening"]["strength"] = "none"
        if self.corpus.documents == "rows":
            same = {key: value for key, value in OF_ROWS.items() if getattr(self.hybrid, key) == value}
            usual["hybrid"].update(same)
        changed = {
            section: {
                key: value
                for key, value in settings.items()
                if section in whole or value != usual.get(section, {}).get(key)
            }
            for section, settings in self.to_dict().items()
        }
        sections = {section: settings for section, settings in changed.items() if settings}
        return "\n".join([*comments, "", ""] if comments else []) + tomli_w.dumps(sections)

    def to_dict(self) -> dict[str, Any]:
        """Return nested dicts and lists of JSON types, from which `from_dict` builds the same object.

        They contain every setting, except those of papers with their defaults.
        """
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return plain if self.papers else {name: value for name, value in plain.items() if name != "papers"}

    @checked
    def with_overrides(self, assignments: Iterable[str]) -> "BuildConfig":
        """Apply `section.key=value` strings; values are parsed as TOML, else used as text."""
        data = self.to_dict()
        if isinstance(self.whitening.strength, DefaultStrength):
            del data["whitening"]["strength"]  # still not stated
        if isinstance(self.chunk.by, ResolvedBy):
            data["chunk"]["by"] = "auto"
        sections = data.setdefault("papers", {})
        for assignment in assignments:
            path, equals, raw = assignment.partition("=")
            *tables, key = current_name(path.strip()).split(".")
            if not equals or not tables or not key:
                homes = [f"{section}.{key}" for section in data if equals and not tables and key in data[section]]
                hint = f"; did you mean {' or '.join(homes)}?" if homes else "."
                raise ConfigError(f"{shown(assignment)} is not of the form section.key=value{hint}")
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
                    raise ConfigError(f'{shown(assignment)}: there is no table of settings "{name}".')
            section[key] = parse_value(kind, raw)
        return self.from_dict(data)

    @checked
    def with_columns(
        self, names: Mapping[str, str], types: Iterable[str] = (), drop: Iterable[str] = ()
    ) -> "BuildConfig":
        """Set column rules: `names` such as {"text_column": "body"}, `types` as "year:int", columns to `drop`.

        A vector_column sets the encoder's kind to "vectors".
        """
        kinds = dict(self.corpus.columns)
        for entry in types:
            name, colon, kind = entry.rpartition(":")
            if not colon or not name or not kind:
                raise ConfigError(f'{spelled("types", "--column")} "{entry}" is not of the form name:type.')
            kinds[name] = kind
        rules: dict[str, Any] = {**names, "columns": kinds, "drop": (*self.corpus.drop, *drop)}
        corpus, encoder = dataclasses.replace(self.corpus, **rules), self.encoder
        if names.get("vector_column"):
            encoder = dataclasses.replace(encoder, kind="vectors")
        return dataclasses.replace(self, corpus=corpus, encoder=encoder)


def without_auto(config: BuildConfig, usual: Mapping[str, Any] = OF_ROWS) -> BuildConfig:
    """Return the recipe without "auto" in [hybrid]; see `HybridConfig.resolved`."""
    return dataclasses.replace(config, hybrid=config.hybrid.resolved(usual))


def changed_settings(
    before: BuildConfig, after: BuildConfig, sections: Collection[str] | None = None
) -> tuple[str, ...]:
    """Return the settings that differ, in words, such as "whitening.strength 0.25 -> 0.5"; by default of all sections.

    The hash of a reranker's weights is left out."""
    old, new = before.to_dict(), after.to_dict()
    return tuple(
        f"{section}.{key} {_value(old, section, key)} -> {_value(new, section, key)}"
        for section in dict.fromkeys([*old, *new])
        if sections is None or section in sections
        for key in dict.fromkeys([*old.get(section, {}), *new.get(section, {})])
        if old.get(section, {}).get(key) != new.get(section, {}).get(key) and key != "sha256"
    )


def _value(recipe: Mapping[str, Any], section: str, key: str) -> Any:
    value = recipe.get(section, {}).get(key)
    return '""' if value == "" else value


def shown(assignment: str) -> str:
    """Return an assignment of `with_overrides` as errors name it."""
    return f'{spelled("assignment", "--set")} "{assignment}"'
