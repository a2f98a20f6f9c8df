"""A static table: a row for each word or token, and the tokenizer that finds them in a text.

A table of words comes from a file of word vectors. The file is read once; the cache then stores the rows as plain
float32, which are mapped, the tokenizer, and a few facts.

A table of a tokenizer's tokens is a folder of model2vec or of sentence-transformers' StaticEmbedding:

    row of token t = embeddings[mapping[t]] * weights[t]

Newer versions of model2vec write `mapping` and `weights`. Both libraries average the rows of a text's tokens without
special tokens ([CLS], [SEP]). model2vec leaves its unknown token out of the mean; in sentence-transformers the unknown
token has an ordinary row and counts.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
import numpy as np
from tokenizers import Tokenizer

from indexer.arrays import Float32Array
from indexer.encoders.static.word_tokenizer import is_uncased, normalise_word, word_tokenizer
from indexer.errors import MachineError, ModelError
from indexer.models.hub import library_errors
from indexer.models.identity import UNLIMITED
from indexer.models.model_files import TableFiles, file_sha256, find_table_files
from indexer.models.model_json import TokenizerModel, read_json, read_tokenizer
from indexer.models.tokenizer import FastTokenizer, TextTokenizer, TokenizerInfo, tokenizer_errors
from indexer.system.cache import cached_folder, read_cached
from indexer.system.safetensors_file import SafetensorsFile

RULES = 1  # bump when the same file would give another table of words
_ROWS, _TOKENIZER, _FACTS = "rows.f32", "tokenizer.json", "facts.json"  # of a table of words in the cache
_EMBEDDINGS = ("embeddings", "embedding.weight")  # names in model2vec and sentence-transformers
_BLOCK_ROWS = 1 << 16


@dataclass(frozen=True)
class EmbeddingTable:
    """A table whose row i of `vectors` belongs to token i. Rows mapped from a file are read-only."""

    vectors: Float32Array  # (vocabulary, d)
    tokenizer: Tokenizer  # without truncation, padding and special tokens
    unknown: int  # the unknown token, left out of a mean; -1: none. It may have no row
    words: bool  # rows belong to whole words; else to a tokenizer's tokens
    lowercase: bool = False  # texts are lower-cased, because the table's words are
    notes: tuple[str, ...] = ()  # sentences about skipped or repaired words

    @property
    def dim(self) -> int:
        """Vector size d."""
        return int(self.vectors.shape[1])

    def row_of(self, word: str) -> int | None:
        """Return the row of a word, or None.

        In a table of words the whole word is looked up, normalised by `word_tokenizer.normalise_word` and lower-cased
        if texts are: "new york" or "U.S." can be rows. In a table of tokens a word has a row if it is a single token.
        """
        with tokenizer_errors(f'the word "{word[:60]}"'):
            if self.words:
                row = self.tokenizer.token_to_id(self.tokenizer.normalizer.normalize_str(word))
                return None if row == self.unknown else row
            ids = self.tokenizer.encode(word, add_special_tokens=False).ids
        return int(ids[0]) if len(ids) == 1 and ids[0] != self.unknown else None


def load_table(path: Path) -> EmbeddingTable:
    """Load the table of a file or folder. A word file is read once and then cached (`indexer.system.cache`).

    Raises ModelError for a file that is no table or damaged, MachineError if the cache is full.
    """
    files = find_table_files(path)
    return load_word_table(path) if files.kind == "words" else load_token_table(files)


def table_tokenizer(table: EmbeddingTable, name: str) -> TextTokenizer:
    """Return the tokenizer of a table, without special tokens and truncation. `name` begins its errors."""
    facts = TokenizerInfo(0, 0, from_left=False, padding=0, stand_in=table.unknown, types="none")
    return TextTokenizer(FastTokenizer(table.tokenizer, types=False, name=name), facts, UNLIMITED)


def load_token_table(files: TableFiles) -> EmbeddingTable:
    """Load the table of a folder. Raises ModelError for files that are damaged or do not belong together."""
    weights, path = files.root / files.weights[0], files.root / files.tokenizer[0]
    vectors, stated = _rows(weights), read_tokenizer(path)
    # Without the post-processor, which adds special tokens, whose ids may have no rows.
    without = dict.fromkeys(("truncation", "padding", "post_processor"), msgspec.Raw(b"null"))
    tokenizer = _parsed(path, msgspec.json.encode(read_json(path, dict[str, msgspec.Raw]) | without))
    tokens = tokenizer.get_vocab()
    most = max(tokens.values(), default=-1)
    if most >= len(vectors):
        raise ModelError(
            f"{weights}: has rows for {len(vectors):,} tokens, but {path.name} has ids up to {most:,}. The tokenizer "
            "does not belong to the table."
        )
    _require_finite(weights, vectors)
    unknown = _unknown(path, stated.model, tokens) if files.kind == "model2vec" else -1
    return EmbeddingTable(vectors, tokenizer, unknown, words=False)


def _parsed(path: Path, data: bytes) -> Tokenizer:
    with library_errors(lambda error: f"{path}: cannot be read as a tokenizer: {error}."):
        return Tokenizer.from_buffer(data)


def _unknown(path: Path, model: TokenizerModel, tokens: dict[str, int]) -> int:
    """Return the id of the unknown token; -1 for none."""
    number = model.unk_id if model.unk_token is None else tokens.get(model.unk_token)
    if number is None:
        return -1
    if not 0 <= number <= max(tokens.values(), default=-1):
        raise ModelError(f"{path}: unk_id is {number:,}; expected the id of a token.")
    return number


def _rows(path: Path) -> Float32Array:
    """Return a row for each token, float32 (tokens, d)."""
    tensors = SafetensorsFile(path)
    name = next((name for name in _EMBEDDINGS if name in tensors), "")
    if not name:
        names = ", ".join(tensors.names) or "nothing"
        raise ModelError(f"{path}: contains {names}; expected a tensor named {' or '.join(_EMBEDDINGS)}.")
    rows = tensors.floats(name)
    if rows.ndim != 2 or not rows.size:
        raise ModelError(f'{path}: the tensor "{name}" has the shape {rows.shape}; expected (tokens, dimensions).')
    if "mapping" in tensors:
        mapping = tensors.integers("mapping")
        if mapping.ndim != 1 or not mapping.size:
            raise ModelError(f'{path}: "mapping" has the shape {mapping.shape}; expected (tokens,).')
        if mapping.min() < 0 or mapping.max() >= len(rows):
            raise ModelError(
                f'{path}: "mapping" has rows from {mapping.min()} to {mapping.max()}, but there are {len(rows):,} rows.'
            )
        rows = rows[mapping]
    if "weights" in tensors:
        weights = tensors.floats("weights")
        if weights.shape != (len(rows),):
            raise ModelError(
                f'{path}: "weights" has the shape {weights.shape}; expected one weight for each of {len(rows):,} rows.'
            )
        rows = rows * weights[:, None]
    return rows


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
    """Load the table of a file of word vectors; the id of its unknown token follows the last row.

    The first of several identical words counts. Raises ModelError for a file that is no such table or damaged,
    MachineError if the cache is full.
    """
    folder = cached_folder("tables", {"rules": RULES, "file": file_sha256(path)}, lambda folder: _make(path, folder))
    facts = read_cached(folder / _FACTS, _Facts)
    rows, dim = facts.shape
    size = (folder / _ROWS).stat().st_size
    if min(rows, dim) < 1 or 4 * rows * dim != size or facts.unknown != rows:
        raise ModelError(f"{folder}: {_ROWS} has {size:,} bytes, but {_FACTS} states {facts}. Fix: delete the folder.")
    vectors = np.asarray(np.memmap(folder / _ROWS, "<f4", "r", shape=facts.shape))
    tokenizer = _parsed(folder / _TOKENIZER, (folder / _TOKENIZER).read_bytes())
    return EmbeddingTable(vectors, tokenizer, facts.unknown, True, facts.lowercase, tuple(facts.notes))


def _make(path: Path, folder: Path) -> None:
    try:
        vocabulary, dim = _write_rows(path, folder / _ROWS)
        lowercase, upper = is_uncased(vocabulary.rows)
        tokenizer, unknown = word_tokenizer(vocabulary.rows, lowercase)
        (folder / _TOKENIZER).write_text(tokenizer, encoding="utf-8")
        notes = vocabulary.notes()
        if lowercase and upper:
            notes.append(
                f"texts are lower-cased, like nearly all words; words with upper case ({upper:,}) are never found"
            )
        facts = _Facts((len(vocabulary.rows), dim), unknown, lowercase, notes)
        (folder / _FACTS).write_text(json.dumps(asdict(facts)), encoding="utf-8")
    except OSError as error:  # faults of the word file are ModelErrors
        raise MachineError(
            f"{folder.parent}: the table of {path.name} cannot be stored: {error.strerror or error}. Fix: set the "
            "environment variable ISOTROPE_CACHE to another folder."
        ) from error


def _write_rows(path: Path, target: Path) -> tuple["_Vocabulary", int]:
    from indexer.encoders.static.word_vectors import read_word_vectors  # once for each file: its result is cached

    vocabulary, dim = _Vocabulary(), 0
    with target.open("wb") as file:
        for words, vectors in read_word_vectors(path):
            dim = vectors.shape[1]
            file.write(vectors[vocabulary.add(words)].astype("<f4", copy=False).data)
    return vocabulary, dim


class _Vocabulary:
    """The words so far and the row of each, `rows`."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        self._repeated = self._broken = 0

    def add(self, words: Iterable[bytes]) -> list[int]:
        """Add words; return the positions of the new ones."""
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
        notes, total = [], f"{len(self.rows) + self._repeated:,} words"
        if self._repeated:
            notes.append(f"{self._repeated:,} of {total} repeat an earlier word; the first counts")
        if self._broken:
            notes.append(f"{self._broken:,} of {total} are not UTF-8; their invalid bytes are read as U+FFFD")
        return notes

    def _decoded(self, raw: bytes) -> str:
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            self._broken += 1
            return raw.decode("utf-8", "replace")
