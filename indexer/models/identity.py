"""The identity of an encoder: the settings and file hashes that decide its results, and their fingerprint.

As a dict of JSON types, which is what is hashed and what a manifest holds:

    kind, rules                        "transformer", and the version of this code's rules
    weights, tokenizer, config         file name -> sha256
    layers, pooling, max_length, query_prefix, document_prefix, lowercase
    precision                          the class of results; how it is computed is the machine's business
    batch_tokens                       the batch plan, which decides rounding; 0: the backend's own
    group_texts                        texts that rules 1 cut into batches together
    sif_a, latte_mix                   settings of the pooling of a paper
    state                              file name -> sha256 of the fitted state, where there is one (int8, such poolings)

Of kind "static", a table of token vectors: the same without lowercase and batch plan, and its layers are [].
Of kind "vectors", where embeddings come with the corpus: kind, rules, and model, the name the recipe gives it.

With `pooling = "auto"` the settings of a sentence-transformers folder stand in it as resolved, so the same
settings written out in the recipe are the same encoder. Else names and paths are not part of it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from indexer.hashing import fingerprint
from indexer.recipe.config import KIND_TRAITS, EncoderKind, KindTraits, PoolingMode, Precision
from indexer.recipe.paper_methods import POOLINGS

FileHashes = dict[str, str]
"""File name -> sha256."""
PoolingKey = tuple[tuple[int, ...], PoolingMode]
"""An average of layers and the pooling over the tokens."""
UNLIMITED = 1_000_000_000  # tokens of a text that a table takes
GIVEN = cast(PoolingMode, "given")  # the pooling of embeddings that came with the corpus: whatever it was

_FILES = ("weights", "tokenizer", "config")
_SETTINGS = ("layers", "pooling", "max_length", "query_prefix", "document_prefix")
_KEYS: dict[EncoderKind, tuple[str, ...]] = {
    "transformer": (*_FILES, *_SETTINGS, "lowercase", "precision", "batch_tokens", "group_texts", "state"),
    "static": (*_FILES, *_SETTINGS, "precision", "state"),
    "vectors": ("model",),
}
_OF_TOKENS = ("kind", *_FILES, "layers", "max_length", "document_prefix", "lowercase")


@dataclass(frozen=True)
class EncoderIdentity:
    """See the module. What a kind of encoder does not state has its default here, and stands in no dict.

    None stands for what is stated only sometimes.
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
    of_pooling: dict[str, Any] = field(default_factory=dict)  # the settings of a paper's pooling, by their key
    state: FileHashes | None = None
    model: str = ""

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "EncoderIdentity":
        """From JSON types, as a manifest holds them; keys that this version does not know are passed over."""
        known = {name: plain[name] for name in ("kind", "rules", *_KEYS[plain["kind"]]) if name in plain}
        own = {paper.identity: plain[paper.identity] for paper in POOLINGS.values() if paper.identity in plain}
        return cls(**known | {"layers": tuple(plain.get("layers", ())), "of_pooling": own})

    def to_dict(self) -> dict[str, Any]:
        """JSON types: what is hashed and stored. Byte for byte part of format 1."""
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
        """What token vectors depend on: files, layers and cut, not how they are pooled."""
        return fingerprint({name: value for name, value in self.to_dict().items() if name in _OF_TOKENS})

    @property
    def traits(self) -> KindTraits:
        """What holds for every encoder of this kind."""
        return KIND_TRAITS[self.kind]

    @property
    def key(self) -> PoolingKey:
        """The layers that are averaged, and the pooling."""
        return self.layers, self.pooling

    @property
    def needs_state(self) -> bool:
        """Whether the encoder must be fitted to a corpus before it can encode: int8 ranges are, and some poolings."""
        paper = POOLINGS.get(self.pooling)
        return self.state is None and (self.precision == "int8" or (paper is not None and paper.fitted))

    def prefix(self, role: str) -> str:
        """What is put before a text of a role."""
        return self.query_prefix if role == "query" else self.document_prefix

    def without_state(self) -> "EncoderIdentity":
        """The encoder before it is fitted: known before a corpus is read."""
        return replace(self, state=None)


def identity_difference(expected: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """One line naming every file and setting in which two identities, as dicts, differ; empty if in none."""
    differences = []
    for key in sorted({*expected, *found}):
        before, now = expected.get(key), found.get(key)
        if key in (*_FILES, "state"):
            differences += _file_differences(before or {}, now or {})
        elif before != now:
            differences.append(f"{key} is {_plain(now)}, expected {_plain(before)}")
    return "; ".join(differences)


def _file_differences(before: FileHashes, now: FileHashes) -> list[str]:
    return [
        f"{name} has sha256 {_short(now.get(name))}, expected {_short(before.get(name))}"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    ]


def _short(sha256: str | None) -> str:
    return f"{sha256[:16]}..." if sha256 else "(no such file)"


def _plain(value: Any) -> str:
    return "unset" if value is None else json.dumps(value, ensure_ascii=False)
