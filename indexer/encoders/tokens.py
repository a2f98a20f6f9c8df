"""Text to token ids: Hugging Face tokenizers, read from a local folder, truncated by us.

A tokenizer's own truncation hides how long a text was, and tokenizer.json files carry truncation and padding
of their own (all-MiniLM-L6-v2: 128 tokens). Both are switched off; `Tokens.ids` are cut afterwards, keeping
the closing special tokens, which gives what `AutoTokenizer(text, truncation=True, max_length=m)` gives.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from indexer.encoders.loading import load_errors_as_model_errors, quiet_transformers
from indexer.encoders.model_files import PYTHON_TOKENIZED, read_json
from indexer.errors import ConfigError, CorpusError, ModelError

_PROBE = "a"


@dataclass(frozen=True)
class Tokens:
    """Token ids of some texts, cut at the maximum length."""

    ids: list[list[int]]
    types: list[list[int]] | None  # token_type_ids, where the tokenizer has them
    lengths: list[int]  # before the cut, special tokens included
    truncated: int  # texts that were cut


class TextTokenizer:
    """A loaded tokenizer. Fast ones run in Rust (`encode_batch_fast`), Python ones by the normal call."""

    def __init__(self, folder: Path, max_length: int, lowercase: bool) -> None:
        self._tokenizer = _load(folder)
        self._max_length = max_length
        self._fast = bool(self._tokenizer.is_fast)
        if self._fast:
            backend = self._tokenizer.backend_tokenizer
            backend.no_truncation()
            backend.no_padding()
        elif (folder / "tokenizer.json").is_file() and not _reads_vocabulary(folder):
            raise ModelError(
                f"{folder}: tokenizer.json is there, but {type(self._tokenizer).__name__} reads other files; "
                "remove tokenizer.json."
            )
        if lowercase:
            self._lowercase(folder)
        probe = self._tokenizer(_PROBE, verbose=False)
        self.has_types = "token_type_ids" in probe
        self._head, self._tail = _special_tokens(self._tokenizer, probe["input_ids"])
        if max_length <= self._head + self._tail:
            raise ConfigError(
                f"encoder.max_length is {max_length}, but {self._head + self._tail} tokens are special ones; "
                f"expected at least {self._head + self._tail + 1}."
            )
        self._from_left = getattr(self._tokenizer, "truncation_side", "right") == "left"
        self.padding = _first_id(self._tokenizer, ("pad", "eos", "sep", "unk"))
        self._stand_in = _first_id(self._tokenizer, ("eos", "sep", "cls", "unk", "pad"))

    def __call__(self, texts: Sequence[str]) -> Tokens:
        """Token ids for each text. A text without any token gets one (end of text, or what stands for it).

        Raises CorpusError for a text that is not valid Unicode (a lone surrogate).
        """
        ids, types = self._encode(list(texts))
        lengths = [len(row) for row in ids]
        ids = [self._cut(row) if row else [self._stand_in] for row in ids]
        if types is not None:
            types = [self._cut(row) if row else [0] for row in types]
        return Tokens(ids, types, lengths, sum(length > self._max_length for length in lengths))

    def _encode(self, texts: list[str]) -> tuple[list[list[int]], list[list[int]] | None]:
        if self._fast:
            try:
                encodings = self._tokenizer.backend_tokenizer.encode_batch_fast(texts)
            except TypeError as error:
                raise CorpusError(_not_unicode(texts)) from error
            types = [encoding.type_ids for encoding in encodings] if self.has_types else None
            return [encoding.ids for encoding in encodings], types
        encoded = self._tokenizer(texts, verbose=False)
        return encoded["input_ids"], encoded["token_type_ids"] if self.has_types else None

    def _cut(self, row: list[int]) -> list[int]:
        """The first tokens (the last, where the tokenizer truncates on the left) between the special ones."""
        if len(row) <= self._max_length:
            return row
        if self._from_left:
            return row[: self._head] + row[len(row) - self._max_length + self._head :]
        return row[: self._max_length - self._tail] + row[len(row) - self._tail :]

    def _lowercase(self, folder: Path) -> None:
        """Lower-case before the tokenizer's own normaliser, as sentence-transformers' do_lower_case does."""
        from tokenizers.normalizers import Lowercase
        from tokenizers.normalizers import Sequence as Chain

        if not self._fast:
            raise ModelError(f"{folder}: asks for do_lower_case, which a Python tokenizer does not take here.")
        backend = self._tokenizer.backend_tokenizer
        own = [] if backend.normalizer is None else [backend.normalizer]
        backend.normalizer = Chain([Lowercase(), *own])


def _load(folder: Path) -> Any:
    from transformers import AutoTokenizer

    with load_errors_as_model_errors(folder, "the tokenizer"), quiet_transformers():
        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)


def _reads_vocabulary(folder: Path) -> bool:
    """Whether the vocabulary files are part of the encoder's identity, so that a Python tokenizer may read them."""
    return read_json(folder / "config.json").get("model_type") in PYTHON_TOKENIZED


def _special_tokens(tokenizer: Any, encoded: list[int]) -> tuple[int, int]:
    """How many special tokens open and close every text, given the ids of a probe text."""
    bare = tokenizer(_PROBE, add_special_tokens=False, verbose=False)["input_ids"]
    for head in range(len(encoded) - len(bare) + 1):
        if encoded[head : head + len(bare)] == bare:
            return head, len(encoded) - len(bare) - head
    raise ModelError(f"{type(tokenizer).__name__}: its special tokens change the text's own; this is not supported.")


def _not_unicode(texts: list[str]) -> str:
    broken = next((text for text in texts if any("\ud800" <= character <= "\udfff" for character in text)), "")
    shown = ascii(broken[:60])
    return f"the text {shown} is not valid Unicode (it holds a lone surrogate); decode it with the right encoding."


def _first_id(tokenizer: Any, names: Sequence[str]) -> int:
    """Id of the first of the named special tokens that the tokenizer has; else 0."""
    found = (getattr(tokenizer, f"{name}_token_id", None) for name in names)
    return next((int(token) for token in found if token is not None), 0)
