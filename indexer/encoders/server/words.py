"""Texts as words, because a server does not tell its tokens.

A piece is a punctuation mark, a Chinese, Japanese or Korean character, or at most `PIECE` characters of a word. Texts
are cut into windows by pieces, and the number of pieces is the estimate of a text's tokens: see
docs/how-to/embedding-servers.md for its error.
"""

import itertools
import re
from collections.abc import Sequence

import numpy as np

from indexer.encoders.windows import TokenOffsets
from indexer.errors import CorpusError
from indexer.models.encoder_spec import Tokens
from indexer.models.tokenizer import TokenizerInfo

PIECE = 6  # characters
_IDEOGRAPHS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
_WORD = re.compile(rf"[{_IDEOGRAPHS}]|[^\W{_IDEOGRAPHS}]+|[^\w\s]")


class WordTokenizer:
    """The tokenizer of a server: ids are the bytes of a text in UTF-8, lengths are estimates of its tokens."""

    facts = TokenizerInfo(head=0, tail=0, from_left=False, padding=0, stand_in=0, types="none")

    def __call__(self, texts: Sequence[str]) -> Tokens:
        """Return whole texts. Raises CorpusError for a text that is not valid Unicode."""
        encoded = [_utf8(text) for text in texts]
        starts = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
        ids = np.frombuffer(b"".join(encoded), np.uint8).astype(np.int32)
        return Tokens(ids, None, starts, np.fromiter(map(count_pieces, texts), np.int32, len(encoded)))

    def offsets(self, texts: Sequence[str]) -> list[TokenOffsets]:
        """Return the first character of each piece, and the number of its word."""
        return [_offsets(text) for text in texts]


def count_pieces(text: str) -> int:
    """Return the number of pieces of a text, at least 1: 0 would mean that the encoder knows no token."""
    return max(1, sum(-(-len(word) // PIECE) for word in _WORD.findall(text)))


def texts_of(tokens: Tokens) -> list[str]:
    """Return the texts of `WordTokenizer`'s tokens."""
    data, starts = tokens.ids.astype(np.uint8).tobytes(), tokens.starts.tolist()
    return [data[start:stop].decode() for start, stop in itertools.pairwise(starts)]


def _offsets(text: str) -> TokenOffsets:
    starts, words = list[int](), list[int]()
    for number, word in enumerate(_WORD.finditer(text)):
        pieces = range(word.start(), word.end(), PIECE)
        starts += pieces
        words += [number] * len(pieces)
    return TokenOffsets(np.array(starts, np.int32), np.array(words, np.int32))


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise CorpusError(
            f"the text {text[:60]!a} is not valid Unicode (it contains a lone surrogate). Fix: use the right encoding."
        ) from error
