"""A tokenizer read from a model's folder by transformers, reduced to what `tokens` needs.

`load_tokenizer` is the only place where transformers decides how a text is cut into tokens. What it gives for a
tokenizer in Rust can be kept as text (`dump_tokenizer`) and read back without transformers (`tokens.parse_tokenizer`).
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from indexer.encoders.loading import load_errors_as_model_errors, quiet_transformers
from indexer.encoders.model_files import PYTHON_TOKENIZED
from indexer.encoders.model_json import read_config, read_tokenizer
from indexer.encoders.tokens import Encoded, RustTokenizer, TextTokenizer, TokenizerFacts, tokenizer_errors
from indexer.errors import ModelError

_PROBE = "a"


def load_tokenizer(folder: Path, max_length: int, lowercase: bool) -> TextTokenizer:
    """The tokenizer in `folder`; `lowercase` adds lower-casing before its own normaliser.

    Fast ones run in Rust, Python ones by their normal call. Raises ModelError, and ConfigError for a `max_length`
    that leaves no room between the special tokens.
    """
    if (folder / "tokenizer.json").exists():
        read_tokenizer(folder / "tokenizer.json")
    with load_errors_as_model_errors(folder, "the tokenizer"):
        tokenizer = _load(folder)
        if not tokenizer.is_fast:
            _require_own_files(folder, tokenizer, lowercase)
            return TextTokenizer(_PythonTokenizer(tokenizer, str(folder)), _facts(tokenizer), max_length)
        backend = tokenizer.backend_tokenizer
        backend.no_truncation()
        backend.no_padding()
        if lowercase:
            _lowercase(backend)
        facts = _facts(tokenizer)
    return TextTokenizer(RustTokenizer(backend, facts.types == "given", str(folder)), facts, max_length)


def dump_tokenizer(tokenizer: TextTokenizer) -> str | None:
    """A tokenizer as JSON text for `tokens.parse_tokenizer`; None for one in Python."""
    run = tokenizer.run
    if not isinstance(run, RustTokenizer):
        return None
    return json.dumps({"facts": asdict(tokenizer.facts), "tokenizer": run.tokenizer.to_str()})


@dataclass(frozen=True)
class _PythonTokenizer:
    """The `run` of a tokenizer written in Python, which nobody wrote for several threads."""

    tokenizer: Any
    name: str
    _lock: Any = field(default_factory=Lock)

    def __call__(self, texts: list[str]) -> Encoded:
        with tokenizer_errors(self.name), self._lock:
            encoded = self.tokenizer(texts, verbose=False)
        return encoded["input_ids"], encoded.get("token_type_ids")


def _load(folder: Path) -> Any:
    from transformers import AutoTokenizer

    with quiet_transformers():
        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)


def _require_own_files(folder: Path, tokenizer: Any, lowercase: bool) -> None:
    reads_vocabulary = read_config(folder / "config.json").model_type in PYTHON_TOKENIZED
    if (folder / "tokenizer.json").is_file() and not reads_vocabulary:
        raise ModelError(
            f"{folder}: tokenizer.json is there, but {type(tokenizer).__name__} reads other files; "
            "remove tokenizer.json."
        )
    if lowercase:
        raise ModelError(f"{folder}: asks for do_lower_case, which a Python tokenizer does not take here.")


def _lowercase(backend: Any) -> None:
    """Lower-case before the tokenizer's own normaliser, as sentence-transformers' do_lower_case does."""
    from tokenizers.normalizers import Lowercase
    from tokenizers.normalizers import Sequence as Chain

    own = [] if backend.normalizer is None else [backend.normalizer]
    backend.normalizer = Chain([Lowercase(), *own])


def _facts(tokenizer: Any) -> TokenizerFacts:
    probe = tokenizer(_PROBE, verbose=False)
    head, tail = _special_tokens(tokenizer, probe["input_ids"])
    types = probe.get("token_type_ids")
    return TokenizerFacts(
        head,
        tail,
        from_left=getattr(tokenizer, "truncation_side", "right") == "left",
        padding=_first_id(tokenizer, ("pad", "eos", "sep", "unk")),
        stand_in=_first_id(tokenizer, ("eos", "sep", "cls", "unk", "pad")),
        types="none" if types is None else "given" if any(types) else "zero",
    )


def _special_tokens(tokenizer: Any, encoded: list[int]) -> tuple[int, int]:
    """How many special tokens open and close every text, given the ids of a probe text."""
    bare = tokenizer(_PROBE, add_special_tokens=False, verbose=False)["input_ids"]
    for head in range(len(encoded) - len(bare) + 1):
        if encoded[head : head + len(bare)] == bare:
            return head, len(encoded) - len(bare) - head
    raise ModelError(f"{type(tokenizer).__name__}: its special tokens change the text's own; this is not supported.")


def _first_id(tokenizer: Any, names: Sequence[str]) -> int:
    """Id of the first of the named special tokens that the tokenizer has; else 0."""
    found = (getattr(tokenizer, f"{name}_token_id", None) for name in names)
    return next((int(token) for token in found if token is not None), 0)
