"""The identity of an encoder: the settings and file hashes that determine its results, and their fingerprint.

The dict of JSON types, which is hashed and stored in a manifest:

    kind, rules                        "transformer", and the version of this code's rules
    weights, tokenizer, config         file name -> sha256
    layers, pooling, max_length, query_prefix, document_prefix, lowercase
    precision                          the class of results; the number type depends on the machine
    batch_tokens                       the batch plan, which affects rounding; 0: the backend's default
    group_texts                        texts that rules 1 cut into batches together
    modules                            number and kind of each module after the pooling -> sha256 of its files
    truncate_dim                       leading dimensions that are kept, if not all
    sif_a, latte_mix                   settings of the pooling of a paper
    state                              file name -> sha256 of a fitted state (int8, poolings of papers)

Kind "static", a table of token vectors: the same without lowercase and batch plan; layers are [].
Kind "vectors", embeddings that come with the corpus: kind, rules, and model, the model's name in the recipe.
Kind "server", embeddings of a server: kind, rules, model, the server's name of it, prefixes, truncate_dim, and as state
the embeddings of probe texts. The server's address is not part of it.

It contains the resolved settings of the model's folder, so a recipe that states the same settings names the same
encoder. Other names and paths are not part of the identity.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from indexer.hashing import fingerprint
from indexer.recipe.config import KIND_TRAITS, EncoderConfig, EncoderKind, KindTraits, PoolingMode, Precision
from indexer.recipe.paper_methods import POOLINGS

FileHashes = dict[str, str]
"""File name -> sha256."""
PoolingKey = tuple[tuple[int, ...], PoolingMode]
"""An average of layers and the pooling over the tokens."""
UNLIMITED = 1_000_000_000  # max_length of a table
GIVEN = cast(PoolingMode, "given")  # the unknown pooling of embeddings that came with the corpus

_FILES = ("weights", "tokenizer", "config")
_SETTINGS = ("layers", "pooling", "max_length", "query_prefix", "document_prefix")
_KEYS: dict[EncoderKind, tuple[str, ...]] = {
    "transformer": (
        *_FILES,
        *_SETTINGS,
        "lowercase",
        "precision",
        "batch_tokens",
        "group_texts",
        "state",
        "modules",
        "truncate_dim",
    ),
    "static": (*_FILES, *_SETTINGS, "precision", "state", "truncate_dim"),
    "vectors": ("model",),
    "server": ("model", "query_prefix", "document_prefix", "truncate_dim", "state"),
}
_OF_TOKENS = ("kind", *_FILES, "layers", "max_length", "document_prefix", "lowercase")


@dataclass(frozen=True)
class EncoderIdentity:
    """The identity; see the module. Fields that a kind does not use have their defaults and are absent from its dict.

    None marks an absent optional field.
    """

    kind: EncoderKind
    rules: int
    weights: FileHashes = field(default_factory=dict)
    tokenizer: FileHashes = field(default_factory=dict)
    config: FileHashes = field(default_factory=dict)
    layers: tuple[int, ...] = ()  # non-negative, sorted
    pooling: PoolingMode = GIVEN
    max_length: int = UNLIMITED  # tokens
    query_prefix: str = ""
    document_prefix: str = ""
    lowercase: bool = False
    precision: Precision = "float32"
    batch_tokens: int = 0
    group_texts: int | None = None
    modules: FileHashes | None = None
    truncate_dim: int | None = None
    of_pooling: dict[str, Any] = field(default_factory=dict)  # the settings of a paper's pooling, by their key
    state: FileHashes | None = None
    model: str = ""

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "EncoderIdentity":
        """Build the identity from the JSON types in a manifest; unknown keys are ignored."""
        known = {name: plain[name] for name in ("kind", "rules", *_KEYS[plain["kind"]]) if name in plain}
        of_pooling = {paper.identity: plain[paper.identity] for paper in POOLINGS.values() if paper.identity in plain}
        return cls(**known | {"layers": tuple(plain.get("layers", ())), "of_pooling": of_pooling})

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON types that are hashed and stored, byte for byte part of format 1."""
        stated = {name: getattr(self, name) for name in ("kind", "rules", *_KEYS[self.kind])}
        if "layers" in stated:
            stated["layers"] = list(self.layers)
        return {name: value for name, value in stated.items() if value is not None} | self.of_pooling

    @property
    def fingerprint(self) -> str:
        """sha256 of the canonical JSON."""
        return fingerprint(self.to_dict())

    @property
    def token_fingerprint(self) -> str:
        """sha256 of the fields that determine token vectors: files, layers and limits, not the pooling."""
        return fingerprint({name: value for name, value in self.to_dict().items() if name in _OF_TOKENS})

    @property
    def traits(self) -> KindTraits:
        """The traits of this kind of encoder."""
        return KIND_TRAITS[self.kind]

    @property
    def key(self) -> PoolingKey:
        """The layers that are averaged, and the pooling."""
        return self.layers, self.pooling

    @property
    def needs_state(self) -> bool:
        """Whether an index with the encoder must hold a state that is missing: of int8, a pooling, or a server."""
        paper = POOLINGS.get(self.pooling)
        fitted = self.precision == "int8" or (paper is not None and paper.fitted)
        return self.state is None and (fitted or self.traits.is_remote)

    def width(self, size: int) -> int:
        """Return the dimensions of an embedding, given those before truncation."""
        return min(size, self.truncate_dim or size)

    def prefix(self, role: str) -> str:
        """Return the prefix for a text of a role."""
        return self.query_prefix if role == "query" else self.document_prefix


def identity_difference(expected: EncoderIdentity | Mapping[str, Any], found: EncoderIdentity) -> str:
    """Return one line with each file and setting of `found` that differs from the expectation; empty if none differs.

    `expected` may be the identity in a manifest.
    """
    wanted = expected.to_dict() if isinstance(expected, EncoderIdentity) else expected
    present, differences = found.to_dict(), []
    for key in sorted({*wanted, *present}):
        before, now = wanted.get(key), present.get(key)
        if key in (*_FILES, "state", "modules"):
            before, now = before or {}, now or {}
            differences += [
                f"{name} has sha256 {_short(now.get(name))}, expected {_short(before.get(name))}"
                for name in sorted({*before, *now})
                if before.get(name) != now.get(name)
            ]
        elif before != now:
            setting = key.replace("prefix", "prompt")
            shown = f"encoder.{setting}" if hasattr(EncoderConfig, setting) else key
            differences.append(f"{shown} is {_plain(now)}, expected {_plain(before)}")
    return "; ".join(differences)


def _short(sha256: str | None) -> str:
    return f"{sha256[:16]}..." if sha256 else "(no such file)"


def _plain(value: Any) -> str:
    return "unset" if value is None else json.dumps(value, ensure_ascii=False)
