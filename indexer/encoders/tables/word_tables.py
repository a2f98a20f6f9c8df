"""Tables of words, from a file of word vectors. It is read once; what was read is kept in the cache.

An entry is three files: the rows as plain float32, which are mapped, the tokenizer, and a few facts.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from indexer.cache import cached_folder, read_cached
from indexer.encoders.model_files import file_sha256
from indexer.encoders.tables.table import Table
from indexer.encoders.tables.word_files import read_rows
from indexer.encoders.tables.word_tokenizer import is_lower_case, word_tokenizer, written
from indexer.errors import MachineError, ModelError

RULES = 1  # bump when the same file would give another table
_ROWS, _TOKENIZER, _FACTS = "rows.f32", "tokenizer.json", "facts.json"


@dataclass(frozen=True)
class _Facts:
    shape: tuple[int, int]
    unknown: int
    lowercase: bool
    notes: list[str]


def load_word_table(path: Path) -> Table:
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
    return Table(vectors, tokenizer, facts.unknown, True, facts.lowercase, tuple(facts.notes))


def _make(path: Path, folder: Path) -> None:
    try:
        vocabulary, dim = _write_rows(path, folder / _ROWS)
        lowercase, upper = is_lower_case(vocabulary.rows)
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
        for words, vectors in read_rows(path):
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
            word = written(self._decoded(raw))
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
