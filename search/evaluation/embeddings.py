"""Embeddings for every setting of a comparison: each distinct text passes through the encoder once."""

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
from indexer.errors import ConfigError, EvaluationError
from indexer.hashing import canonical_json
from indexer.models.encoder_spec import EncoderSpec
from indexer.models.identity import EncoderIdentity, PoolingKey
from indexer.models.resolution import num_layers, resolve_layers, resolve_spec, with_fitted_state
from indexer.progress import NoProgress, Progress
from indexer.recipe.config import BuildConfig, Role
from indexer.recipe.paper_methods import POOLINGS
from indexer.recipe.run_options import RunOptions
from indexer.store.files import atomic_write_bytes, make_folder
from indexer.system.regular_files import read_regular
from search.evaluation.settings import Setting, state_keys, union_of_layers

_DIGEST = 32  # bytes of sha256 behind a cached file


@dataclass(frozen=True)
class TextEmbeddings:
    """Embeddings of distinct texts for several (layers, pooling)."""

    positions: Mapping[str, int]  # text -> row
    rows: Mapping[PoolingKey, Float32Array]  # (distinct texts, d)

    def of(self, texts: Sequence[str], key: PoolingKey) -> Float32Array:
        """Embeddings (n, d), row i for texts[i]; texts may repeat."""
        return self.rows[key][[self.positions[text] for text in texts]]


@dataclass
class EmbeddingSource:
    """An encoder for all layers and poolings that `settings` need. It is loaded when the first text needs it.

    `cache`, when given, is a folder where embeddings are kept, by encoder and texts, from one run to the next.
    """

    config: BuildConfig
    settings: Sequence[Setting]
    options: RunOptions = field(default_factory=RunOptions)
    own: EncoderSpec | None = None  # of the recipe itself: where its files lie, its rules, its fitted state
    cache: Path | None = None
    progress: Progress = field(default_factory=NoProgress)
    log: EncodeStats = field(default_factory=EncodeStats)

    def __post_init__(self) -> None:
        self.spec: EncoderSpec = _resolved(self.config, self.settings, self.own)
        self.keys = state_keys(self.settings)
        self._encoder: Encoder | None = None

    @property
    def blocks(self) -> int:
        """Blocks of the model: layers are 0 (the embedding output) to this; a table has none.

        Raises ConfigError where texts cannot be encoded.
        """
        if not self.spec.traits.encodes_texts:
            raise ConfigError(f"{cannot_encode(self.spec)} There is nothing to measure but retrieval and recall.")
        return num_layers(self.spec.files) if self.spec.traits.has_layers else 0

    def fingerprint(self, key: PoolingKey) -> str:
        """The fingerprint an index built with these layers and this pooling would have."""
        if not self.spec.traits.encodes_texts:
            return self.spec.fingerprint
        return self._identity(key).fingerprint

    def encode(self, texts: Sequence[str], role: Role = "document") -> TextEmbeddings:
        """Embeddings of the distinct ones among `texts`, for every setting.

        Raises EvaluationError when one holds NaN or infinity, or is all zero: nothing can be ranked by it.
        """
        distinct = list(dict.fromkeys(texts))
        path = self._cached_at(distinct, role)
        kept = _read(path, len(self.keys)) if path else None
        if kept is None:
            rows = self._encode(distinct, role)
            if path:
                _write(path, rows, self.log.lengths[len(self.log.lengths) - len(distinct) :])
        else:
            rows = self._recalled(*kept)
        for array in rows:
            _require_usable(array)
        return TextEmbeddings({text: row for row, text in enumerate(distinct)}, dict(zip(self.keys, rows, strict=True)))

    def _encode(self, texts: list[str], role: Role) -> list[Float32Array]:
        if self._encoder is None:
            self._encoder = open_encoder(self.spec, self._suited())
        self.progress.phase(f"encoding {'queries' if role == 'query' else 'texts'}", len(texts))
        self.log.on_batch = self.progress.advance
        found = self._encoder.states(texts, self.keys, role, self.log)
        return [found[key] for key in self.keys]

    def _suited(self) -> RunOptions:
        """The options, with the backend that computes every pooling asked for."""
        of_tokens = [pooling for _, pooling in self.keys if pooling in POOLINGS]
        if not of_tokens or not self.spec.traits.has_layers:
            return self.options
        if self.options.backend not in ("auto", "torch"):
            raise ConfigError(
                f'the backend {self.options.backend} does not compute pooling "{of_tokens[0]}"; torch does.'
            )
        return dataclasses.replace(self.options, backend="torch")

    def _recalled(self, rows: list[Float32Array], lengths: list[int]) -> list[Float32Array]:
        """Return kept rows, and log their lengths as when they were encoded."""
        self.log.lengths.extend(lengths)
        self.log.truncated += count_cut(self, lengths)
        return rows

    def _identity(self, key: PoolingKey) -> EncoderIdentity:
        layers, pooling = key
        resolved = resolve_layers(layers, self.blocks) if self.spec.traits.has_layers else []
        return dataclasses.replace(self.spec.identity, layers=tuple(resolved), pooling=pooling)

    def _cached_at(self, texts: list[str], role: Role) -> Path | None:
        if self.cache is None:
            return None
        encoded = canonical_json([role, [self._identity(key).to_dict() for key in self.keys]])
        return self.cache / f"{digest_of(encoded, texts)}.states"


def digest_of(encoder: bytes, texts: Sequence[str]) -> str:
    """Return the name of the file that keeps embeddings: a hash of what describes the encoder, and of the texts."""
    digest = hashlib.sha256(encoder)
    for text in texts:
        digest.update(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest())
    return digest.hexdigest()


def _resolved(config: BuildConfig, settings: Sequence[Setting], own: EncoderSpec | None) -> EncoderSpec:
    """The encoder of `config` with the layers of all settings: it differs from the recipe's `own` in those at most."""
    if own is not None and not own.traits.encodes_texts:
        return own
    if config.encoder.traits.has_layers:
        encoder = dataclasses.replace(config.encoder, layers=union_of_layers(settings))
        config = dataclasses.replace(config, encoder=encoder)
    if own is None:
        return _with_trained(resolve_spec(config))
    spec = resolve_spec(config, own.folder, own.identity.rules)
    if own.state is None:
        return _with_trained(spec)
    if spec.fingerprint != own.base_fingerprint:
        fitted = "is int8, which is calibrated" if own.identity.precision == "int8" else "was fitted"
        raise EvaluationError(
            f"the index's encoder {fitted} for its own layers and pooling; compare others with an index, or a recipe, "
            'of encoder.precision = "bfloat16" and a pooling that is not fitted.'
        )
    return with_fitted_state(spec, own.state, own.identity.state or {})


def _with_trained(spec: EncoderSpec) -> EncoderSpec:
    """The encoder with what `isotrope train` wrote for it, where the recipe names that."""
    return load_fitted_state(spec) if spec.trained else spec


def _require_usable(rows: Float32Array) -> None:
    unusable = int(np.count_nonzero(~np.isfinite(rows).all(axis=1) | ~rows.any(axis=1)))
    if unusable:
        raise EvaluationError(
            f"{unusable:,} embeddings hold NaN or infinity, or are all zero, so nothing can be ranked. The model "
            "overflows or is damaged: try --set encoder.precision=float32, or another model."
        )


def _write(path: Path, rows: Sequence[Float32Array], lengths: Sequence[int]) -> None:
    arrays = {str(number): np.ascontiguousarray(array) for number, array in enumerate(rows)}
    data = save_tensors(arrays | {"lengths": np.array(lengths, np.int64)})
    make_folder(path.parent)
    atomic_write_bytes(path, data + hashlib.sha256(data).digest())


def _read(path: Path, count: int) -> tuple[list[Float32Array], list[int]] | None:
    """What was kept; None when there is nothing, or not what was written, so that it is made again."""
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
    """Return embeddings of texts, and the tokens of each text."""
    before = len(source.log.lengths)
    states = source.encode(texts, role)
    tokens = source.log.lengths[before:]
    return states, [tokens[states.positions[text]] for text in texts]


def count_cut(source: EmbeddingSource, lengths: Sequence[int]) -> int:
    """Return how many texts of so many tokens are cut at the encoder's max_length."""
    return sum(length > source.spec.identity.max_length for length in lengths)
