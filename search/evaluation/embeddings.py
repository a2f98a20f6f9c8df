"""Embeddings for every setting of a comparison, with one pass through the encoder for each distinct text."""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from indexer.arrays import Float32Array
from indexer.encoders.fitted_state import load_fitted_state
from indexer.encoders.load import open_encoder
from indexer.encoders.precomputed import cannot_encode
from indexer.encoders.protocol import Encoder, EncodeStats
from indexer.errors import ConfigError, EvaluationError, set_to
from indexer.hashing import canonical_json
from indexer.models.encoder_spec import EncoderSpec
from indexer.models.identity import EncoderIdentity, PoolingKey
from indexer.models.resolution import num_layers, resolve_layers, resolve_spec, with_fitted_state
from indexer.progress import Progress
from indexer.recipe.config import BuildConfig, Role
from indexer.recipe.paper_methods import POOLINGS
from indexer.recipe.run_options import RunOptions
from indexer.store.files import atomic_write_bytes, make_folder
from indexer.system.regular_files import read_regular
from search.evaluation.sweep import Setting, state_keys, union_of_layers

_DIGEST = 32  # bytes of sha256 at the end of a cached file


@dataclass(frozen=True)
class TextEmbeddings:
    """Embeddings of distinct texts for several (layers, pooling)."""

    positions: Mapping[str, int]  # text -> row
    rows: Mapping[PoolingKey, Float32Array]  # (distinct texts, d)

    def of(self, texts: Sequence[str], key: PoolingKey) -> Float32Array:
        """Return embeddings (n, d), row i for texts[i]; texts may repeat."""
        return self.rows[key][[self.positions[text] for text in texts]]


@dataclass
class EmbeddingSource:
    """An encoder for all layers and poolings of `settings`, loaded when the first text needs it.

    `cache` is an optional folder that keeps embeddings between runs, by encoder and texts.
    """

    config: BuildConfig
    settings: Sequence[Setting]
    own: EncoderSpec  # of the recipe, with the place of its files, its rules and its fitted state
    options: RunOptions
    cache: Path | None
    progress: Progress
    log: EncodeStats = field(default_factory=EncodeStats)

    def __post_init__(self) -> None:
        self.spec: EncoderSpec = _resolved(self.config, self.settings, self.own)
        self.keys = state_keys(self.settings)
        self._encoder: Encoder | None = None

    @property
    def blocks(self) -> int:
        """The number of blocks: layers are 0 (the embedding output) to this number; 0 for a table.

        Raises ConfigError if texts cannot be encoded.
        """
        if not self.spec.traits.encodes_texts:
            raise ConfigError(f"{cannot_encode(self.spec)} Only retrieval and recall can be measured.")
        return num_layers(self.spec.files) if self.spec.traits.has_layers else 0

    def fingerprint(self, key: PoolingKey) -> str:
        """Return the fingerprint of an index with these layers and this pooling."""
        if not self.spec.traits.encodes_texts:
            return self.spec.fingerprint
        return self._identity(key).fingerprint

    def encode(self, texts: Sequence[str], role: Role = "document") -> TextEmbeddings:
        """Return embeddings of the distinct texts for every setting.

        Raises EvaluationError for embeddings with NaN or infinity, or of zeros: they cannot be ranked.
        """
        distinct = list(dict.fromkeys(texts))
        path = self._cached_at(distinct, role)
        if path and (cached := _read(path, len(self.keys))):
            rows, lengths = cached
            self.log.lengths.extend(lengths)
            self.log.truncated += count_cut(self, lengths)
        else:
            rows = self._encode(distinct, role)
            if path:
                _write(path, rows, self.log.lengths[len(self.log.lengths) - len(distinct) :])
        for array in rows:
            _require_usable(array)
        return TextEmbeddings({text: row for row, text in enumerate(distinct)}, dict(zip(self.keys, rows, strict=True)))

    def _encode(self, texts: list[str], role: Role) -> list[Float32Array]:
        if self._encoder is None:
            self._encoder = open_encoder(self.spec, self._suited())
        self.progress.phase(f"encoding {'queries' if role == 'query' else 'texts'}", len(texts))
        self.log.on_batch = self.progress.advance
        states = self._encoder.states(texts, self.keys, role, self.log)
        return [states[key] for key in self.keys]

    def _suited(self) -> RunOptions:
        """Return the options with a backend that computes every pooling."""
        of_tokens = [pooling for _, pooling in self.keys if pooling in POOLINGS]
        if not of_tokens or not self.spec.traits.has_layers:
            return self.options
        if self.options.backend not in ("auto", "torch"):
            raise ConfigError(
                f'the backend {self.options.backend} does not support pooling "{of_tokens[0]}". Fix: use torch.'
            )
        return dataclasses.replace(self.options, backend="torch")

    def _identity(self, key: PoolingKey) -> EncoderIdentity:
        layers, pooling = key
        resolved = resolve_layers(layers, self.blocks) if self.spec.traits.has_layers else []
        return dataclasses.replace(self.spec.identity, layers=tuple(resolved), pooling=pooling)

    def _cached_at(self, texts: list[str], role: Role) -> Path | None:
        if self.cache is None or self.spec.identity.needs_state:  # a server's model can change under its name
            return None
        encoded = canonical_json([role, [self._identity(key).to_dict() for key in self.keys]])
        return self.cache / f"{digest_of(encoded, texts)}.states"


def digest_of(encoder: bytes, texts: Sequence[str]) -> str:
    """Return the name of a file of cached embeddings: a hash of the encoder's description and of the texts."""
    digest = hashlib.sha256(encoder)
    for text in texts:
        digest.update(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest())
    return digest.hexdigest()


def _resolved(config: BuildConfig, settings: Sequence[Setting], own: EncoderSpec) -> EncoderSpec:
    """Return the encoder of `config` with the layers of all settings; all else is as in the recipe's `own`."""
    if not own.traits.encodes_texts:
        return own
    if config.encoder.traits.has_layers:
        encoder = dataclasses.replace(config.encoder, layers=union_of_layers(settings))
        config = dataclasses.replace(config, encoder=encoder)
    spec = resolve_spec(config, own.folder, own.identity.rules)
    if own.state is None:
        return load_fitted_state(spec)
    if spec.fingerprint != own.base_fingerprint:
        fitted = "is int8, which is calibrated" if own.identity.precision == "int8" else "was fitted"
        raise EvaluationError(
            f"the index's encoder {fitted} for its own layers and pooling. Fix: compare others with an index or a "
            'recipe that has encoder.precision = "bfloat16" and a pooling without fitting.'
        )
    return with_fitted_state(spec, own.state, own.identity.state or {})


def _require_usable(rows: Float32Array) -> None:
    unusable = int(np.count_nonzero(~np.isfinite(rows).all(axis=1) | ~rows.any(axis=1)))
    if unusable:
        raise EvaluationError(
            f"{unusable:,} embeddings contain NaN or infinity, or are all zero, and cannot be ranked. The model "
            f"overflows or is damaged. Fix: try {set_to('encoder.precision', 'float32')}, or another model."
        )


def _write(path: Path, rows: Sequence[Float32Array], lengths: Sequence[int]) -> None:
    arrays = {str(number): np.ascontiguousarray(array) for number, array in enumerate(rows)}
    data = save_tensors(arrays | {"lengths": np.array(lengths, np.int64)})
    make_folder(path.parent)
    atomic_write_bytes(path, data + hashlib.sha256(data).digest())


def _read(path: Path, count: int) -> tuple[list[Float32Array], list[int]] | None:
    """Return cached embeddings and lengths; None if the file is missing or damaged."""
    try:
        data = read_regular(path)
        if hashlib.sha256(data[:-_DIGEST]).digest() != data[-_DIGEST:]:
            return None
        arrays = load_tensors(data[:-_DIGEST])
        lengths, rows = arrays["lengths"], [arrays[str(number)] for number in range(count)]
    except (OSError, SafetensorError, KeyError):
        return None
    fits = all(array.ndim == 2 and len(array) == len(lengths) and array.dtype == np.float32 for array in rows)
    return (rows, lengths.tolist()) if fits and lengths.dtype == np.int64 and lengths.ndim == 1 else None


def encode_with_lengths(source: EmbeddingSource, texts: Sequence[str], role: Role) -> tuple[TextEmbeddings, list[int]]:
    """Return embeddings of texts, and the number of tokens of each text."""
    before = len(source.log.lengths)
    states = source.encode(texts, role)
    tokens = source.log.lengths[before:]
    return states, [tokens[states.positions[text]] for text in texts]


def count_cut(source: EmbeddingSource, lengths: Sequence[int]) -> int:
    """Return the number of texts of these lengths that the encoder truncates."""
    return sum(length > source.spec.identity.max_length for length in lengths)
