"""`encoder.kind = "static"`: indexes of word vectors through their whole life, also with SIF."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import save_file

from indexer import BuildConfig, Document, build_index
from indexer.encoders.load import load_encoder
from indexer.encoders.protocol import EncodeStats
from indexer.encoders.static.encoder import StaticEncoder
from indexer.encoders.static.tables import load_table
from indexer.errors import ConfigError, MismatchError, ModelError
from indexer.models.identity import UNLIMITED
from indexer.models.resolution import resolve_spec
from indexer.pipeline.add import add_documents
from indexer.pipeline.compact import compact_index
from indexer.pipeline.refit import refit_index
from indexer.pipeline.steps.index_segment import COUNTS
from indexer.recipe.config import EncoderConfig, WhiteningConfig
from indexer.recipe.corpus_config import ChunkConfig
from indexer.recipe.index_config import StoreConfig
from indexer.recipe.run_options import RunOptions
from indexer.store.manifest import load_manifest
from search import SearchEngine, verify_index
from search.dedup import deduplicate_index
from search.export.sentence_transformers import export_sentence_transformers
from tests.directories import snapshot
from tests.documents import DOCUMENTS

Rows = npt.NDArray[np.floating]
WORDS = sorted({word for document in DOCUMENTS for word in document.text.lower().replace(".", "").split()})
DIM = 7


def vectors() -> Rows:
    """A vector for each word, rounded so that text represents it exactly."""
    return np.random.default_rng(3).integers(-40, 41, (len(WORDS), DIM)).astype(np.float32) / 8 + np.float32(0.5)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_table(tmp_path / "words.txt")


def write_table(path: Path) -> Path:
    """The words and their vectors in GloVe's format."""
    lines = [" ".join([word, *(f"{value:g}" for value in row)]) for word, row in zip(WORDS, vectors(), strict=True)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def static(table: Path, **settings: Any) -> BuildConfig:
    encoder = EncoderConfig(kind="static", model=str(table), **settings)
    return BuildConfig(encoder=encoder, store=StoreConfig(part_documents=4))


def known(text: str) -> list[str]:
    """Return the words of a text that have a vector, by the simplest rule for these texts."""
    return [word for word in text.lower().replace(".", " ").split() if word in WORDS]


def stored(index: Path) -> Rows:
    return np.concatenate([np.load(index / part.name / "embeddings.npy") for part in load_manifest(index).parts])


def joined(document: Document) -> str:
    return f"{document.title or ''} {document.text}"


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_a_text_is_its_words_pooled(table: Path, pooling: Any) -> None:
    encoder = load_encoder(static(table, pooling=pooling).encoder)
    texts = [document.text for document in DOCUMENTS]
    rows = dict(zip(WORDS, vectors().astype(np.float64), strict=True))
    expected = [getattr(np, pooling)([rows[word] for word in known(text)], axis=0) for text in texts]
    np.testing.assert_allclose(encoder.encode(texts, "document"), expected, atol=1e-6)


def test_words_without_a_vector_are_left_out_and_a_text_of_none_is_the_mean_of_the_table(table: Path) -> None:
    encoder, log = load_encoder(static(table).encoder), EncodeStats()
    word = known(DOCUMENTS[0].text)[0]
    rows = encoder.encode([f"qqq {word} zzz", "qqq zzz", "", word], "document", log)
    np.testing.assert_array_equal(rows[0], rows[3])
    np.testing.assert_allclose(rows[1], vectors().mean(axis=0), atol=1e-6)
    np.testing.assert_array_equal(rows[2], rows[1])
    assert log.lengths == [1, 0, 0, 1]


def test_texts_are_not_cut_unless_the_recipe_says_so_and_then_they_are_counted(table: Path) -> None:
    words = known(DOCUMENTS[0].text)[:3]
    whole, log = load_encoder(static(table).encoder), EncodeStats()
    assert whole.spec.identity.max_length == UNLIMITED
    cut = load_encoder(static(table, max_length=2).encoder)
    rows = cut.encode([" ".join(words)], "document", log)
    np.testing.assert_array_equal(rows, whole.encode([" ".join(words[:2])], "document"))
    assert (log.truncated, log.lengths) == (1, [3])


def test_rows_do_not_depend_on_the_other_texts(table: Path) -> None:
    encoder = load_encoder(static(table).encoder)
    texts = [joined(document) for document in DOCUMENTS]
    alone = np.concatenate([encoder.encode([text], "document") for text in texts])
    np.testing.assert_array_equal(encoder.encode(texts * 40, "document")[: len(texts)], alone)


def test_the_role_selects_the_prefix(table: Path) -> None:
    word, other = known(DOCUMENTS[0].text)[:2]
    encoder = load_encoder(static(table, query_prompt=f"{other} ").encoder)
    np.testing.assert_array_equal(encoder.encode([word], "query"), encoder.encode([f"{other} {word}"], "document"))


def test_the_identity_is_the_table_and_the_settings_not_its_name(table: Path) -> None:
    renamed = table.rename(table.with_name("other.vec"))
    spec = resolve_spec(static(renamed).encoder)
    renamed.rename(table)
    assert spec.fingerprint == resolve_spec(static(table).encoder).fingerprint
    assert spec.fingerprint != resolve_spec(static(table, pooling="max").encoder).fingerprint
    table.write_text(table.read_text().replace("0.5", "0.625", 1))
    assert spec.fingerprint != resolve_spec(static(table).encoder).fingerprint


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pooling": "cls"}, "no token states"),
        ({"pooling": "sbert-wk", "layers": (0, 1)}, "no token states and no layers"),
        ({"layers": (1,)}, "but static tables have none"),
        ({"precision": "int8"}, "a static table is float32"),
        ({"model": EncoderConfig.model}, "is not a table"),
    ],
)
def test_settings_that_a_table_cannot_follow_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("[", r"\[")):
        EncoderConfig(**{"kind": "static", "model": "words.txt", **settings})


def test_a_table_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"glove\.txt: no such file"):
        resolve_spec(static(tmp_path / "glove.txt").encoder)


def test_counts_of_an_index_that_grew_are_those_of_a_fresh_build(table: Path, tmp_path: Path) -> None:
    """Tokens, truncated texts and texts without a known word add up over several additions."""
    config, index = static(table, max_length=6), tmp_path / "index"
    new = [Document("n0", "bees dance"), Document("n1", "the deep sea " * 9), Document("n2", "zyzzyva")]
    build_index(DOCUMENTS, index, config)
    for document in new:
        add_documents([document], index)
    build_index([*DOCUMENTS, *new], tmp_path / "fresh", config)
    grown, fresh = (load_manifest(path).quality for path in (index, tmp_path / "fresh"))
    assert {name: grown[name] for name in COUNTS} == {name: fresh[name] for name in COUNTS}
    assert fresh["tokens"] > fresh["truncated"] > fresh["without_tokens"] == 1
    compact_index(index)
    assert {name: load_manifest(index).quality[name] for name in COUNTS} == {name: fresh[name] for name in COUNTS}


def test_an_index_finds_deduplicates_grows_and_is_refitted_without_the_table(table: Path, tmp_path: Path) -> None:
    index, more = tmp_path / "index", [Document("new", DOCUMENTS[0].text), Document("none", "qqq zzz")]
    report = build_index(DOCUMENTS, index, static(table))
    assert (report.backend, report.documents) == ("static, float32", len(DOCUMENTS))
    assert SearchEngine(index).search(joined(DOCUMENTS[2]), 1)[0].id == DOCUMENTS[2].id
    before = stored(index)
    add_documents(more, index)
    assert load_manifest(index).quality["without_tokens"] == 1
    same = Document("same", f"{DOCUMENTS[0].title} {DOCUMENTS[0].text}")
    add_documents([same], index)
    found = deduplicate_index(index, 0.999).table.to_pylist()
    assert ("same", "d0") in [(row["id"], row["kept_id"]) for row in found]
    table.rename(tmp_path / "gone.txt")
    refit_index(index, ["whitening.strength=0.5", "whitening.centre=common"])
    compact_index(index)
    np.testing.assert_array_equal(stored(index)[: len(before)], before)
    verify_index(index)
    with pytest.raises(ModelError, match="no longer exists"):
        SearchEngine(index).search("whales")
    assert SearchEngine(index, model=tmp_path / "gone.txt").search("whales", 1)


@pytest.mark.check
def test_any_number_of_workers_makes_the_same_bytes(table: Path, tmp_path: Path) -> None:
    build_index(DOCUMENTS, tmp_path / "one", static(table))
    build_index(DOCUMENTS, tmp_path / "two", static(table), RunOptions(workers=2))
    build_index(DOCUMENTS[:5], tmp_path / "three", static(table))
    assert snapshot(tmp_path / "one") == snapshot(tmp_path / "two") != snapshot(tmp_path / "three")


def test_another_table_is_refused(table: Path, tmp_path: Path) -> None:
    build_index(DOCUMENTS, tmp_path / "index", static(table))
    table.write_text(table.read_text().replace("0.5", "0.625", 1))
    with pytest.raises(MismatchError, match="words has sha256"):
        SearchEngine(tmp_path / "index").search("whales")


def test_long_documents_are_cut_into_windows_of_words(table: Path, tmp_path: Path) -> None:
    text = " ".join(word for document in DOCUMENTS for word in known(document.text))
    config = dataclasses.replace(static(table), chunk=ChunkConfig(tokens=8, overlap=2))
    build_index([Document("long", text), *DOCUMENTS[:3]], tmp_path / "index", config)
    assert load_manifest(tmp_path / "index").rows > 4
    window = SearchEngine(tmp_path / "index").search(" ".join(text.split()[-6:]), 1)[0].window
    assert window is not None
    assert window.end == len(text)


@pytest.fixture
def model2vec(tmp_path: Path, table: Path) -> Path:
    """The same words as a model2vec folder in int8."""
    folder = tmp_path / "model2vec"
    folder.mkdir()
    loaded = load_table(table)
    tokenizer = json.loads(loaded.tokenizer.to_str())
    save_file({"embeddings": (np.vstack([vectors() * 8, np.zeros(DIM)])).astype(np.int8)}, folder / "model.safetensors")
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "config.json").write_text(json.dumps({"model_type": "model2vec", "normalize": True}))
    return folder


def test_a_model2vec_folder_is_a_table_too(model2vec: Path, table: Path) -> None:
    texts = [joined(document) for document in DOCUMENTS]
    of_folder = load_encoder(static(model2vec).encoder).encode(texts, "document")
    np.testing.assert_allclose(of_folder, 8 * load_encoder(static(table).encoder).encode(texts, "document"), atol=1e-4)


def test_a_real_table_ranks_what_is_alike(shared: Path) -> None:
    encoder = load_encoder(static(shared / "models/potion-base-4m-int8").encoder)
    assert isinstance(encoder, StaticEncoder)
    rows = encoder.encode(["a man plays the guitar", "someone playing guitar", "the stock market fell"], "document")
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    assert unit[0] @ unit[1] > 0.7 > 0.3 > unit[0] @ unit[2]


def test_the_command_line_builds_queries_and_measures_a_table(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = _runner(monkeypatch)
    rows = [{"id": document.id, "text": joined(document)} for document in DOCUMENTS]
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"id": "x", "text": "☃"}]))
    settings = ["--set", "encoder.kind=static", "--set", f"encoder.model={table}"]
    run("build", str(tmp_path / "docs.jsonl"), str(tmp_path / "index"), *settings, "--quiet")
    assert "1 texts have no known tokens" in capsys.readouterr().err
    run("inspect", str(tmp_path / "index"))
    shown = capsys.readouterr().out
    assert "kind static" in shown
    assert str(UNLIMITED) not in shown
    run("query", str(tmp_path / "index"), "-k", "1", joined(DOCUMENTS[1]), "--json")
    assert json.loads(capsys.readouterr().out)["hits"][0]["id"] == DOCUMENTS[1].id


def _runner(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    from search.cli import cli

    def run(*arguments: str) -> None:
        cli.main(list(arguments), standalone_mode=False)

    return run


@pytest.mark.parametrize("whitening", [WhiteningConfig(), WhiteningConfig(strength="none")])
def test_sentence_transformers_gives_the_same_vectors(table: Path, tmp_path: Path, whitening: WhiteningConfig) -> None:
    build_index(DOCUMENTS, tmp_path / "index", dataclasses.replace(static(table), whitening=whitening))
    require_same_vectors_in_sentence_transformers(tmp_path)


def require_same_vectors_in_sentence_transformers(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    export_sentence_transformers(tmp_path / "index", tmp_path / "folder")
    engine = SearchEngine(tmp_path / "index")
    model = SentenceTransformer(str(tmp_path / "folder"), device="cpu")
    texts = [" ".join(known(document.text)) for document in DOCUMENTS]
    np.testing.assert_allclose(model.encode_document(texts), engine.embed(texts, "document"), atol=1e-5)
    np.testing.assert_allclose(model.encode_query(texts), engine.embed(texts, "query"), atol=1e-5)


def test_what_other_programs_cannot_compute_is_not_exported(table: Path, tmp_path: Path) -> None:
    build_index(DOCUMENTS, tmp_path / "max", static(table, pooling="max"))
    with pytest.raises(ConfigError, match='pooling is "max"'):
        export_sentence_transformers(tmp_path / "max", tmp_path / "folder")
