"""Indexes of windows: the stored data, the windows that are encoded again, and the hits of queries."""

import errno
import hashlib
import pickle
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer import BuildConfig, Document, add_documents, build_index, compact_index, delete_documents
from indexer.corpus.document import column_spans, joined_text
from indexer.encoders import windows as chunking
from indexer.encoders.document_windows import DocumentChunker, open_chunker
from indexer.encoders.load import load_encoder
from indexer.encoders.windows import Chunker, Split, Windows
from indexer.errors import ConfigError, ExistsError, MismatchError
from indexer.models.resolution import resolve_spec
from indexer.pipeline.steps import ingest
from indexer.recipe.config import EncoderConfig
from indexer.recipe.corpus_config import ChunkConfig
from indexer.recipe.index_config import StoreConfig
from indexer.recipe.run_options import RunOptions
from indexer.store import layout, parts
from indexer.store.manifest import WINDOWS, load_manifest
from search import SearchEngine, verify_index
from search.index import Index
from tests.life import assert_equals_fresh_build, expected_after_add
from tests.oracles import best_rows

WORDS = ("whale", "song", "of", "the", "deep", "sea", "library", "data", "for", "singing", "to")
CHUNK = ChunkConfig(tokens=12, overlap=4)
COLUMNS = ("title", "text")


def corpus(count: int = 14, longest: int = 50) -> list[Document]:
    """Documents from one word to many; some long ones share text."""
    draw = random.Random(5)
    shared = " ".join(draw.choices(WORDS, k=20))
    found = []
    for number in range(count):
        words = " ".join(draw.choices(WORDS, k=draw.randint(1, longest)))
        text = f"{words} {shared}" if number % 5 == 4 else words
        found.append(Document(f"d{number}", text, title=f"Title {number}", metadata={"year": number}))
    return found


@pytest.fixture(scope="module")
def config(tiny_model: Callable[[str], Path]) -> BuildConfig:
    encoder = EncoderConfig(model=str(tiny_model("bert")), max_length=24, precision="float32")
    return BuildConfig(encoder=encoder, store=StoreConfig(part_documents=4), chunk=CHUNK)


@pytest.fixture(scope="module")
def index(config: BuildConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("windows") / "index"
    build_index(corpus(), path, config)
    return path


@pytest.mark.parametrize("held", [0, 1 << 20])
def test_a_text_is_cut_once_also_where_what_was_cut_does_not_fit_in_memory(
    held: int, config: BuildConfig, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "_HELD_BYTES", held)
    cut: list[str] = []
    once = Chunker.__call__

    def counted(self: Chunker, texts: Sequence[str], split: Split | None = None) -> Windows:
        cut.extend(texts)
        return once(self, texts, split)

    monkeypatch.setattr(Chunker, "__call__", counted)
    build_index(corpus(), tmp_path / "index", config)
    assert len(cut) == len(corpus())
    assert load_manifest(tmp_path / "index").files == load_manifest(index).files


@pytest.mark.parametrize("fault", ["save", "load"])
def test_a_text_is_cut_anew_where_the_scratch_file_is_lost(
    fault: str, config: BuildConfig, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(ingest, "_HELD_BYTES", 0)
    monkeypatch.setattr(ingest.CutTexts, fault, broken)
    build_index(corpus(), tmp_path / "index", config)
    assert load_manifest(tmp_path / "index").files == load_manifest(index).files


def windows_of(documents: list[Document], config: BuildConfig) -> list[tuple[int, int, int, str]]:
    """Return (document, start, end, text) of every window, cut document by document."""
    chunker = open_chunker(resolve_spec(config.encoder), config.chunk)
    found = []
    for number, document in enumerate(documents):
        text = joined_text(document, COLUMNS)
        windows = chunker([text])
        spans = zip(windows.start.tolist(), windows.end.tolist(), strict=True)
        found += [(number, start, end, text[start:end].strip()) for start, end in spans]
    return found


def test_every_window_is_stored_with_its_document_its_span_and_the_hash_of_its_text(
    index: Path, config: BuildConfig
) -> None:
    expected, first = windows_of(corpus(), config), 0
    stored = []
    for part in load_manifest(index).parts:
        with open(index / part.name / layout.WINDOWS, "rb") as file:
            table = pq.read_table(file, use_threads=False, pre_buffer=False)
        assert table.schema.names == ["text_hash", "tokens", "document", "start", "end"]
        stored += [(row["document"] + first, row["start"], row["end"], row["text_hash"]) for row in table.to_pylist()]
        first += part.documents
    assert stored == [(*span, hashlib.blake2b(text.encode(), digest_size=16).digest()) for *span, text in expected]
    assert len(expected) > 2 * len(corpus())


def test_a_row_holds_the_embedding_of_its_window(index: Path, config: BuildConfig) -> None:
    opened = Index.open(index)
    texts = [text for *_, text in windows_of(corpus(), config)]
    embeddings = load_encoder(config.encoder).encode(texts, "document")
    rows = np.arange(len(texts))
    np.testing.assert_allclose(opened.embeddings(rows), embeddings, atol=2e-6)
    np.testing.assert_allclose(opened.vectors(rows), opened.transform.transform(embeddings, "document"), atol=1e-4)


def test_counts_are_of_documents_and_of_windows(index: Path, config: BuildConfig) -> None:
    manifest, windows = load_manifest(index), windows_of(corpus(), config)
    assert (manifest.documents, manifest.rows) == (len(corpus()), len(windows))
    assert WINDOWS in manifest.features
    assert manifest.quality["sample"] == len(windows)
    lengths = np.concatenate([parts.read_token_counts(index / part.name) for part in manifest.parts])
    assert manifest.quality["tokens"] == lengths.sum()
    assert lengths.max() <= CHUNK.tokens + 2
    assert verify_index(index).passed


def test_windows_that_the_encoder_cuts_are_counted(config: BuildConfig, tmp_path: Path) -> None:
    """Letters cut from a word can become other tokens, and more of them."""
    unbroken = "the" * 200 + "whale"
    tight = replace(config, encoder=replace(config.encoder, max_length=CHUNK.tokens + 2))
    report = build_index([Document("a", unbroken), Document("b", "whale song")], tmp_path / "index", tight)
    folders = [tmp_path / "index" / part.name for part in load_manifest(tmp_path / "index").parts]
    lengths = np.concatenate([parts.read_token_counts(folder) for folder in folders])
    assert report.truncated == np.count_nonzero(lengths > tight.encoder.max_length)
    assert report.rows > report.truncated


def test_an_index_without_chunking_stores_no_windows(config: BuildConfig, tmp_path: Path) -> None:
    build_index(corpus(3), tmp_path / "index", replace(config, chunk=ChunkConfig()))
    manifest = load_manifest(tmp_path / "index")
    assert manifest.features == ()
    with open(tmp_path / "index" / manifest.parts[0].name / layout.WINDOWS, "rb") as file:
        assert pq.read_schema(file).names == ["text_hash", "tokens"]


def test_the_same_corpus_is_up_to_date_and_another_cut_is_another_recipe(index: Path, config: BuildConfig) -> None:
    assert build_index(corpus(), index, config).up_to_date
    with pytest.raises(ExistsError, match=r"chunk\.overlap is 4 there and 5 here"):
        build_index(corpus(), index, replace(config, chunk=ChunkConfig(12, 5)))


def test_windows_whose_text_is_known_are_not_encoded_again(config: BuildConfig, tmp_path: Path) -> None:
    """A text that grew at its end, and a new first document, which changes every part."""
    documents = corpus()
    build_index(documents, tmp_path / "index", config)
    before = {text for *_, text in windows_of(documents, config)}
    documents = [Document("new", "a data library"), *documents]
    documents[-1] = replace(documents[-1], text=f"{documents[-1].text} and whales")
    after = [text for *_, text in windows_of(documents, config)]
    report = build_index(documents, tmp_path / "index", config, RunOptions(overwrite=True))
    assert report.rows_reused == sum(text in before for text in after)
    assert report.rows_encoded == len(after) - report.rows_reused < 12
    build_index(documents, tmp_path / "anew", config)
    old, new = (Index.open(tmp_path / name) for name in ("index", "anew"))
    rows = np.arange(len(after))
    np.testing.assert_allclose(old.embeddings(rows), new.embeddings(rows), atol=2e-6)


def test_a_cut_the_encoder_cannot_take_is_refused_before_anything_is_written(
    config: BuildConfig, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"chunk\.tokens is 23, but of the encoder's 24 tokens"):
        build_index(corpus(), tmp_path / "index", replace(config, chunk=ChunkConfig(23, 4)))
    assert not (tmp_path / "index").exists()


def test_a_cutter_cuts_the_same_in_another_process(config: BuildConfig) -> None:
    cutter = DocumentChunker(resolve_spec(config.encoder), config.chunk, COLUMNS)
    cut = cutter(corpus())
    again = pickle.loads(pickle.dumps(cutter))(corpus())  # noqa: S301 - our own
    assert again.texts == cut.texts
    assert cut.windows is not None
    np.testing.assert_array_equal(again.windows.document, cut.windows.document)


def test_a_window_says_where_it_stands_in_the_columns_as_they_were_given(config: BuildConfig, tmp_path: Path) -> None:
    draw = random.Random(1)
    documents = [
        Document(f"d{number}", f"\n\t {' '.join(draw.choices(WORDS, k=40))}  ", title=title)
        for number, title in enumerate(["  Whales of the sea\u3000", None, " ", "Songs"])
    ]
    build_index(documents, tmp_path / "index", config)
    hits = SearchEngine(tmp_path / "index").search("whale song", 4)
    assert len(hits) == 4
    for hit in hits:
        assert hit.window is not None
        document = documents[int(hit.id[1:])]
        assert hit.window.text == joined_text(document, COLUMNS)[hit.window.start : hit.window.end]
        whole = {"title": document.title or "", "text": document.text}
        pieces = [whole[name][start:end] for name, (start, end) in hit.window.columns.items()]
        assert " ".join(pieces).split() == hit.window.text.split()


@given(
    st.tuples(st.none() | st.text(" \na"), st.text(" \nb"), st.none() | st.text(" c")),
    st.integers(0, 9),
    st.integers(0, 9),
)
def test_spans_of_columns_hold_what_the_span_of_the_joined_text_holds(
    values: tuple[str | None, str, str | None], start: int, length: int
) -> None:
    title, text, abstract = values
    document = Document("d", text, title, {"abstract": abstract} if abstract else {})
    whole, columns = {"title": title or "", "text": text, "abstract": abstract or ""}, ("title", "text", "abstract")
    joined = joined_text(document, columns)
    spans = column_spans(document, columns, start, start + length)
    held = "".join(whole[name][first:last] for name, (first, last) in spans.items())
    assert held.replace(" ", "") == joined[start : start + length].replace(" ", "")
    for name, (first, last) in column_spans(document, columns, 0, len(joined)).items():
        assert whole[name][first:last] == whole[name].strip()


def test_hits_name_each_document_once_by_its_best_window(index: Path, config: BuildConfig) -> None:
    engine, documents = SearchEngine(index), corpus()
    windows = windows_of(documents, config)
    vectors = engine.index.vectors(np.arange(len(windows)))
    names = [f"{documents[number].id} {row:04d}" for row, (number, *_) in enumerate(windows)]
    for query in ("whale song", "data for the library", "singing"):
        hits = engine.search(query, k=9)
        ranked = best_rows(vectors, engine.embed([query])[0], names, len(windows))
        best: dict[str, tuple[float, int]] = {}
        for name, score in ranked:
            identity, _, place = name.partition(" ")
            best.setdefault(identity, (score, int(place)))
        expected = sorted(best.items(), key=lambda item: (-item[1][0], item[0]))[:9]
        assert [(hit.id, hit.score) for hit in hits] == [(identity, score) for identity, (score, _) in expected]
        for hit, (_, (_, row)) in zip(hits, expected, strict=True):
            number, start, end, _ = windows[row]
            assert hit.window is not None
            assert (hit.window.start, hit.window.end) == (start, end)
            assert hit.window.text == joined_text(documents[number], COLUMNS)[start:end]


def test_windows_larger_than_every_document_change_nothing(config: BuildConfig, tmp_path: Path) -> None:
    roomy = replace(config, encoder=replace(config.encoder, max_length=100))
    build_index(corpus(), tmp_path / "plain", replace(roomy, chunk=ChunkConfig()))
    build_index(corpus(), tmp_path / "chunked", replace(roomy, chunk=ChunkConfig(98, 8)))
    plain, chunked = SearchEngine(tmp_path / "plain"), SearchEngine(tmp_path / "chunked")
    for query in ("whale song", "the library of data"):
        hits = chunked.search(query, k=14)
        assert [(hit.id, hit.score) for hit in hits] == [(hit.id, hit.score) for hit in plain.search(query, k=14)]
        texts = {document.id: joined_text(document, COLUMNS) for document in corpus()}
        assert all(hit.window is not None and hit.window.text == texts[hit.id] for hit in hits)


@pytest.mark.parametrize("compacted", [False, True])
def test_an_index_of_windows_that_lived_answers_as_one_built_anew(
    compacted: bool, config: BuildConfig, tmp_path: Path
) -> None:
    index, documents = tmp_path / "index", corpus()
    build_index(documents, index, config)
    longer = replace(documents[4], text=f"{documents[4].text} the singing library")
    new = [Document("new", "deep data " * 20, "Title", {"year": 30}), longer]
    assert add_documents(new, index).rows > 0
    delete_documents(index, ["d0", "d9"])
    if compacted:
        compact_index(index, keep=1, grace=0)
    held = [document for document in expected_after_add(documents, new) if document.id not in ("d0", "d9")]
    assert_equals_fresh_build(index, held, tmp_path / "fresh", config)
    ours, theirs = (SearchEngine(tmp_path / name).search("whale song", k=14) for name in ("index", "fresh"))
    assert [hit.window for hit in ours] == [hit.window for hit in theirs]
    assert verify_index(index).passed
    manifest = load_manifest(index)
    assert manifest.rows == len(windows_of(held, config))
    assert (manifest.stored_rows == manifest.rows) == compacted


def test_windows_that_are_cut_otherwise_are_not_compacted(
    config: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an update of the tokenizer's library: rows would be mistaken for others."""
    build_index(corpus(), tmp_path / "index", config)
    delete_documents(tmp_path / "index", ["d0"])
    monkeypatch.setattr(chunking._Places, "best", lambda _, place: place - 1)
    with pytest.raises(MismatchError, match="no longer cut into the stored windows"):
        compact_index(tmp_path / "index", keep=1, grace=0)
