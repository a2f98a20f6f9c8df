"""A cross-encoder: scores a query and a text that it reads together. Batches contain pairs of similar length.

It runs like encoders: by OpenVINO on a CPU if installed, else by torch; in float32 or the class bfloat16. Scores equal
those of sentence-transformers' `CrossEncoder.predict`, up to the rounding of the class.
"""

import dataclasses
import importlib.util
import os
from collections.abc import Sequence
from itertools import accumulate, chain
from pathlib import Path

import numpy as np

from indexer.arrays import Float32Array, Float64Array, Int32Array
from indexer.encoders.batching import Batch, ModelRunner
from indexer.encoders.load import named_backend, suits_openvino
from indexer.encoders.protocol import EncodeStats
from indexer.errors import ConfigError, CorpusError, IsotropeError, ModelError
from indexer.lazy_imports import install_line
from indexer.models.cross_encoder_spec import read_activation, resolve_cross_encoder
from indexer.models.encoder_spec import EncoderSpec, Tokens
from indexer.models.tokenizer import FastTokenizer, TextTokenizer, open_model_tokenizer, tokenizer_errors
from indexer.recipe.ranking import RerankConfig
from indexer.recipe.run_options import RunOptions

_GROUP = 4096  # pairs tokenised and cut into batches together


class CrossEncoder:
    """A loaded cross-encoder, safe to share between threads."""

    def __init__(self, spec: EncoderSpec, runner: ModelRunner) -> None:
        self.spec, self._runner = spec, runner
        self._activation = read_activation(spec.files)
        self._tokenizer = PairTokenizer(open_model_tokenizer(spec), spec)
        self._plan = runner.plan(spec.identity.batch_tokens)

    @property
    def backend(self) -> str:
        """The backend and its number type."""
        return self._runner.backend

    def scores(self, queries: Sequence[str], texts: Sequence[str], log: EncodeStats | None = None) -> Float64Array:
        """Return how well each text answers its query, (n,): higher is better. `log` counts pairs and cut pairs.

        A score does not depend on the other pairs, up to the rounding of its class. Raises CorpusError for a text that
        is not valid Unicode, ModelError for a model that returns NaN or infinity, and MachineError if a single pair
        does not fit into memory.
        """
        logits = np.empty(len(texts), np.float32)
        for start in range(0, len(texts), _GROUP):
            group = slice(start, start + _GROUP)
            tokens = self._tokenizer(queries[group], texts[group])
            if log is not None:
                log.lengths.extend(tokens.lengths.tolist())
                log.truncated += int(np.count_nonzero(tokens.lengths > self.spec.identity.max_length))
            with self._runner.turn:
                self._run(tokens, logits[group])
        if not np.isfinite(logits).all():
            raise ModelError(f"{self.spec.folder}: scores are NaN or infinite. Fix: set rerank.precision to float32.")
        wide = logits.astype(np.float64)  # because a sigmoid in float32 is 1 for everything above 17
        return wide if self._activation == "identity" else 1 / (1 + np.exp(-np.clip(wide, -700, None)))

    def _run(self, tokens: Tokens, logits: Float32Array) -> None:
        lengths, padding = tokens.cut_lengths, self._tokenizer.padding
        plan = self._plan(lengths)
        batches = (
            Batch.of(tokens, positions, padding, self._plan.padded(int(lengths[positions[0]]))) for positions in plan
        )
        for positions, rows in zip(plan, self._runner.run(batches, [self.spec.identity.key]), strict=True):
            logits[positions] = rows.rows[0, :, 0]


class PairTokenizer:
    """Converts queries and texts to `Tokens`, one row per pair; the longer of the two is cut first.

    Raises ModelError for a tokenizer written in Python.
    """

    def __init__(self, tokenizer: TextTokenizer, spec: EncoderSpec) -> None:
        from tokenizers import Tokenizer

        if not isinstance(tokenizer.run, FastTokenizer):
            raise ModelError(
                f"{spec.folder}: its tokenizer is written in Python; expected a cross-encoder with a tokenizer.json."
            )
        self.padding, self._name = tokenizer.facts.padding, str(spec.files.root)
        self._types, self._limit = tokenizer.facts.types != "none", spec.identity.max_length
        self._tokenizer = Tokenizer.from_str(tokenizer.run.tokenizer.to_str())  # a copy, because its settings change
        self._tokenizer.enable_truncation(
            self._limit, strategy="longest_first", direction="left" if tokenizer.facts.from_left else "right"
        )

    def __call__(self, queries: Sequence[str], texts: Sequence[str]) -> Tokens:
        """Return the token ids of each pair. The length of a cut pair is the limit + 1."""
        with tokenizer_errors(self._name):
            try:
                rows = self._tokenizer.encode_batch_fast(list(zip(queries, texts, strict=True)))
            except TypeError as error:
                raise CorpusError("a query or a text is not valid Unicode (it contains a lone surrogate).") from error
        starts = np.fromiter(accumulate((len(row.ids) for row in rows), initial=0), np.int64, len(rows) + 1)
        lengths = [self._limit + 1 if row.overflowing else len(row.ids) for row in rows]
        types = _flat([row.type_ids for row in rows], starts[-1]) if self._types else None
        return Tokens(_flat([row.ids for row in rows], starts[-1]), types, starts, np.array(lengths, np.int32))


def another_model(config: RerankConfig, model: str | Path) -> RerankConfig:
    """Return a recipe's settings with another model, without a recorded hash, and with the model's own length limit.

    The recorded model, by its name or moved, keeps the recipe's limit. Raises ConfigError for a blank name.
    """
    if not str(model).strip():
        raise ConfigError("the name of the cross-encoder is blank; expected a hub id or a folder. Is a variable unset?")
    same = dataclasses.replace(config, model=str(model), sha256="")
    return same if _is_recorded(config, same) else dataclasses.replace(same, max_length=0)


def _is_recorded(config: RerankConfig, chosen: RerankConfig) -> bool:
    """Return whether the chosen model is the recipe's own: of the same name, or with the recorded hash."""
    if not config.model or not config.max_length:  # no limit to keep
        return False
    first, second = Path(config.model).expanduser(), Path(chosen.model).expanduser()
    if first == second or first.resolve() == second.resolve():
        return True
    try:
        return resolve_cross_encoder(chosen).fingerprint == config.sha256
    except IsotropeError:  # another model, or none, which opening it reports
        return False


def open_cross_encoder(spec: EncoderSpec, options: RunOptions | None = None) -> CrossEncoder:
    """Load a cross-encoder onto the chosen device. Raises ModelError, ConfigError and MachineError."""
    options = options or RunOptions()
    backend = named_backend(options)
    if backend == "openvino":
        return CrossEncoder(spec, _openvino(spec, options))
    if backend in ("auto", "numpy") and suits_openvino(options, spec):  # numpy runs no cross-encoder
        try:
            return CrossEncoder(spec, _openvino(spec, options))
        except ModelError:  # torch runs models that OpenVINO cannot run, or reports the problem
            pass
    from indexer.encoders.transformer import TorchClassifier

    return CrossEncoder(spec, TorchClassifier(spec, options))


def _openvino(spec: EncoderSpec, options: RunOptions) -> ModelRunner:
    if importlib.util.find_spec("openvino") is None:
        raise ConfigError(f"the backend openvino is not installed. Install it: {install_line('fast')}")
    from indexer.encoders.openvino.backend import OpenVinoClassifier

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # as for encoders
    return OpenVinoClassifier(spec, options)


def _flat(rows: Sequence[Sequence[int]], total: int) -> Int32Array:
    return np.fromiter(chain.from_iterable(rows), np.int32, total)
