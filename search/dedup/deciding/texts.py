"""Texts that are the same after normalisation are given one number."""

import hashlib
import unicodedata
from collections.abc import Iterable

import numpy as np

from search.dedup.deciding.distinct import DIGEST_BYTES, as_digests, number_equal
from search.dedup.pairs import Rows


def number_texts(texts: Iterable[str]) -> Rows:
    """Number the texts, equal ones after normalisation alike, (documents,).

    Numbers are dense, in the order in which the texts first occur; -1 stands for a blank text, which equals nothing.
    Holds 16 bytes a text, no text itself.
    """
    digests, blank = bytearray(), bytearray()
    for text in texts:
        normalised = normalised_text(text)
        digests += _digest(normalised)
        blank.append(not normalised)
    written = ~np.frombuffer(blank, bool)
    numbers = np.full(len(written), -1, np.int64)
    numbers[written] = number_equal(as_digests(digests)[written]).number_of
    return numbers


def normalised_text(text: str) -> str:
    """The text in Unicode's form NFKC, every run of white space one space, none at the ends. Case stays."""
    # Folded last: NFKC makes spaces of other characters.
    return " ".join(unicodedata.normalize("NFKC", text).split())


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()
