"""A tokenizer with a cache of words returns the same tokens as the tokenizer itself, for any text."""

import json
import sys
import unicodedata
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.models import BPE, WordLevel, WordPiece
from tokenizers.normalizers import NFC, NFD, NFKC, NFKD, BertNormalizer, Lowercase, Replace, StripAccents
from tokenizers.normalizers import Sequence as Chain
from tokenizers.pre_tokenizers import BertPreTokenizer, ByteLevel, Metaspace, Split, Whitespace, WhitespaceSplit

from indexer.encoders.static import word_cache
from indexer.encoders.static.word_cache import WordCachedTokenizer, is_local, remember_words
from indexer.encoders.static.word_tokenizer import word_tokenizer
from indexer.errors import CorpusError
from indexer.models.identity import UNLIMITED
from indexer.models.tokenizer import FastTokenizer, TextTokenizer, TokenizerInfo

LETTERS = "abcdeghijklmnostz0129_éåçßσςжя'\u2019,.!=<-[]≠ǰ漢가"
PIECES = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "the",
    "##re",
    "do",
    "n't",
    "isn",
    "cls",
    *LETTERS,
    *(f"##{one}" for one in LETTERS),
]
WORDS = ["the", "do", "don't", "couldn't", "'s", "it", "o'clock", "a", "s", "é", "'", ",", "[", "]", "cls"]
ADDED = ("[PAD]", "[UNK]", "[CLS]")
# Difficult characters for normalisers, cuts and the NUL: controls, every white space, combining marks, letters whose
# case has another length, parts of added tokens.
CHARACTERS = [
    *map(chr, range(33)), "\x7f", "\x85", "\xa0", "\u1680", "\u2028", "\u3000", "\ufeff", "\ufffd",
    *"aAjJkKsSZé.,!=<>'[]_-9", "\u2019", "\u0301", "\u030c", "\u0338", "\u0345", "\u0308", "\u212a", "İ", "Σ", "ς", "ß",
    "ﬁ", "≠", "漢", "字", "\u1100", "\u1161", "가", "\u11a8", "🐋", "\u200d",
]  # fmt: skip
FRAGMENTS = [
    " ",
    " ",
    "the",
    "The",
    "there",
    "don't",
    "DON'T",
    "couldn't've",
    "it's",
    "o'clock",
    "[CLS]",
    "[cls]",
    "[UNK]",
    "a" * 101,
]
TEXT = st.lists(st.sampled_from(CHARACTERS) | st.sampled_from(FRAGMENTS), max_size=12).map("".join)
TEXTS = st.lists(TEXT, min_size=16, max_size=24)


def word_piece(normalizer: Any, pre_tokenizer: Any = None) -> str:
    tokenizer = Tokenizer(WordPiece({piece: number for number, piece in enumerate(PIECES)}, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizer or BertPreTokenizer()
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in ADDED])
    return tokenizer.to_str()


def of_words(words: Sequence[str], lowercase: bool) -> str:
    return word_tokenizer({word: number for number, word in enumerate(words)}, lowercase)[0]


LOCAL: dict[str, str] = {
    **{
        f"bert, clean {clean}, accents {strip}, lower {lower}": word_piece(BertNormalizer(clean, chinese, strip, lower))
        for clean, chinese, strip, lower in [
            (True, True, None, True), (True, True, None, False), (False, True, None, True), (False, False, None, False),
            (True, False, True, False), (False, True, True, True), (True, True, False, True),
        ]
    },
    "composed, then lower": word_piece(Chain([NFC(), Lowercase()])),
    "compatible, cut at white space": word_piece(Chain([NFKC(), Lowercase()]), WhitespaceSplit()),
    "without accents": word_piece(Chain([NFKD(), StripAccents(), Lowercase()])),
    "decomposed": word_piece(NFD(), WhitespaceSplit()),
    "no normaliser": word_piece(None),
    "words, contractions in pieces": of_words([*WORDS, "n't"], lowercase=True),
    "words, apostrophes inside": of_words([word for word in WORDS if word != "'s"], lowercase=False),
    "words, apostrophes alone": of_words([word for word in WORDS if "'" not in word], lowercase=True),
}  # fmt: skip


def plain(tokenizer: str, stand_in: int = -1) -> TextTokenizer:
    facts = TokenizerInfo(0, 0, from_left=False, padding=0, stand_in=stand_in, types="none")
    return TextTokenizer(FastTokenizer(Tokenizer.from_str(tokenizer), types=False), facts, UNLIMITED)


def cached(tokenizer: str) -> WordCachedTokenizer:
    found = remember_words(plain(tokenizer))
    assert isinstance(found, WordCachedTokenizer)
    return found


def require_equal(ours: Any, theirs: Any) -> None:
    for name in ("ids", "starts", "lengths"):
        one, other = getattr(ours, name), getattr(theirs, name)
        assert one.dtype == other.dtype
        assert one.tolist() == other.tolist(), name


@pytest.mark.parametrize("examples", [30, pytest.param(300, marks=pytest.mark.check)])
@pytest.mark.parametrize("name", LOCAL)
def test_ids_are_those_of_the_tokenizer(name: str, examples: int) -> None:
    ours, theirs = cached(LOCAL[name]), plain(LOCAL[name])

    @settings(max_examples=examples, deadline=None)
    @given(TEXTS)
    def check(texts: list[str]) -> None:
        require_equal(ours(texts), theirs(texts))  # with the words of earlier examples in the cache

    check()


@pytest.mark.parametrize("name", LOCAL)
def test_most_texts_are_taken_word_by_word(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = cached(LOCAL[name]), plain(LOCAL[name])
    texts = ["the whale sings", "Don't, it's the\tocean!\n", "", "   ", "ÉTÉ été J\u030c =\u0338"] * 4
    monkeypatch.setattr(ours, "tokenizer", _refused(theirs))
    require_equal(ours(texts), theirs(texts))
    require_equal(ours(texts), theirs(texts))


def _refused(tokenizer: TextTokenizer) -> Any:
    class Refused:
        facts = tokenizer.facts

        def __call__(self, texts: Sequence[str]) -> Any:
            raise AssertionError(f"asked for {texts}")

    return Refused()


@pytest.mark.parametrize(
    "odd", ["the [CLS] the", "a\0b the", "a\x0bb the", "a\x0cb the", "漢字" * 40, "the" * 50, "[PAD][PAD]"]
)
def test_texts_that_go_through_the_tokenizer_as_they_are(odd: str) -> None:
    for name in ("words, apostrophes alone", "bert, clean True, accents None, lower True"):
        ours, theirs = cached(LOCAL[name]), plain(LOCAL[name])
        texts = ["the a", odd, "", "[cls] the", odd, *["it do"] * 20]
        require_equal(ours(texts), theirs(texts))
        require_equal(ours([odd] * 20), theirs([odd] * 20))


def test_an_added_token_is_found_only_where_it_is_written() -> None:
    tokenizer = Tokenizer(WordPiece({"[UNK]": 0, "whale": 1, "hello": 2}, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = BertNormalizer(), BertPreTokenizer()
    tokenizer.add_tokens([AddedToken("ha le", normalized=False), AddedToken("llo", normalized=False)])
    written = tokenizer.to_str()
    texts = ["whale HELLO hello", "wha le", "WHA LE", "hello"] * 5
    require_equal(cached(written)(texts), plain(written)(texts))


def test_a_text_that_is_not_unicode_is_refused_as_ever() -> None:
    with pytest.raises(CorpusError, match="is not valid Unicode"):
        cached(LOCAL["no normaliser"])(["the"] * 20 + ["a\ud800b"])


def test_white_space_composes_with_nothing() -> None:
    marks = [one for one in map(chr, range(sys.maxunicode)) if unicodedata.category(one).startswith("M")]
    assert len(marks) > 2000
    for form in (NFC(), NFD(), NFKC(), NFKD(), BertNormalizer(strip_accents=False), StripAccents()):
        for space in " \t\n\r":
            for mark in marks:
                apart = form.normalize_str("a" + mark), form.normalize_str(mark)
                joined = form.normalize_str(f"a{mark}{space}{mark}")
                assert joined in (apart[0] + space + apart[1], apart[0] + " " + apart[1])


@pytest.mark.parametrize("name", LOCAL)
@given(texts=st.lists(TEXT, min_size=1, max_size=6))
def test_a_long_text_has_the_tokens_of_its_pieces(name: str, texts: list[str]) -> None:
    texts = [*texts, " ".join(texts * 3), " " * 90, "", "the a"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(word_cache, "_LONG_TEXT", 20)
        patch.setattr(word_cache, "_GROUP_CHARACTERS", 7)
        require_equal(cached(LOCAL[name])(texts), plain(LOCAL[name])(texts))


def test_a_text_is_cut_before_white_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_cache, "_GROUP_CHARACTERS", 4)
    assert list(word_cache.cut_at_spaces("one two\nthree  four")) == ["one two", "\nthree", "  four"]
    assert list(word_cache.cut_at_spaces("")) == []


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_cache, "MOST_WORDS", 50)
    monkeypatch.setattr(word_cache, "_GROUP_CHARACTERS", 300)
    bert = LOCAL["bert, clean True, accents None, lower True"]
    ours, theirs, most = cached(bert), plain(bert), 0
    for start in range(0, 2000, 100):
        texts = [f"the {number} a {number + 1}s" for number in range(start, start + 100)]
        require_equal(ours(texts), theirs(texts))
        most = max(most, len(ours._words._numbers))
    assert 50 < most < 150


def test_characters_in_memory_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_cache, "MOST_CHARACTERS", 1000)
    ours, held = cached(LOCAL["no normaliser"]), set()
    for number in range(10):
        ours([f"the {number}{'b' * 30} a b c d e f g h"] * 10 + [f"c {number}{'c' * 300} " + "a " * 60] * 10)
        held.add(ours._words._characters)
    assert max(held) < 1500


def test_threads_share_it() -> None:
    bert = LOCAL["bert, clean True, accents None, lower True"]
    ours, theirs = cached(bert), plain(bert)
    batches = [[f"the {number * batch % 97} a{number}" for number in range(60)] for batch in range(1, 40)]
    with ThreadPoolExecutor(8) as pool:
        for found, batch in zip(pool.map(ours, batches), batches, strict=True):
            require_equal(found, theirs(batch))


def _edited(change: Callable[[dict[str, Any]], None]) -> str:
    plain_json = json.loads(word_piece(BertNormalizer()))
    change(plain_json)
    return json.dumps(plain_json)


def _with(normalizer: Any = None, pre_tokenizer: Any = None) -> str:
    return word_piece(normalizer or BertNormalizer(), pre_tokenizer)


@pytest.mark.parametrize(
    "settings_json",
    [
        _with(pre_tokenizer=Metaspace()),
        _with(pre_tokenizer=ByteLevel()),
        _with(pre_tokenizer=Whitespace()),
        _with(pre_tokenizer=Split(Regex(r"\w+"), "removed", invert=True)),
        _with(normalizer=Replace("a", "b c")),
        _with(normalizer=Replace(Regex("é "), "e")),
        _with(normalizer=Chain([Lowercase(), Replace(" ", "_")])),
        _edited(lambda one: one.update(pre_tokenizer=None)),
        _edited(lambda one: one["added_tokens"][0].update(normalized=True)),
        _edited(
            lambda one: one.update(
                truncation={"max_length": 3, "direction": "Right", "strategy": "LongestFirst", "stride": 0}
            )
        ),
        _edited(lambda one: one.update(normalizer={"type": "Prepend", "prepend": "_"})),
        _edited(
            lambda one: one.update(
                post_processor={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
            )
        ),
    ],
)
def test_other_tokenizers_are_left_alone(settings_json: str) -> None:
    assert not is_local(Tokenizer.from_str(settings_json))


def test_other_models_and_special_tokens_are_left_alone() -> None:
    tokenizer = Tokenizer(BPE({"a": 0}, []))
    tokenizer.normalizer, tokenizer.pre_tokenizer = BertNormalizer(), BertPreTokenizer()
    assert not is_local(tokenizer)
    level = Tokenizer(WordLevel({"a": 0}, unk_token="a"))
    level.normalizer, level.pre_tokenizer = BertNormalizer(), BertPreTokenizer()
    assert is_local(level)
    facts = TokenizerInfo(1, 1, from_left=False, padding=0, stand_in=0, types="none")
    special = TextTokenizer(FastTokenizer(level, types=False), facts, UNLIMITED)
    assert remember_words(special) is special


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.randoms())
def test_segments_are_gathered_in_order(counts: list[int], random: Any) -> None:
    values = np.arange(50, dtype=np.int32)
    firsts = [random.randrange(40) for _ in counts]
    expected = [value for first, count in zip(firsts, counts, strict=True) for value in range(first, first + count)]
    assert word_cache.gather_segments(values, np.array(firsts), np.array(counts)).tolist() == expected
