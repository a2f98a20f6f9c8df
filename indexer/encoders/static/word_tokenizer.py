"""How words are found in a text: the tokenizer of a table of words.

A text is brought to the form that the table's words are in: composed characters (NFC), a straight apostrophe for a
typographic one, and lower-cased where the table has no upper case. A word is then a run of letters, marks, digits and
underscores; every other character that is not white space is a token of its own. Apostrophes follow the table's habit:

- in pieces, as the Penn Treebank cuts them ("do" "n't", "he" "'s"), where the table has n't but lacks one of the whole
  contractions that everybody writes: GloVe;
- inside the word ("don't", "o'clock"), where the table has words so written: Google's news vectors, fastText;
- else a token of its own, as any other character.

Hyphens always are: "well-known" is three tokens. So rows with white space or punctuation inside ("new york", "U.S.",
"<unk>") are found by `EmbeddingTable.row_of`, but not in a text. Nor are the numbers of tables that write "#" for a
digit, as Google's news vectors do for numbers of two digits and more: a text's "1984" has no row there.
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
_CONTRACTIONS = ("couldn't", "don't", "haven't", "isn't", "wasn't", "wouldn't")
_INSIDE = re.compile(r"\w'\w")
_STRAY = 1000  # words in lower case to one in upper case that make it a stray


def normalise_word(word: str) -> str:
    """A word in the form that texts are brought to, its case aside."""
    if word.isascii():
        return word
    return unicodedata.normalize("NFC", word).replace("\u2019", "'")


def is_uncased(words: Iterable[str]) -> tuple[bool, int]:
    """Whether a table's words are in lower case, and how many have an upper-case letter all the same.

    Strays are allowed for, one to a thousand words in lower case: files of lower-cased words do have some, and each
    "The" would be lost for the sake of one.
    """
    upper = lower = 0
    for word in words:
        upper += word != word.lower()
        lower += word != word.upper()
    return upper * _STRAY <= lower, upper


def contraction_style(vocabulary: Mapping[str, int]) -> Apostrophes:
    """The table's habit; see the module."""
    if "n't" in vocabulary and not all(word in vocabulary for word in _CONTRACTIONS):
        return "pieces"
    return "inside" if any("'" in word and _INSIDE.search(word) for word in vocabulary) else "alone"


def word_tokenizer(vocabulary: Mapping[str, int], lowercase: bool) -> tuple[str, int]:
    """The tokenizer of a table of words as JSON, and the id of what it does not know: the one after the last."""
    name = "[UNK]"
    while name in vocabulary:
        name = f"[{name}]"
    tokenizer = Tokenizer(WordLevel({**vocabulary, name: len(vocabulary)}, unk_token=name))
    tokenizer.normalizer = Chain([NFC(), Replace("\u2019", "'"), *([Lowercase()] if lowercase else [])])
    tokenizer.pre_tokenizer = Split(Regex(_pattern(contraction_style(vocabulary))), "removed", invert=True)
    return tokenizer.to_str(), len(vocabulary)


def _pattern(style: Apostrophes) -> str:
    return rf"{_WORD[style]}|[^\w\s]"


def is_word_pattern(pattern: str) -> bool:
    """Whether it is one that words are found by here. None of them sees what lies beyond white space."""
    return pattern in map(_pattern, _WORD)
