"""A static table: a row for each word or token, and the tokenizer that finds them in a text.

Tables of words come from a file of word vectors. It is read once, and what was read is kept in the cache: the rows as
plain float32, which are mapped, the tokenizer, and a few facts.

Tables of a tokenizer's tokens are folders of model2vec and of sentence-transformers' StaticEmbedding:

    row of token t = embeddings[mapping[t]] * weights[t]

`mapping` and `weights` are there where a newer model2vec wrote them. Both libraries average the rows of a text's tokens
without the special ones ([CLS], [SEP]). model2vec leaves its unknown token out of that mean; sentence-transformers has
a row for it like any other, so there it counts.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from indexer.arrays import Float32Array
from indexer.encoders.static.word_tokenizer import is_uncased, normalise_word, word_tokenizer
from indexer.encoders.static.word_vectors import read_word_vectors
from indexer.errors import MachineError, ModelError
from indexer.models.hub import is_failure
from indexer.models.identity import UNLIMITED
from indexer.models.model_files import TableFiles, file_sha256, find_table_files
from indexer.models.model_json import TokenizerModel, read_json, read_tokenizer
from indexer.models.tokenizer import FastTokenizer, TextTokenizer, TokenizerInfo, tokenizer_errors
from indexer.system.cache import cached_folder, read_cached
from indexer.system.safetensors_file import SafetensorsFile

RULES = 1  # bump when the same file would give another table of words
_ROWS, _TOKENIZER, _FACTS = "rows.f32", "tokenizer.json", "facts.json"  # of a table of words in the cache
_EMBEDDINGS = ("embeddings", "embedding.weight")  # of model2vec, of sentence-transformers
_BLOCK_ROWS = 1 << 16


@dataclass(frozen=True)
class EmbeddingTable:
    """Row i of `vectors` is that of token i. The rows may be mapped from a file, and are then not writable."""

    vectors: Float32Array  # (vocabulary, d)
    tokenizer: str  # JSON of a `tokenizers.Tokenizer` without truncation, padding and special tokens
    unknown: int  # the token for what is not in the table, left out of a mean; -1: none. It need not have a row
    words: bool  # rows are those of whole words; else of a tokenizer's tokens
    lowercase: bool = False  # texts are lower-cased, because the table's words are
    notes: tuple[str, ...] = ()  # what was passed over or repaired, in words

    @property
    def dim(self) -> int:
        """Vector size d."""
        return int(self.vectors.shape[1])

    def row_of(self, word: str) -> int | None:
        """The row of a word; None for one that has none.

        In a table of words it is looked up as it is, in the form `word_tokenizer.normalise_word` gives and lower-cased
        where texts are: "new york" or "U.S." are found if they are rows. In a table of tokens it has a row if it is
        one token.
        """
        with tokenizer_errors(f'the word "{word[:60]}"'):
            if self.words:
                found = self._cutter.token_to_id(self._cutter.normalizer.normalize_str(word))
                ids = [] if found is None else [found]
            else:
                ids = self._cutter.encode(word, add_special_tokens=False).ids
        return int(ids[0]) if len(ids) == 1 and ids[0] != self.unknown else None

    @cached_property
    def _cutter(self) -> Tokenizer:
        return Tokenizer.from_str(self.tokenizer)


def load_table(path: Path) -> EmbeddingTable:
    """The table of a file or folder. A word file is read once and kept in the cache (`indexer.system.cache`).

    Raises ModelError for what is no table or a damaged one, MachineError where the cache is full.
    """
    files = find_table_files(path)
    return load_word_table(path) if files.kind == "words" else load_token_table(files)


def table_tokenizer(table: EmbeddingTable, name: str) -> TextTokenizer:
    """The tokenizer of a table; it adds no special tokens and does not cut. `name` is for errors."""
    facts = TokenizerInfo(0, 0, from_left=False, padding=0, stand_in=table.unknown, types="none")
    with tokenizer_errors(name):
        tokenizer = Tokenizer.from_str(table.tokenizer)
    return TextTokenizer(FastTokenizer(tokenizer, types=False, name=name), facts, UNLIMITED)


def load_token_table(files: TableFiles) -> EmbeddingTable:
    """The table of a folder. Raises ModelError for files that are damaged or do not belong together."""
    weights, tokenizer = files.root / files.weights[0], files.root / files.tokenizer[0]
    vectors, stated, settings = _rows(weights), read_tokenizer(tokenizer), _plain(tokenizer)
    tokens = _parsed(tokenizer, settings).get_vocab()
    most = max(tokens.values(), default=-1)
    if most >= len(vectors):
        raise ModelError(
            f"{weights}: holds rows for {len(vectors):,} tokens, but {tokenizer.name} has ids up to {most:,}; the "
            "tokenizer does not belong to the table."
        )
    _require_finite(weights, vectors)
    unknown = _unknown(tokenizer, stated.model, tokens) if files.kind == "model2vec" else -1
    return EmbeddingTable(vectors, json.dumps(settings), unknown, words=False)


def _plain(path: Path) -> dict[str, Any]:
    """A tokenizer.json without truncation, padding and what adds special tokens, whose ids need not have rows."""
    return read_json(path, dict[str, Any]) | {"truncation": None, "padding": None, "post_processor": None}


def _parsed(path: Path, settings: dict[str, Any]) -> Tokenizer:
    try:
        return Tokenizer.from_str(json.dumps(settings))
    except BaseException as error:
        if not is_failure(error):
            raise
        raise ModelError(f"{path}: cannot be read as a tokenizer: {error}.") from error


def _unknown(path: Path, named: TokenizerModel, tokens: dict[str, int]) -> int:
    """The id of the unknown token; -1 for none."""
    number = named.unk_id if named.unk_token is None else tokens.get(named.unk_token)
    if number is None:
        return -1
    if not 0 <= number <= max(tokens.values(), default=-1):
        raise ModelError(f"{path}: unk_id is {number:,}; expected the id of a token.")
    return number


def _rows(path: Path) -> Float32Array:
    """A row for each token, float32 (tokens, d)."""
    tensors = SafetensorsFile(path)
    name = next((name for name in _EMBEDDINGS if name in tensors), "")
    if not name:
        found = ", ".join(tensors.names) or "nothing"
        raise ModelError(f"{path}: holds {found}; expected a tensor called {' or '.join(_EMBEDDINGS)}.")
    rows = tensors.floats(name)
    if rows.ndim != 2 or not rows.size:
        raise ModelError(f'{path}: the tensor "{name}" has the shape {rows.shape}; expected (tokens, dimensions).')
    if "mapping" in tensors:
        rows = rows[_mapping(tensors, len(rows))]
    if "weights" in tensors:
        rows = rows * _weights(tensors, len(rows))[:, None]
    return rows


def _mapping(tensors: SafetensorsFile, rows: int) -> npt.NDArray[np.int64]:
    mapping = tensors.integers("mapping")
    if mapping.ndim != 1 or not mapping.size:
        raise ModelError(f'{tensors.path}: "mapping" has the shape {mapping.shape}; expected (tokens,).')
    if mapping.min() < 0 or mapping.max() >= rows:
        raise ModelError(
            f'{tensors.path}: "mapping" has rows from {mapping.min()} to {mapping.max()}, but there are {rows:,}.'
        )
    return mapping


def _weights(tensors: SafetensorsFile, rows: int) -> Float32Array:
    weights = tensors.floats("weights")
    if weights.shape != (rows,):
        raise ModelError(f'{tensors.path}: "weights" has the shape {weights.shape}; expected one for each of {rows:,}.')
    return weights


def _require_finite(path: Path, vectors: Float32Array) -> None:
    for start in range(0, len(vectors), _BLOCK_ROWS):
        finite = np.isfinite(vectors[start : start + _BLOCK_ROWS]).all(axis=1)
        if not finite.all():
            raise ModelError(f"{path}: the row of token {start + int(finite.argmin()):,} is not finite.")


@dataclass(frozen=True)
class _Facts:
    shape: tuple[int, int]
    unknown: int
    lowercase: bool
    notes: list[str]


def load_word_table(path: Path) -> EmbeddingTable:
    """The table of a file of word vectors; its unknown token is the one after the last row.

    Of words written alike the first counts. Raises ModelError for a file that is no such table or a damaged one,
    MachineError where the cache is full.
    """
    folder = cached_folder("tables", {"rules": RULES, "file": file_sha256(path)}, lambda folder: _make(path, folder))
    facts = read_cached(folder / _FACTS, _Facts)
    rows, dim = facts.shape
    size = (folder / _ROWS).stat().st_size
    if min(rows, dim) < 1 or 4 * rows * dim != size or facts.unknown != rows:
        raise ModelError(f"{folder}: {_ROWS} has {size:,} bytes, {_FACTS} says {facts}. Delete that folder.")
    vectors = np.asarray(np.memmap(folder / _ROWS, "<f4", "r", shape=facts.shape))
    tokenizer = (folder / _TOKENIZER).read_text(encoding="utf-8")
    return EmbeddingTable(vectors, tokenizer, facts.unknown, True, facts.lowercase, tuple(facts.notes))


def _make(path: Path, folder: Path) -> None:
    try:
        vocabulary, dim = _write_rows(path, folder / _ROWS)
        lowercase, upper = is_uncased(vocabulary.rows)
        tokenizer, unknown = word_tokenizer(vocabulary.rows, lowercase)
        (folder / _TOKENIZER).write_text(tokenizer, encoding="utf-8")
        notes = vocabulary.notes() + _stray_note(upper if lowercase else 0)
        facts = _Facts((len(vocabulary.rows), dim), unknown, lowercase, notes)
        (folder / _FACTS).write_text(json.dumps(asdict(facts)), encoding="utf-8")
    except OSError as error:  # the word file's own faults are ModelErrors
        raise MachineError(
            f"{folder.parent}: the table of {path.name} cannot be kept there: {error.strerror or error}. Name another "
            "folder with the environment variable ISOTROPE_CACHE."
        ) from error


def _write_rows(path: Path, target: Path) -> tuple["_Vocabulary", int]:
    vocabulary, dim = _Vocabulary(), 0
    with target.open("wb") as file:
        for words, vectors in read_word_vectors(path):
            dim = vectors.shape[1]
            file.write(vectors[vocabulary.add(words)].astype("<f4", copy=False).data)
    return vocabulary, dim


class _Vocabulary:
    """Words met so far and the row of each, `rows`."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        self._repeated = self._broken = 0

    def add(self, words: Iterable[bytes]) -> list[int]:
        """Positions of those that are new."""
        new = []
        for position, raw in enumerate(words):
            word = normalise_word(self._decoded(raw))
            if word in self.rows:
                self._repeated += 1
            else:
                self.rows[word] = len(self.rows)
                new.append(position)
        return new

    def notes(self) -> list[str]:
        """What was passed over or repaired."""
        notes, total = [], f"{len(self.rows) + self._repeated:,} words"
        if self._repeated:
            notes.append(f"{self._repeated:,} of {total} are written as one before them; the first counts")
        if self._broken:
            notes.append(f"{self._broken:,} of {total} are not UTF-8; bytes that are none are read as U+FFFD")
        return notes

    def _decoded(self, raw: bytes) -> str:
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            self._broken += 1
            return raw.decode("utf-8", "replace")


def _stray_note(upper: int) -> list[str]:
    if not upper:
        return []
    return [f"texts are lower-cased as nearly all words are; {upper:,} with an upper-case letter are never found"]
