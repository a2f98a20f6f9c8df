"""The tokenizer of a table of words.

A text is normalised like the table's words: composed characters (NFC), straight apostrophes, and lower case if the
table has no upper case. A word is a run of letters, marks, digits and underscores; every other character except white
space is a separate token. Apostrophes follow the table:

- in pieces, as in the Penn Treebank ("do" "n't", "he" "'s"), if the table has n't but lacks at least one of the common
  whole contractions: GloVe;
- inside the word ("don't", "o'clock"), if the table has such words: Google's news vectors, fastText;
- else a separate token, like any other character.

Hyphens are always separate tokens: "well-known" is three tokens. So rows with white space or punctuation inside ("new
york", "U.S.", "<unk>") are found by `EmbeddingTable.row_of`, but not in a text. The same holds for numbers in tables
that write "#" for a digit, as Google's news vectors do from two digits on: a text's "1984" has no row there.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Literal

from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import NFC, Lowercase, Replace
from tokenizers.normalizers import Sequence as Chain
from tokenizers.pre_tokenizers import Split

Apostrophes = Literal["pieces", "inside", "alone"]
_SUFFIXES = r"(?i:s|re|ve|ll|d|m)\b"
_WORD: dict[Apostrophes, str] = {
    "pieces": rf"(?i:n't)\b|'{_SUFFIXES}|\w+?(?=(?i:n't)\b)|\w+(?:'(?!{_SUFFIXES})\w+)*",
    "inside": r"\w+(?:'\w+)*",
    "alone": r"\w+",
}
WORD_PATTERNS = {style: rf"{word}|[^\w\s]" for style, word in _WORD.items()}  # none looks across white space
_CONTRACTIONS = ("couldn't", "don't", "haven't", "isn't", "wasn't", "wouldn't")
_INSIDE = re.compile(r"\w'\w")
_STRAY = 1000  # words in lower case per tolerated word in upper case


def normalise_word(word: str) -> str:
    """Return a word in the normalised form of texts, except for its case."""
    if word.isascii():
        return word
    return unicodedata.normalize("NFC", word).replace("\u2019", "'")


def is_uncased(words: Iterable[str]) -> tuple[bool, int]:
    """Return whether a table's words are in lower case, and the number of words with an upper-case letter.

    One stray per thousand words is tolerated, as files of lower-cased words have some: without lower-casing, "The"
    would not be found.
    """
    upper = lower = 0
    for word in words:
        upper += word != word.lower()
        lower += word != word.upper()
    return upper * _STRAY <= lower, upper


def contraction_style(vocabulary: Mapping[str, int]) -> Apostrophes:
    """Return how the table writes apostrophes; see the module."""
    if "n't" in vocabulary and not all(word in vocabulary for word in _CONTRACTIONS):
        return "pieces"
    return "inside" if any("'" in word and _INSIDE.search(word) for word in vocabulary) else "alone"


def word_tokenizer(vocabulary: Mapping[str, int], lowercase: bool) -> tuple[str, int]:
    """Return the tokenizer of a table of words as JSON, and the id of its unknown token, which follows the last row."""
    name = "[UNK]"
    while name in vocabulary:
        name = f"[{name}]"
    tokenizer = Tokenizer(WordLevel({**vocabulary, name: len(vocabulary)}, unk_token=name))
    tokenizer.normalizer = Chain([NFC(), Replace("\u2019", "'"), *([Lowercase()] if lowercase else [])])
    tokenizer.pre_tokenizer = Split(Regex(WORD_PATTERNS[contraction_style(vocabulary)]), "removed", invert=True)
    return tokenizer.to_str(), len(vocabulary)
