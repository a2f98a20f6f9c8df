"""Static tables: word vectors in every format, folders of model2vec and sentence-transformers, and damaged files."""

import bz2
import gzip
import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import Unigram, WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from indexer.encoders.static import tables as static_tables
from indexer.encoders.static import word_vectors
from indexer.encoders.static.tables import EmbeddingTable, load_table
from indexer.encoders.static.word_vectors import parse_binary, parse_text
from indexer.errors import MachineError, ModelError
from indexer.models.model_files import find_table_files, hash_table_files

Vectors = npt.NDArray[np.float32]
WORDS = ["the", "whale", "sings", "n't", "été", ". . .", "!", "1984"]
CURLY = "\u2019"  # a typographic apostrophe
VECTORS: Vectors = (np.arange(24) / 8).astype(np.float32).reshape(8, 3)


def as_glove(words: Sequence[str], vectors: Vectors) -> bytes:
    lines = (" ".join([word, *map(repr, row)]) + "\n" for word, row in zip(words, vectors.tolist(), strict=True))
    return "".join(lines).encode("utf-8", "surrogateescape")


def as_word2vec_text(words: Sequence[str], vectors: Vectors) -> bytes:
    return b"%d %d\n" % vectors.shape + as_glove(words, vectors)


def as_word2vec_binary(words: Sequence[str], vectors: Vectors, end: bytes = b"\n") -> bytes:
    rows = (word.encode() + b" " + row.tobytes() + end for word, row in zip(words, vectors, strict=True))
    return b"%d %d\n" % vectors.shape + b"".join(rows)


def as_fasttext(words: Sequence[str], vectors: Vectors) -> bytes:
    return as_word2vec_text(words, vectors).replace(b"\n", b" \n").replace(b" \n", b"\n", 1)


def as_google(words: Sequence[str], vectors: Vectors) -> bytes:
    return as_word2vec_binary(words, vectors, end=b"")


def zstd(data: bytes) -> bytes:
    return pa.compress(data, codec="zstd", asbytes=True)  # type: ignore[no-any-return]


FORMS = [as_glove, as_word2vec_text, as_word2vec_binary, as_google, as_fasttext]
PACKINGS: list[Callable[[bytes], bytes]] = [bytes, gzip.compress, bz2.compress, zstd]


def composed(word: str) -> str:
    return unicodedata.normalize("NFC", word).replace(CURLY, "'")


def plain_read(data: bytes, dim: int) -> dict[str, list[float]]:
    """Read lines in the obvious way; the first of identical words counts."""
    rows: dict[str, list[float]] = {}
    for line in data.decode("utf-8", "replace").rstrip("\n").split("\n"):
        word, *numbers = line.rstrip().rsplit(" ", dim)
        rows.setdefault(composed(word), [float(number) for number in numbers])
    return rows


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], EmbeddingTable]:
    """Return a loader of the table in these bytes, with a separate cache."""
    monkeypatch.setenv("ISOTROPE_CACHE", str(tmp_path / "cache"))

    def load_bytes(data: bytes) -> EmbeddingTable:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.words"
        path.write_bytes(data)
        return load_table(path)

    return load_bytes


def words_of(table: EmbeddingTable) -> list[str]:
    vocabulary = table.tokenizer.get_vocab()
    assert vocabulary.pop(next(word for word, row in vocabulary.items() if row == table.unknown)) == len(table.vectors)
    return sorted(vocabulary, key=lambda word: vocabulary[word])


def pieces(table: EmbeddingTable, text: str) -> list[str]:
    """Return the pieces of a text, before normalisation."""
    return [text[start:end] for start, end in table.tokenizer.encode(text).offsets]


def ids(table: EmbeddingTable, text: str) -> list[int]:
    found: list[int] = table.tokenizer.encode(text).ids
    return found


parsed = lru_cache(maxsize=4)(Tokenizer.from_str)


words = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=8)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[str], Vectors]:
    dim = draw(st.integers(2, 5))
    distinct = draw(st.lists(words, min_size=1, max_size=12, unique_by=composed))
    eighths = draw(
        st.lists(st.integers(-8000, 8000), min_size=dim * len(distinct), max_size=dim * len(distinct), unique=False)
    )
    return distinct, (np.array(eighths) / 8).astype(np.float32).reshape(-1, dim)


@settings(max_examples=30)
@given(tables(), st.sampled_from(PACKINGS))
def test_a_table_is_the_same_in_every_form_and_packing(
    tmp_path_factory: pytest.TempPathFactory, table: tuple[list[str], Vectors], pack: Callable[[bytes], bytes]
) -> None:
    folder = tmp_path_factory.mktemp("forms")
    for form in FORMS:
        path = folder / form.__name__
        path.write_bytes(pack(form(*table)))
        loaded = load_table(path)
        assert words_of(loaded) == list(map(composed, table[0]))
        assert loaded.vectors.dtype == np.float32
        np.testing.assert_array_equal(loaded.vectors, table[1])
        assert loaded.notes == ()
        assert [loaded.row_of(word) for word in table[0]] == list(range(len(table[0])))


@settings(max_examples=50)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=2, max_size=8), st.booleans())
def test_numbers_are_read_to_the_last_bit(numbers: list[float], signed: bool) -> None:
    text = " ".join(f"{number:+}" if signed else repr(number) for number in numbers)  # Arrow does not accept a "+"
    ((_, vectors),) = parse_text(Path("words"), [f"word {text}".encode()], len(numbers), None)
    np.testing.assert_array_equal(vectors[0], np.array(numbers, np.float32))


@settings(max_examples=30)
@given(st.lists(st.integers(0, 400), max_size=8))
def test_where_blocks_end_changes_nothing(cuts: list[int]) -> None:
    def blocks(data: bytes) -> Iterator[bytes]:
        edges = [0, *sorted(cuts), len(data)]
        return (data[start:end] for start, end in pairwise(edges))

    def joined(rows: Iterator[tuple[list[bytes], Vectors]]) -> tuple[list[str], list[list[float]]]:
        found = list(rows)
        return [word.decode() for some, _ in found for word in some], [row for _, v in found for row in v.tolist()]

    text, binary = as_glove(WORDS, VECTORS), as_word2vec_binary(["a", "bc"], VECTORS[:2]).partition(b"\n")[2]
    assert joined(parse_text(Path("words"), blocks(text), 3, None)) == (WORDS, VECTORS.tolist())
    assert joined(parse_binary(Path("words"), blocks(binary), 3, 2)) == (["a", "bc"], VECTORS[:2].tolist())


def test_odd_lines_are_read_as_the_obvious_reader_does(load: Callable[[bytes], EmbeddingTable]) -> None:
    data = (
        b"the 0.5 -1e-3\r\n. . . 1 2\n2008 3 4\ncaf\xe9 5 6\nthe 7 8\ncafe\xcc\x81 9 10 \ncaf\xc3\xa9 11 12\n"
        b"at name@domain.com +13 .5\n\xe2\x80\x99s 1 1\n's 2 2\n\xc2\xa0 3 3\n 4 4\n\n\n"
    )
    table, expected = load(data), plain_read(data.rstrip(b"\n"), 2)
    assert words_of(table) == list(expected)
    np.testing.assert_array_equal(table.vectors, np.array(list(expected.values()), np.float32))
    assert table.row_of(". . .") == 1
    assert table.row_of(f"{CURLY}s") == table.row_of("'s")
    assert table.row_of("nowhere") is None
    assert table.row_of("[UNK]") is None
    assert table.notes == (
        "3 of 12 words repeat an earlier word; the first counts",
        "1 of 12 words are not UTF-8; their invalid bytes are read as U+FFFD",
    )


def test_the_unknown_token_is_no_word_of_the_table(load: Callable[[bytes], EmbeddingTable]) -> None:
    table = load(b"[UNK] 1 2\n[[UNK]] 3 4\n")
    assert table.unknown == len(table.vectors) == 2
    assert table.row_of("[UNK]") == 0
    assert table.row_of("xyz") is None


def test_texts_are_lower_cased_if_the_table_is(load: Callable[[bytes], EmbeddingTable]) -> None:
    lower, cased = load(as_glove(["paris", "2008"], VECTORS[:2])), load(as_glove(["Paris", "paris"], VECTORS[:2]))
    assert (lower.lowercase, cased.lowercase) == (True, False)
    assert (lower.row_of("PARIS"), ids(lower, "Paris")) == (0, [0])
    assert (cased.row_of("PARIS"), ids(cased, "paris Paris PARIS")) == (None, [1, 0, 2])


def test_a_stray_upper_case_word_does_not_make_a_table_cased(load: Callable[[bytes], EmbeddingTable]) -> None:
    many = [
        f"{first}{second}" for first in "abcdefghijklmnopqrstuvwxyzßéü" for second in "abcdefghijklmnopqrstuvwxyz" * 2
    ]
    many = [f"{word}{number}" for number, word in enumerate(many)]
    table = load(as_glove(["Stray", *many], np.zeros((len(many) + 1, 2), np.float32)))
    assert table.lowercase
    assert table.notes == ("texts are lower-cased, like nearly all words; words with upper case (1) are never found",)


@pytest.mark.parametrize(
    ("extra", "cut"),
    [
        (["n't"], "I do n't know , he 's at O'Brien 's `` rock'n'roll '' might n't 've CA N'T"),
        (["don't"], "I don't know , he's at O'Brien's `` rock'n'roll '' mightn't've CAN'T"),
        ([], "I don ' t know , he ' s at O ' Brien ' s `` rock ' n ' roll '' mightn ' t ' ve CAN ' T"),
    ],
)
def test_apostrophes_follow_the_habit_of_the_table(
    load: Callable[[bytes], EmbeddingTable], extra: list[str], cut: str
) -> None:
    table = load(as_glove(["Word", *extra], VECTORS[: 1 + len(extra)]))
    text = f"I don{CURLY}t know, he's at O'Brien's ``rock'n'roll'' mightn{CURLY}t've CAN'T"
    found = [piece.replace(CURLY, "'") for piece in pieces(table, text)]
    assert found == cut.replace("``", "` `").replace("''", "' '").split()


def test_other_characters_stand_alone_and_offsets_are_those_of_the_text(
    load: Callable[[bytes], EmbeddingTable],
) -> None:
    table = load(as_glove(WORDS, VECTORS))
    text = "The\u00a0été--1984!! so_called हिन्दी, 3.5€"
    cut = ["The", "été", "-", "-", "1984", "!", "!", "so_called", "हिन्दी", ",", "3", ".", "5", "€"]
    assert pieces(table, text) == cut
    assert ids(table, text) == [0, 4, 8, 8, 7, 6, 6, *[8] * 7]
    decomposed = unicodedata.normalize("NFD", "the été sings")
    assert ids(table, decomposed) == [0, 4, 2]
    assert [decomposed[start:][:2] for start, _ in table.tokenizer.encode(decomposed).offsets] == [
        "th",
        "e\u0301",
        "si",
    ]


@given(st.lists(st.from_regex(r"[a-zà-ö0-9_]{1,6}('[a-z]{1,4})?", fullmatch=True), min_size=1, max_size=8, unique=True))
@settings(max_examples=30)
def test_every_row_that_is_one_word_is_found_in_a_text(
    tmp_path_factory: pytest.TempPathFactory, words: list[str]
) -> None:
    path = tmp_path_factory.mktemp("found") / "words"
    path.write_bytes(as_glove(words, np.ones((len(words), 2), np.float32)))
    table = load_table(path)
    assert ids(table, " ".join(words)) == list(range(len(words)))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty; expected a table of word vectors"),
        (b"\n\n", "is empty"),
        (b"Call me Ishmael.\nSome years ago\n", "do not end in numbers"),
        (b"cat 1 2\ndog 3\n", ":2: has 2 fields; expected 3, a word and 2 numbers"),
        (b"cat 1 2\ndog 3 4 5\nowl 1 2\n", ":2: has 4 fields; expected 3"),
        (b"cat 1 2\n\nowl 1 2\n", ":2: has 0 fields; expected 3"),
        (b"cat 1 2\ncow 1 x\n", ':2: "x" is not a number; expected 2 after "cow"'),
        (b"cat 1 2\ncow 1  2\n", ":2: has 4 fields; expected 3"),
        (b"cat 1 2\ncow nan 2\n", ':2: "nan" in the vector of "cow" is not finite'),
        (b"cat 1 2\ncow 1 1e39\n", ':2: "1e39" in the vector of "cow" is not finite in float32'),
        (b"cat\t1 2\n", ":1: has a tab"),
        (b"2 2\ncat 1 2\ndog 3\n", ":3: has 2 fields; expected 3"),
        (b"3 2\ncat 1 2\n", "the first line states 3 words, but there are 1; the file is cut short"),
        (b"1 2\ncat 1 2\ndog 1 2\n", "the first line states 1 words, but there are 2. Fix: correct the first line"),
        (b"3 2", "the first line states 3 words, but there are 0; the file is cut short"),
        (b"0 2\n", ":1: states 0 words of 2 dimensions"),
        (
            as_google(WORDS, VECTORS).replace(b"8 3", b"1000000000 300", 1),
            "the first line states 1,000,000,000 words of 300 dimensions, which do not fit into 135 bytes",
        ),
        (as_google(WORDS, VECTORS)[:-1], "ends within word 8, but its first line states 8 words of 3 dimensions"),
        (as_google(WORDS, VECTORS) + b"x", "has more data than the 8 words of 3 dimensions"),
        (as_google(["a", "b"], np.array([[1, 2], [np.nan, 0]], np.float32)), 'word 2, "b", is not finite'),
        (b"2 2\n" + bytes(1 << 17), "is damaged at word 1, which has no end"),
        (b"\x00\x01 junk", "is neither text nor word2vec's binary form"),
        ("cat 1 2\n".encode("utf-16"), "is neither text"),
        (b"PK\x03\x04", "is a zip archive. Fix: unpack it"),
        (b"\xba\x16\x4f\x2f" + bytes(9), "is fastText's own model"),
        (b"\x80\x04\x95", "is a pickle, which can run code"),
        (
            gzip.compress(as_glove(WORDS, VECTORS), mtime=0)[:-12],
            "the gzip stream is truncated. Fix: download the file again",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_said(load: Callable[[bytes], EmbeddingTable], data: bytes, message: str) -> None:
    with pytest.raises(ModelError, match=re.escape(message)):
        load(data)


def test_a_file_is_read_once_and_again_when_its_entry_is_damaged(
    tmp_path: Path, load: Callable[[bytes], EmbeddingTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = as_glove(WORDS, VECTORS)
    load(data)
    with monkeypatch.context() as patch:
        patch.setattr(word_vectors, "read_word_vectors", lambda _: pytest.fail("read again"))
        again = load(data)
    assert not again.vectors.flags.writeable
    rows = next((tmp_path / "cache").rglob("rows.f32"))
    rows.write_bytes(rows.read_bytes()[:-4])
    np.testing.assert_array_equal(load(data).vectors, VECTORS)


def test_a_full_disk_is_said(load: Callable[[bytes], EmbeddingTable], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(static_tables, "_write_rows", full)
    with pytest.raises(MachineError, match=r"cannot be stored: No space left on device.*ISOTROPE_CACHE"):
        load(as_glove(WORDS, VECTORS))


def test_a_word_file_has_the_same_hashes_under_any_name(tmp_path: Path) -> None:
    for name in ("one.txt", "other"):
        (tmp_path / name).write_bytes(as_glove(WORDS, VECTORS))
    one, other = (find_table_files(tmp_path / name) for name in ("one.txt", "other"))
    assert (one.kind, one.root, one.weights) == ("words", tmp_path, ("one.txt",))
    assert hash_table_files(one) == hash_table_files(other)
    assert one.kind == other.kind == "words"
    with pytest.raises(ModelError, match="no static table"):
        find_table_files(tmp_path)


# --- folders ---

TOKENS = {"[PAD]": 0, "[UNK]": 1, "whale": 2, "sings": 3, "the": 4}


def make_folder(folder: Path, tensors: dict[str, torch.Tensor], config: dict[str, Any] | None = None) -> Path:
    """Write a model2vec folder whose tokenizer.json truncates, pads and adds special tokens without rows."""
    tokenizer = Tokenizer(WordLevel(TOKENS, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", 101)])
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=7)
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config or {"model_type": "model2vec"}))
    return folder


def test_a_tokenizer_neither_cuts_nor_pads_nor_adds_special_tokens(tmp_path: Path) -> None:
    table = load_table(make_folder(tmp_path / "model", {"embeddings": torch.ones(5, 2)}))
    assert ids(table, "the whale sings the song") == [4, 2, 3, 4, 1]
    assert (table.unknown, table.words, table.lowercase) == (1, False, False)


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int8])
def test_rows_of_every_type_are_cast_to_float32(tmp_path: Path, kind: torch.dtype) -> None:
    rows = (torch.arange(10).reshape(5, 2) - 3).to(kind)
    table = load_table(make_folder(tmp_path / "model", {"embeddings": rows}))
    assert table.vectors.dtype == np.float32
    np.testing.assert_array_equal(table.vectors, rows.float().numpy())


def test_mapping_and_weights_are_folded_into_the_rows(tmp_path: Path) -> None:
    embeddings, mapping, weights = torch.rand(3, 2), torch.tensor([0, 0, 2, 1, 2]), torch.rand(5, dtype=torch.float64)
    folder = make_folder(tmp_path / "model", {"embeddings": embeddings, "mapping": mapping, "weights": weights})
    expected = [(embeddings[mapping[token]] * weights[token]).numpy() for token in range(5)]
    np.testing.assert_allclose(load_table(folder).vectors, np.array(expected), rtol=1e-6)


def test_a_word_has_a_row_where_it_is_one_known_token(tmp_path: Path) -> None:
    table = load_table(make_folder(tmp_path / "model", {"embeddings": torch.ones(5, 2)}))
    assert [table.row_of(word) for word in ("whale", "the whale", "song", "")] == [2, None, None, None]


def test_the_unknown_token_of_a_unigram_is_known_by_its_number(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model", {"embeddings": torch.ones(5, 2)})
    Tokenizer(Unigram([("a", -1.0), ("?", -2.0), ("b", -1.0)], unk_id=1)).save(str(folder / "tokenizer.json"))
    table = load_table(folder)
    assert (table.unknown, ids(table, "azb")) == (1, [0, 1, 2])


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (
            {"vectors": torch.ones(5, 2)},
            "contains vectors (5, 2); expected a tensor named embeddings or embedding.weight",
        ),
        ({"embeddings": torch.ones(5)}, '"embeddings" has the shape (5,); expected (tokens, dimensions)'),
        ({"embeddings": torch.ones(4, 2)}, "has rows for 4 tokens, but tokenizer.json has ids up to 4"),
        ({"embeddings": torch.full((5, 2), torch.inf)}, "the row of token 0 is not finite"),
        ({"embeddings": torch.ones(5, 2, dtype=torch.bool)}, '"embeddings" is of type BOOL; expected one of F64, F32'),
        (
            {"embeddings": torch.ones(2, 2), "mapping": torch.tensor([0, 1, 2, 0, 0])},
            "rows from 0 to 2, but there are 2",
        ),
        ({"embeddings": torch.ones(2, 2), "mapping": torch.ones(5)}, '"mapping" is of type F32; expected integers'),
        (
            {"embeddings": torch.ones(5, 2), "weights": torch.ones(4)},
            '"weights" has the shape (4,); expected one',
        ),
    ],
)
def test_tensors_that_make_no_table_are_refused(tmp_path: Path, tensors: dict[str, torch.Tensor], message: str) -> None:
    with pytest.raises(ModelError, match=re.escape(message)):
        load_table(make_folder(tmp_path / "model", tensors))


def test_damaged_files_of_a_folder_are_refused(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model", {"embeddings": torch.ones(5, 2)})
    weights, tokenizer = folder / "model.safetensors", folder / "tokenizer.json"
    whole = weights.read_bytes()
    for data, message in ((whole[:-4], "truncated"), (whole[:20], "as safetensors"), (b"", "as safetensors")):
        weights.write_bytes(data)
        with pytest.raises(ModelError, match=message):
            load_table(folder)
    weights.write_bytes(whole)
    unknown = '{"model": {"type": "X"}}'
    for text, message in (("{}", "missing required field `model`"), (unknown, "cannot be read as a tokenizer")):
        tokenizer.write_text(text)
        with pytest.raises(ModelError, match=message):
            load_table(folder)
    tokenizer.unlink()
    with pytest.raises(ModelError, match=r"no tokenizer.json \(found config.json, model.safetensors\)"):
        load_table(folder)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "no static table (found nothing)"),
        (
            {"config.json": {"model_type": "bert"}},
            'model type "bert"); expected config.json with the model type model2vec',
        ),
        ({"modules.json": [{"type": "a.Transformer"}]}, "names Transformer); expected"),
        (
            {"modules.json": [{"type": "a.StaticEmbedding"}, {"type": "a.Dense"}]},
            "are StaticEmbedding, Dense; expected",
        ),
        ({"modules.json": {}}, "Expected `array`, got `object`"),
        ({"modules.json": [{"type": "a.StaticEmbedding", "path": "../elsewhere"}]}, "outside the model's folder"),
    ],
)
def test_other_folders_are_refused(tmp_path: Path, files: dict[str, Any], message: str) -> None:
    for name, value in files.items():
        (tmp_path / name).write_text(json.dumps(value))
    with pytest.raises(ModelError, match=re.escape(message)):
        load_table(tmp_path)
    with pytest.raises(ModelError, match="no such file or folder"):
        load_table(tmp_path / "glove.txt")


def static_embedding(tokenizer: Path, rows: torch.Tensor) -> Any:
    """Write a folder with the module of sentence-transformers itself."""
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    return modules.StaticEmbedding(Tokenizer.from_file(str(tokenizer)), embedding_weights=rows)


def own_means(module: Any, texts: list[str]) -> npt.NDArray[np.floating]:
    with torch.no_grad():
        means: npt.NDArray[np.floating] = module(module.preprocess(texts))["sentence_embedding"].numpy()
    return means


def means(table: EmbeddingTable, texts: list[str]) -> npt.NDArray[np.floating]:
    known = [[token for token in ids(table, text) if token != table.unknown] for text in texts]
    return np.stack([table.vectors[tokens].mean(axis=0) for tokens in known])


@pytest.mark.parametrize("path", ["", "0_StaticEmbedding"])
def test_a_folder_of_sentence_transformers_gives_its_means(tmp_path: Path, path: str) -> None:
    rows = torch.rand(5, 4)
    module = static_embedding(make_folder(tmp_path / "made", {"embeddings": rows}) / "tokenizer.json", rows)
    folder = tmp_path / "saved"
    (folder / path).mkdir(parents=True)
    module.tokenizer.no_truncation()
    module.save(str(folder / path))
    kinds = [{"type": "sentence_transformers.models.StaticEmbedding", "path": path}, {"type": "x.Normalize"}]
    (folder / "modules.json").write_text(json.dumps(kinds))
    texts, table = ["the whale sings the song", "whale"], load_table(folder)
    assert table.unknown == -1  # its row counts like any other
    np.testing.assert_allclose(means(table, texts), own_means(module, texts), rtol=1e-6)
    assert find_table_files(folder).weights == (f"{path}/model.safetensors".removeprefix("/"),)


def test_potion_gives_the_means_of_sentence_transformers(shared: Path) -> None:
    folder = shared / "models" / "potion-base-4m-int8"
    table = load_table(folder)
    assert table.vectors.shape == (29528, 128)
    lines = (shared / "data" / "sentences" / "subjectivity.txt").read_text(encoding="utf-8").splitlines()
    texts = [line for line in lines[:400] if table.unknown not in ids(table, line)]
    assert len(texts) > 300
    module = static_embedding(folder / "tokenizer.json", torch.tensor(table.vectors))
    np.testing.assert_allclose(means(table, texts), own_means(module, texts), rtol=1e-4, atol=1e-4)
    assert table.row_of("Guitar") == table.row_of("guitar") != table.unknown
    assert table.row_of("zygomorphically") is None
