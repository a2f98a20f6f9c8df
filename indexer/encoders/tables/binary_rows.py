"""The rows of word2vec's binary form."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from indexer.encoders.tables.text_rows import named
from indexer.errors import ModelError

_LONGEST_WORD = 1 << 16  # bytes; beyond it what is read is no word


def binary_rows(
    path: Path, blocks: Iterable[bytes], dim: int, stated: int
) -> Iterator[tuple[list[bytes], npt.NDArray[np.float32]]]:
    """Words and vectors (n, dim), float32, block by block. Raises ModelError as `word_files.read_rows` does."""
    found, rest = 0, b""
    for block in blocks:
        rest += block
        words, vectors, end = _records(rest, dim, stated - found)
        rest = rest[end:]
        _require_finite(path, words, vectors, found)
        found += len(words)
        if found == stated and rest.strip(b"\r\n"):
            raise ModelError(f"{path}: goes on after the {stated:,} words of {dim} dimensions its first line says.")
        if found < stated and not words and len(rest) > _LONGEST_WORD + 4 * dim:
            raise ModelError(f"{path}: no word ends where word {found + 1:,} should; it is damaged. Fetch it again.")
        yield words, vectors
    if found < stated:
        raise ModelError(
            f"{path}: ends within word {found + 1:,}, where its first line says {stated:,} words of {dim} dimensions; "
            "it is cut short. Fetch it again."
        )


def _records(data: bytes, dim: int, most: int) -> tuple[list[bytes], npt.NDArray[np.float32], int]:
    """The whole words and vectors that `data` begins with, and where they end."""
    words: list[bytes] = []
    numbers: list[bytes] = []
    at, size = 0, 4 * dim
    while len(words) < most:
        space = data.find(b" ", at, at + _LONGEST_WORD)
        end = space + 1 + size
        if space < 0 or end > len(data):
            break
        words.append(data[at:space].lstrip(b"\n"))
        numbers.append(data[space + 1 : end])
        at = end
    return words, np.frombuffer(b"".join(numbers), "<f4").reshape(-1, dim), at


def _require_finite(path: Path, words: list[bytes], vectors: npt.NDArray[np.float32], before: int) -> None:
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        row = int(finite.argmin())
        raise ModelError(f'{path}: the vector of word {before + row + 1:,}, "{named(words[row])}", is not finite.')
