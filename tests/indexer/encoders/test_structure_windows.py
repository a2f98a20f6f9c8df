"""Windows by structure: the laws of the split, and the headings in front of windows."""

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.corpus.document import Document
from indexer.corpus.files.markup import FILE_KINDS
from indexer.corpus.files.outline import outline
from indexer.encoders.document_windows import DocumentChunker
from indexer.encoders.structure_windows import split_by_structure
from indexer.encoders.windows import TokenOffsets
from indexer.models.encoder_spec import EncoderSpec
from indexer.models.resolution import resolve_spec
from indexer.recipe.config import EncoderConfig
from indexer.recipe.corpus_config import ChunkConfig

MARKDOWN = FILE_KINDS[".md"]
BLOCKS = st.lists(
    st.tuples(
        st.sampled_from(["", "", "", "# ", "## ", "- ", "  - "]), st.integers(1, 30), st.sampled_from(["\n", "\n\n"])
    ),
    min_size=1,
    max_size=25,
)


def tokens_of(text: str) -> TokenOffsets:
    """Words are tokens."""
    starts = np.array([match.start() for match in re.finditer(r"\S+", text)], np.int32)
    return TokenOffsets(starts, np.arange(len(starts), dtype=np.int32))


def written(blocks: list[tuple[str, int, str]]) -> str:
    return "".join(mark + " ".join(f"w{number}" for number in range(size)) + end for mark, size, end in blocks).strip()


@given(blocks=BLOCKS, pages=st.lists(st.integers(1, 90), min_size=1, max_size=6), tokens=st.integers(8, 60))
def test_a_window_is_on_one_page(blocks: list[tuple[str, int, str]], pages: list[int], tokens: int) -> None:
    text = "\n\f\n".join([written(blocks), *(" ".join(["word"] * words) for words in pages)])
    spans = split_by_structure(text, tokens_of(text), outline(text, MARKDOWN).breaks, tokens, 0)
    assert all("\f" not in text[start:end].strip() for start, end in spans)


@given(blocks=BLOCKS, tokens=st.integers(8, 60), overlap=st.integers(0, 7))
def test_windows_cover_the_text_and_keep_the_limit(
    blocks: list[tuple[str, int, str]], tokens: int, overlap: int
) -> None:
    text = written(blocks)
    spans = split_by_structure(text, tokens_of(text), outline(text, MARKDOWN).breaks, tokens, overlap)
    assert spans[0][0] == 0
    assert spans[-1][1] == len(text)
    for (start, end), (following, later) in pairwise(spans):
        assert start < following <= end < later
    assert all(len(text[start:end].split()) <= tokens for start, end in spans)
    assert all(text[start:end].strip() for start, end in spans)


@given(blocks=BLOCKS, tokens=st.integers(8, 60))
def test_no_paragraph_or_item_that_fits_is_cut(blocks: list[tuple[str, int, str]], tokens: int) -> None:
    text = written(blocks)
    found = outline(text, MARKDOWN).breaks
    spans = split_by_structure(text, tokens_of(text), found, tokens, 0)
    cuts = {start for start, _ in spans}
    for paragraph in re.finditer(r"(?:[^\n]+\n?)+", text):  # blocks of lines without an item or heading
        if not re.search(r"^ *(#|-)", paragraph[0], re.MULTILINE) and len(paragraph[0].split()) <= tokens:
            assert not cuts & set(range(paragraph.start() + 1, paragraph.end()))


def test_sections_that_fit_are_windows_and_small_neighbours_are_joined() -> None:
    text = written([("# ", 2, "\n\n"), ("", 3, "\n\n"), ("## ", 1, "\n\n"), ("", 12, "\n\n"), ("## ", 1, "\n\n"),
                    ("", 14, "\n\n"), ("## ", 1, "\n\n"), ("", 30, "\n\n"), ("", 3, "")])  # fmt: skip
    spans = split_by_structure(text, tokens_of(text), outline(text, MARKDOWN).breaks, 20, 4)
    windows = [text[start:end] for start, end in spans]
    assert [len(window.split()) for window in windows] == [20, 16, 18, 18, 3]
    assert [window[:3] for window in windows[:3]] == ["# w", "## ", "## "]


@pytest.fixture(scope="module")
def spec(tiny_model: Callable[[str], Path]) -> EncoderSpec:
    return resolve_spec(EncoderConfig(model=str(tiny_model("bert")), max_length=40, precision="float32"))


DOCUMENT = Document(
    "d",
    "# Whale\n\nsong\n\n## Of the deep\n\n" + "library data for the sea " * 12 + "\n\n### To\n\n" + "singing " * 20,
    "Whale",
)


def test_headings_above_a_window_come_first_and_count(spec: EncoderSpec) -> None:
    config = ChunkConfig(24, 4, by="structure")
    chunker = DocumentChunker(spec, config, ("title", "text"))
    cut = chunker([DOCUMENT])
    assert cut.texts[0].startswith("Whale # Whale\n\nsong")
    assert any(text.startswith("Whale > Of the deep\n") for text in cut.texts)
    assert not any(text.startswith("Whale > Whale") for text in cut.texts)
    assert cut.windows is not None
    assert chunker.texts([DOCUMENT], cut.windows) == cut.texts
    assert chunker.chunker is not None
    lengths = [len(each.starts) for each in chunker.chunker.offsets(cut.texts)]
    assert max(lengths) <= 24 + 24 // 4
    bare = DocumentChunker(spec, replace(config, headings=False), ("title", "text"))([DOCUMENT])
    assert bare.windows is not None
    np.testing.assert_array_equal(bare.windows.start, cut.windows.start)
    assert all(text.endswith(own) for text, own in zip(cut.texts, bare.texts, strict=True))


@pytest.mark.parametrize("tokens", [8, 24, 160])
def test_windows_with_headings_fit_into_the_encoder(spec: EncoderSpec, tokens: int) -> None:
    """The default number of tokens shrinks to the room of the encoder."""
    chunker = DocumentChunker(spec, ChunkConfig(tokens, 4, by="structure"), ("title", "text"))
    title = "the library of whale song " * 5
    texts = chunker([DOCUMENT, replace(DOCUMENT, title=title, text=DOCUMENT.text * 3)]).texts
    assert chunker.chunker is not None
    lengths = [len(each.starts) for each in chunker.chunker.offsets(texts)]
    assert max(lengths) <= min(tokens + tokens // 4, 38)
