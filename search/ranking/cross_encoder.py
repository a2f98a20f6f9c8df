"""A cross-encoder: a question and a text, read together, to a score. Pairs go through in batches of like length.

It runs as encoders do: by OpenVINO on a CPU where that is installed, else by torch; float32 or the class bfloat16. The
scores are those of sentence-transformers' `CrossEncoder.predict`, up to that rounding.
"""

import dataclasses
import importlib.util
import os
from collections.abc import Sequence
from itertools import accumulate, chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from indexer.arrays import Float32Array, Float64Array, Int32Array
from indexer.encoders.batching import Batch, ModelRunner
from indexer.encoders.load import named_backend, suits_openvino
from indexer.encoders.protocol import EncodeStats
from indexer.errors import ConfigError, CorpusError, IsotropeError, ModelError
from indexer.lazy import install_line
from indexer.models.cross_encoder_spec import read_activation, resolve_cross_encoder
from indexer.models.encoder_spec import EncoderSpec, Tokens
from indexer.models.tokenizer import FastTokenizer, TextTokenizer, open_model_tokenizer, tokenizer_errors
from indexer.recipe.ranking import RerankConfig
from indexer.recipe.run_options import RunOptions

if TYPE_CHECKING:
    from tokenizers import Encoding

_GROUP = 4096  # pairs tokenised and cut into batches together


class CrossEncoder:
    """A loaded cross-encoder. Safe to share between threads."""

    def __init__(self, spec: EncoderSpec, runner: ModelRunner) -> None:
        self.spec, self._runner = spec, runner
        self._activation = read_activation(spec.files)
        self._tokenizer = PairTokenizer(open_model_tokenizer(spec), spec)
        self._plan = runner.plan(spec.identity.batch_tokens)

    @property
    def backend(self) -> str:
        """What runs it, and in what numbers."""
        return self._runner.backend

    def scores(self, queries: Sequence[str], texts: Sequence[str], log: EncodeStats | None = None) -> Float64Array:
        """How well each text answers its query, (n,): higher is better. `log` counts pairs, and those that were cut.

        A score does not depend on the other pairs, beyond the rounding of its class. Raises CorpusError for a text that
        is not valid Unicode, ModelError for a model that gives scores that are no numbers, and MachineError when a
        single pair does not fit into memory.
        """
        logits = np.empty(len(texts), np.float32)
        for start in range(0, len(texts), _GROUP):
            some = slice(start, start + _GROUP)
            tokens = self._tokenizer(queries[some], texts[some])
            if log is not None:
                log.lengths.extend(tokens.lengths.tolist())
                log.truncated += int(np.count_nonzero(tokens.lengths > self.spec.identity.max_length))
            with self._runner.turn:
                self._run(tokens, logits[some])
        if not np.isfinite(logits).all():
            raise ModelError(f"{self.spec.folder}: gives scores that are no numbers. Take rerank.precision float32.")
        wide = logits.astype(np.float64)  # where a sigmoid in float32 is 1 for everything above 17
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
    """Queries and texts to `Tokens`, a pair in one row; the longer of the two is cut first.

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
        self._tokenizer = Tokenizer.from_str(tokenizer.run.tokenizer.to_str())  # its own: it is told where to cut
        self._tokenizer.enable_truncation(
            self._limit, strategy="longest_first", direction="left" if tokenizer.facts.from_left else "right"
        )

    def __call__(self, queries: Sequence[str], texts: Sequence[str]) -> Tokens:
        """Token ids of each pair. Of one that was cut, `lengths` says no more than that it was longer."""
        with tokenizer_errors(self._name):
            rows = self._encoded(list(zip(queries, texts, strict=True)))
        starts = np.fromiter(accumulate((len(row.ids) for row in rows), initial=0), np.int64, len(rows) + 1)
        lengths = [self._limit + 1 if row.overflowing else len(row.ids) for row in rows]
        types = _flat([row.type_ids for row in rows], starts[-1]) if self._types else None
        return Tokens(_flat([row.ids for row in rows], starts[-1]), types, starts, np.array(lengths, np.int32))

    def _encoded(self, pairs: list[tuple[str, str]]) -> "list[Encoding]":
        try:
            return self._tokenizer.encode_batch_fast(pairs)
        except TypeError as error:
            raise CorpusError("a question or a text is not valid Unicode (it holds a lone surrogate).") from error


def another_model(config: RerankConfig, model: str | Path) -> RerankConfig:
    """Return a recipe's settings with another model, without a recorded hash, and with the model's own length limit.

    The recorded model, by its name or moved, keeps the recipe's limit. Raises ConfigError for a blank name.
    """
    if not str(model).strip():
        raise ConfigError(
            "the name of the cross-encoder is blank; expected a hub id or a folder. Is a variable unset? Leave it out "
            "to go without."
        )
    same = dataclasses.replace(config, model=str(model), sha256="")
    return same if _is_recorded(config, same) else dataclasses.replace(same, max_length=0)


def _is_recorded(config: RerankConfig, asked: RerankConfig) -> bool:
    """Return whether the chosen model is the recipe's own: of the same name, or with the recorded hash."""
    if not config.model or not config.max_length:  # there is nothing to keep
        return False
    first, second = (Path(one.model).expanduser() for one in (config, asked))
    if first == second or first.resolve() == second.resolve():
        return True
    try:
        return resolve_cross_encoder(asked).fingerprint == config.sha256
    except IsotropeError:  # another model, or none: opening it says what is wrong
        return False


def open_cross_encoder(spec: EncoderSpec, options: RunOptions | None = None) -> CrossEncoder:
    """Load a cross-encoder onto the device asked for. Raises ModelError, ConfigError and MachineError."""
    options = options or RunOptions()
    chosen = named_backend(options)
    if chosen == "openvino":
        return CrossEncoder(spec, _openvino(spec, options))
    if chosen in ("auto", "numpy") and suits_openvino(options):  # numpy runs none
        try:
            return CrossEncoder(spec, _openvino(spec, options))
        except ModelError:  # not a model that OpenVINO can run: torch does, or says what is wrong with it
            return CrossEncoder(spec, _torch(spec, options))
    return CrossEncoder(spec, _torch(spec, options))


def _openvino(spec: EncoderSpec, options: RunOptions) -> ModelRunner:
    if importlib.util.find_spec("openvino") is None:
        raise ConfigError(f"the backend openvino is not installed: {install_line('fast')}.")
    from indexer.encoders.openvino.backend import OpenVinoClassifier

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # as for encoders
    return OpenVinoClassifier(spec, options)


def _torch(spec: EncoderSpec, options: RunOptions) -> ModelRunner:
    from indexer.encoders.transformer import TorchClassifier

    return TorchClassifier(spec, options)


def _flat(rows: Sequence[Sequence[int]], total: int) -> Int32Array:
    return np.fromiter(chain.from_iterable(rows), np.int32, total)
