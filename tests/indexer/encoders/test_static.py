"""Pooling of static tables: sums of whole rows in order, without unknown tokens."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.encoders.load import load_encoder
from indexer.encoders.static import encoder as static
from indexer.encoders.static.encoder import drop_unknown_tokens, reduce_segments
from indexer.models.encoder_spec import Tokens
from indexer.recipe.config import EncoderConfig

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=12)


def starts_of(lengths: list[int]) -> npt.NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


@pytest.mark.parametrize("ufunc", [np.add, np.maximum])
@pytest.mark.parametrize("dim", [2, 5, 64, 256])
@given(lengths=LENGTHS, seed=st.integers(0, 1000))
def test_rows_of_a_text_are_taken_one_after_another(ufunc: np.ufunc, dim: int, lengths: list[int], seed: int) -> None:
    starts = starts_of(lengths)
    vectors = np.random.default_rng(seed).standard_normal((starts[-1], dim)).astype(np.float32)
    found = reduce_segments(ufunc, vectors, starts)
    for row, (start, stop) in zip(found, pairwise(starts.tolist()), strict=True):
        expected = vectors[start].copy()
        for vector in vectors[start + 1 : stop]:
            expected = ufunc(expected, vector)
        assert row.tobytes() == expected.tobytes()
    for number in range(len(lengths)):  # each text alone
        alone = vectors[starts[number] : starts[number + 1]]
        assert reduce_segments(ufunc, alone, starts_of([len(alone)])).tobytes() == found[number].tobytes()


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_a_long_text_is_pooled_piece_by_piece_to_the_same_bits(
    pooling: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [f"w{number}" for number in range(50)]
    rows = np.random.default_rng(0).standard_normal((50, 6)).astype(np.float32)
    lines = [f"{word} {' '.join(map(str, row))}" for word, row in zip(words, rows, strict=True)]
    (tmp_path / "table.txt").write_text("\n".join(lines))
    encoder = load_encoder(EncoderConfig(kind="static", model=str(tmp_path / "table.txt"), pooling=pooling))  # type: ignore[arg-type]
    texts = [" ".join(words[number % 7 :] * 9) for number in range(3)]
    whole = encoder.encode(texts, "document")
    monkeypatch.setattr(static, "_LONG_TOKENS", 20)
    monkeypatch.setattr(static, "_BLOCK_BYTES", 4 * 6 * 11)
    assert encoder.encode(texts, "document").tobytes() == whole.tobytes()


@given(LENGTHS, st.integers(0, 3), st.integers(1, 50), st.integers(0, 1000))
def test_unknown_tokens_are_left_out(lengths: list[int], rare: int, most: int, seed: int) -> None:
    random, starts = np.random.default_rng(seed), starts_of(lengths)
    ids = random.integers(0, 20, starts[-1]).astype(np.int32)
    known = random.integers(0, 4, len(ids)) >= rare  # from all tokens to a quarter
    found = drop_unknown_tokens(Tokens(ids, None, starts, np.array(lengths, np.int32)), known, 99, most)
    for number, (start, stop) in enumerate(pairwise(starts.tolist())):
        kept = [token for token, fits in zip(ids[start:stop].tolist(), known[start:stop], strict=True) if fits]
        assert found.lengths[number] == len(kept)
        own = found.ids[found.starts[number] : found.starts[number + 1]].tolist()
        assert own == (kept[:most] or [99])
    types = [array.dtype.name for array in (found.ids, found.starts, found.lengths)]
    assert types == ["int32", "int64", "int32"]


def test_no_texts_have_no_tokens() -> None:
    nothing = Tokens(np.zeros(0, np.int32), None, np.zeros(1, np.int64), np.zeros(0, np.int32))
    assert len(drop_unknown_tokens(nothing, np.zeros(0, bool), 99, 5)) == 0
