"""The conversion of texts to token ids, independent of the backend; tokenizers are cached."""

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import accumulate, chain
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from indexer.arrays import Int32Array
from indexer.encoders.windows import TokenOffsets
from indexer.errors import ConfigError, CorpusError, ModelError
from indexer.models.encoder_spec import EncoderSpec, Tokens
from indexer.models.hub import as_model_errors, first_line, library_errors, quiet_transformers
from indexer.models.model_files import PYTHON_TOKENIZED
from indexer.models.model_json import read_config, read_tokenizer
from indexer.system.cache import cached_folder, read_cached
from indexer.system.versions import version_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer


Encoded = tuple[list[list[int]], list[list[int]] | None]
"""Token ids of each text, and its token types if they are not all 0."""
_FILE = "tokenizer.json"
_RULES = 2  # bump when the same files would give another tokenizer
_PROBE = "a"


@dataclass(frozen=True)
class TokenizerInfo:
    """The facts about a tokenizer that its own file does not state. JSON types."""

    head: int  # special tokens that open a text
    tail: int  # special tokens that close it
    from_left: bool  # truncation cuts the beginning
    padding: int  # id
    stand_in: int  # id for a text without tokens
    types: Literal["none", "zero", "given"]  # token_type_ids: unknown to the tokenizer, always 0, or its own


class TextTokenizer:
    """Texts to `Tokens`. `run` returns the ids of a list of texts, uncut."""

    def __init__(self, run: Callable[[list[str]], Encoded], facts: TokenizerInfo, max_length: int) -> None:
        self.facts, self.run, self._max_length = facts, run, max_length
        special = facts.head + facts.tail
        if max_length <= special:
            raise ConfigError(
                f"encoder.max_length is {max_length}, but {special} tokens are special tokens; expected at least "
                f"{special + 1}."
            )

    def __call__(self, texts: Sequence[str]) -> Tokens:
        """Return token ids for each text. A text without tokens gets the token `facts.stand_in`.

        Raises CorpusError for a text that is not valid Unicode (a lone surrogate).
        """
        ids, types = self.run(list(texts))
        lengths = np.fromiter(map(len, ids), np.int32, len(ids))
        ids = [self._cut(row) if row else [self.facts.stand_in] for row in ids]
        starts = np.fromiter(accumulate(map(len, ids), initial=0), np.int64, len(ids) + 1)
        flat_types = _flat([self._cut(row) if row else [0] for row in types], starts[-1]) if types else None
        return Tokens(_flat(ids, starts[-1]), flat_types, starts, lengths)

    def offsets(self, texts: Sequence[str]) -> list[TokenOffsets]:
        """Return the first characters of the tokens of each text, uncut and without special tokens.

        Raises ConfigError for a tokenizer without positions, CorpusError for a text that is not valid Unicode.
        """
        if not isinstance(self.run, FastTokenizer):
            raise ConfigError(
                "chunk.tokens needs the positions of tokens, which this model's Python tokenizer does not report. "
                "Fix: set chunk.tokens=0, or choose a model with a tokenizer.json."
            )
        return self.run.offsets(list(texts))

    def _cut(self, row: list[int]) -> list[int]:
        """Keep the first tokens (the last, if the tokenizer truncates on the left) between the special tokens."""
        if len(row) <= self._max_length:
            return row
        head, tail = self.facts.head, self.facts.tail
        if self.facts.from_left:
            return row[:head] + row[len(row) - self._max_length + head :]
        return row[: self._max_length - tail] + row[len(row) - tail :]


@dataclass(frozen=True)
class KeptTokenizer:
    """A cached tokenizer of the `tokenizers` library, as JSON."""

    facts: TokenizerInfo
    tokenizer: str


@dataclass(frozen=True)
class FastTokenizer:
    """The `run` of a tokenizer of the `tokenizers` library.

    Raises ModelError if a pattern of the model needs more steps for a text than the library allows.
    """

    tokenizer: "Tokenizer"
    types: bool  # whether it has types that are not always 0
    name: str = "the tokenizer"

    def __call__(self, texts: list[str]) -> Encoded:
        encodings = self._run(self.tokenizer.encode_batch_fast, texts)
        return [row.ids for row in encodings], [row.type_ids for row in encodings] if self.types else None

    def offsets(self, texts: list[str]) -> list[TokenOffsets]:
        """Return the first characters of the tokens of each text, in the text before its normalisation."""
        encodings = self._run(partial(self.tokenizer.encode_batch, add_special_tokens=False), texts)
        return [
            TokenOffsets(
                np.fromiter((start for start, _ in row.offsets), np.int32, len(row)),
                np.fromiter((-1 if word is None else word for word in row.word_ids), np.int32, len(row)),
            )
            for row in encodings
        ]

    def _run(self, encode: Callable[[list[str]], list[Any]], texts: list[str]) -> list[Any]:
        try:
            with tokenizer_errors(self.name):
                try:
                    return encode(texts)
                except TypeError as error:
                    broken = next(
                        (text for text in texts if any("\ud800" <= letter <= "\udfff" for letter in text)), ""
                    )
                    raise CorpusError(
                        f"the text {broken[:60]!a} is not valid Unicode (it contains a lone surrogate). "
                        "Fix: use the right encoding."
                    ) from error
        except ModelError as error:
            if len(texts) > 1:  # the library does not name the text
                for text in texts:
                    self._run(encode, [text])
                raise
            beginning = ascii(texts[0][:60])[1:-1] + ("..." if len(texts[0]) > 60 else "")
            fix = "Fix: leave out the text, or choose another model."
            raise ModelError(f'{error} The text begins "{beginning}". {fix}') from error


def tokenizer_errors(name: str) -> AbstractContextManager[None]:
    """Turn any error of a tokenizer into a ModelError that begins with `name`."""
    return library_errors(lambda error: f"{name}: the tokenizer failed: {first_line(error)}.")


def _flat(rows: list[list[int]], total: int) -> Int32Array:
    try:
        return np.fromiter(chain.from_iterable(rows), np.int32, total)
    except OverflowError as error:
        raise ModelError(f"the tokenizer returns token {max(map(max, rows)):,}, which no model has.") from error


def open_model_tokenizer(spec: EncoderSpec) -> TextTokenizer:
    """Return the tokenizer of a model with layers; a fast tokenizer comes from the cache, without transformers.

    A Python tokenizer is loaded by transformers each time. Raises as `load_tokenizer`.
    """
    from tokenizers import Tokenizer

    identity, root = spec.identity, spec.files.root
    key = {
        "rules": _RULES,
        "tokenizer": identity.tokenizer,
        "config": identity.config,
        "lowercase": identity.lowercase,
        "versions": {name: version_of(name) for name in ("tokenizers", "transformers")},
    }

    def make(folder: Path) -> None:
        loaded, kept = load_tokenizer(root, identity.max_length, identity.lowercase), ""
        if isinstance(loaded.run, FastTokenizer):
            kept = json.dumps({"facts": asdict(loaded.facts), "tokenizer": loaded.run.tokenizer.to_str()})
        (folder / _FILE).write_text(kept, encoding="utf-8")

    path = cached_folder("tokenizers", key, make) / _FILE
    if not path.stat().st_size:
        return load_tokenizer(root, identity.max_length, identity.lowercase)
    kept = read_cached(path, KeptTokenizer)
    with tokenizer_errors(str(root)):
        run = FastTokenizer(Tokenizer.from_str(kept.tokenizer), kept.facts.types == "given", str(root))
    return TextTokenizer(run, kept.facts, identity.max_length)


def load_tokenizer(folder: Path, max_length: int, lowercase: bool) -> TextTokenizer:
    """Load the tokenizer in `folder`; `lowercase` adds lower-casing before its own normaliser.

    Fast tokenizers run in Rust. Raises ModelError, and ConfigError for a `max_length` that leaves no room between the
    special tokens.
    """
    if (folder / "tokenizer.json").exists():
        read_tokenizer(folder / "tokenizer.json")
    with as_model_errors(folder, "the tokenizer"):
        from transformers import AutoTokenizer

        with quiet_transformers():
            tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        if not tokenizer.is_fast:
            _require_own_files(folder, tokenizer, lowercase)
            return TextTokenizer(_PythonTokenizer(tokenizer, str(folder)), _facts(tokenizer), max_length)
        backend = tokenizer.backend_tokenizer
        backend.no_truncation()
        backend.no_padding()
        if lowercase:  # before the tokenizer's own normaliser, as with sentence-transformers' do_lower_case
            from tokenizers.normalizers import Lowercase
            from tokenizers.normalizers import Sequence as Chain

            given = backend.normalizer
            backend.normalizer = Chain([Lowercase()] if given is None else [Lowercase(), given])
        facts = _facts(tokenizer)
    return TextTokenizer(FastTokenizer(backend, facts.types == "given", str(folder)), facts, max_length)


@dataclass(frozen=True)
class _PythonTokenizer:
    """The `run` of a Python tokenizer, with a lock because such tokenizers are not thread-safe."""

    tokenizer: Any
    name: str
    _lock: Any = field(default_factory=Lock)

    def __call__(self, texts: list[str]) -> Encoded:
        with tokenizer_errors(self.name), self._lock:
            encoded = self.tokenizer(texts, verbose=False)
        return encoded["input_ids"], encoded.get("token_type_ids")


def _require_own_files(folder: Path, tokenizer: Any, lowercase: bool) -> None:
    reads_vocabulary = read_config(folder / "config.json").model_type in PYTHON_TOKENIZED
    if (folder / "tokenizer.json").is_file() and not reads_vocabulary:
        raise ModelError(
            f"{folder}: has a tokenizer.json, but {type(tokenizer).__name__} reads other files. Fix: remove "
            "tokenizer.json."
        )
    if lowercase:
        raise ModelError(f"{folder}: sets do_lower_case, which is not supported for a Python tokenizer.")


def _facts(tokenizer: Any) -> TokenizerInfo:
    probe = tokenizer(_PROBE, verbose=False)
    head, tail = _special_tokens(tokenizer, probe["input_ids"])
    types = probe.get("token_type_ids")
    return TokenizerInfo(
        head,
        tail,
        from_left=getattr(tokenizer, "truncation_side", "right") == "left",
        padding=_first_id(tokenizer, ("pad", "eos", "sep", "unk")),
        stand_in=_first_id(tokenizer, ("eos", "sep", "cls", "unk", "pad")),
        types="none" if types is None else "given" if any(types) else "zero",
    )


def _special_tokens(tokenizer: Any, encoded: list[int]) -> tuple[int, int]:
    """Return how many special tokens open and close every text, given the ids of a probe text."""
    bare = tokenizer(_PROBE, add_special_tokens=False, verbose=False)["input_ids"]
    for head in range(len(encoded) - len(bare) + 1):
        if encoded[head : head + len(bare)] == bare:
            return head, len(encoded) - len(bare) - head
    raise ModelError(f"{type(tokenizer).__name__}: special tokens change the tokens of a text; this is not supported.")


def _first_id(tokenizer: Any, names: Sequence[str]) -> int:
    ids = (getattr(tokenizer, f"{name}_token_id", None) for name in names)
    return next((int(token) for token in ids if token is not None), 0)
