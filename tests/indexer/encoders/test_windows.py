"""Windows of tokens: coverage, overlap and size, for every kind of tokenizer and any text."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.encoders import windows as chunking
from indexer.encoders.document_windows import open_chunker
from indexer.encoders.windows import Chunker, TokenOffsets, split_text
from indexer.errors import ConfigError, CorpusError
from indexer.models.resolution import resolve_spec
from indexer.models.tokenizer import TextTokenizer, open_model_tokenizer
from indexer.recipe.config import BuildConfig, EncoderConfig
from indexer.recipe.corpus_config import ChunkConfig

regex: Any = pytest.importorskip("regex")  # comes with transformers
KINDS = ("bert", "bert-cased", "roberta", "gpt2", "albert")
WORDS = st.sampled_from(
    ["whale", "songs", "of", "the", "deep,", "Unaffable", "wörld", "étude", "naïve.", "x" * 40, "İstanbul", "STRASSE"]
)
ODD = st.sampled_from(
    [
        "日本語の文章",
        "e\u0301\u0323",
        "👩🏽‍🚀",
        "👨‍👩‍👧‍👦",
        "🇫🇷🇩🇪",
        "1\ufe0f\u20e3",
        "क्षि",
        "한글",
        "각",
        "𠀀𠮷𐐷",
        "ﷺ",
        "\u0000\u200b",
    ]
)
SPACES = st.sampled_from([" ", "\n", "\n\n\n", "\t", "", "\u3000", " \u00a0 "])
TEXTS = st.lists(st.one_of(WORDS, WORDS, ODD, SPACES, st.text(max_size=6)), max_size=60).map(
    lambda pieces: " ".join(pieces).strip()
)
SIZES = st.tuples(st.integers(8, 40), st.integers(0, 20)).filter(lambda sizes: sizes[1] < sizes[0])


@pytest.fixture(scope="session")
def tokenizers(tiny_model: Callable[[str], Path]) -> dict[str, TextTokenizer]:
    """Return a tokenizer of each kind: word pieces, byte pairs, unigrams."""
    return {kind: tokenizer_of(tiny_model(kind)) for kind in KINDS}


def tokenizer_of(folder: Path) -> TextTokenizer:
    return open_model_tokenizer(resolve_spec(EncoderConfig(model=str(folder), max_length=64)))


def windows_of(tokenizer: TextTokenizer, texts: list[str], tokens: int, overlap: int) -> chunking.Windows:
    return Chunker(tokenizer.offsets, tokens, overlap)(texts)


def held(marks: TokenOffsets, start: int, end: int) -> set[int]:
    """Return the tokens that begin in a window."""
    return set(np.flatnonzero((marks.starts >= start) & (marks.starts < end)).tolist())


def most_in_a_character(text: str, marks: TokenOffsets) -> int:
    """Return the most tokens in a grapheme or a row of flags; with some tokenizers each byte is a token."""
    ends = np.array([match.end() for match in regex.finditer(r"\p{Regional_Indicator}+|\X", text)])
    return int(np.bincount(np.searchsorted(ends, marks.starts, side="right")).max(initial=0))


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXTS, sizes=SIZES)
def test_windows_cover_the_text_in_order_and_are_no_larger_than_asked(
    tokenizers: dict[str, TextTokenizer], kind: str, text: str, sizes: tuple[int, int]
) -> None:
    tokens, overlap = sizes
    marks = tokenizers[kind].offsets([text])[0]
    spans = split_text(text, marks, tokens, overlap)
    assert (spans[0][0], spans[-1][1]) == (0, len(text))
    for before, after in pairwise(spans):
        assert before[0] < after[0] <= before[1] < after[1]  # without a gap, and no window inside another
        assert text[before[1] : after[1]].strip()  # each window adds text
    for start, end in spans:
        assert text[start:end].strip() or not text
        inside = [mark for mark in marks.starts.tolist() if start <= mark < end]
        blank = sum(text[mark].isspace() for mark in inside)
        assert len(inside) - blank <= tokens + 2 * max(0, most_in_a_character(text, marks) - 1)
    if len(marks.starts) <= tokens:
        assert spans == [(0, len(text))]


@given(words=st.lists(WORDS, min_size=1, max_size=120), sizes=SIZES)
def test_neighbours_share_the_overlap_and_windows_are_alike_in_length(
    tokenizers: dict[str, TextTokenizer], words: list[str], sizes: tuple[int, int]
) -> None:
    """In these texts every token begins at a different character."""
    tokens, overlap = sizes
    text = " ".join(words).replace("é", "e").replace("ö", "o").replace("ï", "i").replace("İ", "I")
    marks = tokenizers["bert"].offsets([text])[0]
    spans = split_text(text, marks, tokens, overlap)
    inside = [held(marks, *span) for span in spans]
    assert all(len(each) <= tokens for each in inside)
    moved = (tokens - overlap) // 8
    assert all(overlap <= len(one & two) <= overlap + moved for one, two in pairwise(inside))
    if len(spans) > 1:
        assert len(inside[-1]) > overlap + (tokens - overlap) // 4
        fewest = -(-(len(marks.starts) - overlap) // (tokens - overlap))
        assert fewest <= len(spans) <= 1 + (len(marks.starts) - overlap) / (tokens - overlap - 2 * moved)


@pytest.mark.parametrize("kind", KINDS)
@given(pieces=st.lists(st.one_of(WORDS, ODD), min_size=8, max_size=60), sizes=st.just((32, 8)))
def test_no_window_begins_or_ends_inside_what_is_shown_as_one_character(
    tokenizers: dict[str, TextTokenizer], kind: str, pieces: list[str], sizes: tuple[int, int]
) -> None:
    text = " ".join(pieces)
    whole = {match.start() for match in regex.finditer(r"\X", text)} | {len(text)}
    for start, end in split_text(text, tokenizers[kind].offsets([text])[0], *sizes):
        assert {start, end} <= whole


def test_a_window_ends_at_white_space_if_there_is_some_near() -> None:
    text = "deep sea songs " * 20
    starts = [place for place, character in enumerate(text) if character != " "]  # a token per letter
    marks = TokenOffsets(np.array(starts, np.int32), np.zeros(len(starts), np.int32))
    spans = split_text(text, marks, 64, 16)
    assert len(spans) > 3
    for (start, _), (_, end) in zip(spans[1:], spans, strict=False):
        assert text[start - 1] + text[end - 1] == "  "


def test_words_without_white_space_are_cut_between_and_long_ones_within() -> None:
    text = "abcd" * 30
    starts, words = np.arange(120, dtype=np.int32), np.arange(120, dtype=np.int32) // 4
    assert all(start % 4 == 0 for start, _ in split_text(text, TokenOffsets(starts, words), 50, 8))
    spans = split_text(text, TokenOffsets(starts, np.zeros(120, np.int32)), 50, 8)
    assert spans == [(0, 46), (38, 83), (75, 120)]


def test_offsets_are_those_of_the_text_before_it_was_normalised(tokenizers: dict[str, TextTokenizer]) -> None:
    text = "İa " * 40 + "whale"  # each İ becomes two characters in lower case
    spans = split_text(text, tokenizers["bert"].offsets([text])[0], 12, 2)
    assert len(spans) > 5
    assert all(text[start:end].startswith("İa ") for start, end in spans)


def test_windows_of_many_texts_are_those_of_each(
    tokenizers: dict[str, TextTokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunking, "_GROUP_CHARACTERS", 200)
    texts = ["", "one", "whale song of the deep sea " * 9, "the library of data", "日本語" * 30]
    windows = windows_of(tokenizers["bert"], texts, 16, 4)
    alone = [windows_of(tokenizers["bert"], [text], 16, 4) for text in texts]
    assert windows.document.tolist() == [n for n, each in enumerate(alone) for _ in range(len(each))]
    assert windows.start.tolist() == [start for each in alone for start in each.start.tolist()]
    assert windows.end.tolist() == [end for each in alone for end in each.end.tolist()]
    assert windows.texts(texts) == [text for one, each in zip(texts, alone, strict=True) for text in each.texts([one])]
    assert windows.texts(texts)[:2] == ["", "one"]


def test_no_texts_have_no_windows(tokenizers: dict[str, TextTokenizer]) -> None:
    assert len(windows_of(tokenizers["bert"], [], 16, 4)) == 0


def test_a_text_that_is_not_unicode_is_refused(tokenizers: dict[str, TextTokenizer]) -> None:
    with pytest.raises(CorpusError, match="not valid Unicode"):
        windows_of(tokenizers["bert"], ["\ud800"], 16, 4)


def test_windows_that_the_encoder_cannot_take_are_refused_with_the_figures(tiny_model: Callable[[str], Path]) -> None:
    config = EncoderConfig(model=str(tiny_model("bert")), max_length=32, document_prompt="the whale ")
    spec = resolve_spec(config)
    open_chunker(spec, ChunkConfig(28, 4))
    with pytest.raises(
        ConfigError, match=r"the encoder.s 32 tokens .* 2 are special tokens and 2 belong .* at most 28"
    ):
        open_chunker(spec, ChunkConfig(29, 4))


def test_a_tokenizer_without_offsets_is_refused(tiny_model: Callable[[str], Path]) -> None:
    pytest.importorskip("sacremoses")
    spec = resolve_spec(EncoderConfig(model=str(tiny_model("xlm")), max_length=32))
    with pytest.raises(ConfigError, match="Python tokenizer does not report"):
        open_chunker(spec, ChunkConfig(16, 4))


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ({"tokens": 7}, "at least 8"),
        ({"tokens": -1}, "at least 8"),
        ({"tokens": 16, "overlap": 16}, "overlap is 16; expected less than chunk"),
        ({"overlap": -1}, "expected 0 or more"),
    ],
)
def test_settings_that_make_no_windows_are_refused(setting: dict[str, int], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        BuildConfig.from_dict({"chunk": setting})


@pytest.mark.parametrize("sign", [" ", "\n"])
def test_blocks_of_a_long_text_have_the_tokens_of_the_whole(
    sign: str, tokenizers: dict[str, TextTokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tokenizers["bert"].offsets
    text = sign.join(f"{'abc' * (place % 7 + 1)}{place}." for place in range(900))
    expected = Chunker(whole, 16, 4)([text])
    monkeypatch.setattr("indexer.encoders.windows._GROUP_CHARACTERS", 1000)
    monkeypatch.setattr("indexer.encoders.windows._BLOCK_CHARACTERS", 300)
    sizes = list[int]()

    def offsets(texts: list[str]) -> list[TokenOffsets]:
        sizes.extend(map(len, texts))
        return whole(texts)

    assert Chunker(offsets, 16, 4)([text]).start.tolist() == expected.start.tolist()
    assert max(sizes) <= 300 < len(text)
