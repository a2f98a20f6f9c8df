"""Indexes of given embeddings equal indexes whose encoder computed them, through their whole life."""

import dataclasses
import re
import shutil
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from indexer import BuildConfig, Document, RunOptions, build_index, read_corpus
from indexer.encoders.load import load_encoder
from indexer.errors import ConfigError, CorpusError, ExistsError, IsotropeError, MismatchError
from indexer.models.resolution import resolve_spec
from indexer.pipeline.add import add_documents
from indexer.pipeline.build import require_same_recipe
from indexer.pipeline.compact import compact_index
from indexer.pipeline.generation import Generation
from indexer.pipeline.published_index import PublishedIndex
from indexer.pipeline.refit import refit_index
from indexer.pipeline.steps.ingest import ingest
from indexer.progress import NoProgress
from indexer.recipe.config import EncoderConfig, WhiteningConfig
from indexer.recipe.corpus_config import CorpusConfig
from indexer.recipe.index_config import IndexConfig, StoreConfig
from indexer.store.manifest import load_manifest
from search import SearchEngine, verify_index
from search.dedup import deduplicate_index
from tests.directories import snapshot
from tests.docs.pages import page
from tests.documents import DOCUMENTS

Rows = npt.NDArray[np.floating]
GIVEN = BuildConfig(
    encoder=EncoderConfig(kind="vectors"),
    whitening=WhiteningConfig(strength=0.25, centre="common"),
    store=StoreConfig(part_documents=4),
)
QUESTIONS = ["who sings in the sea", "how is bread made", "what do bees tell"]


def stored(index: Path) -> Rows:
    """Return all embeddings of an index."""
    return np.concatenate([np.load(index / part.name / "embeddings.npy") for part in load_manifest(index).parts])


def with_vectors(rows: Rows) -> list[Document]:
    return [dataclasses.replace(document, vector=row) for document, row in zip(DOCUMENTS, rows, strict=False)]


def random_documents(count: int = 9, dim: int = 6, seed: int = 0, **changes: Any) -> list[Document]:
    """Documents without text."""
    rows = np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)
    return [Document(f"d{number}", "", vector=row, **changes) for number, row in enumerate(rows)]


def hits(found: Sequence[Any]) -> list[tuple[str, float]]:
    return [(hit.id, hit.score) for hit in found]


@pytest.fixture
def encoded(tiny_config: BuildConfig, tmp_path: Path) -> Path:
    """An index encoded by a transformer, with a common mean."""
    config = dataclasses.replace(tiny_config, whitening=GIVEN.whitening)
    build_index(DOCUMENTS, tmp_path / "encoded", config)
    return tmp_path / "encoded"


# --- in place of an encoder


def test_given_embeddings_make_the_index_that_their_encoder_makes(encoded: Path, tmp_path: Path) -> None:
    report = build_index(with_vectors(stored(encoded)), tmp_path / "given", GIVEN)
    assert (report.rows_given, report.rows_encoded, report.parts_encoded, report.tokens) == (9, 0, 3, 0)
    for name in ("transforms/0001.safetensors", "segments/0001-00.faiss", "parts/00001/documents.parquet",
                 "parts/00001/embeddings.npy", "parts/00001/moments.npz"):  # fmt: skip
        assert (tmp_path / "given" / name).read_bytes() == (encoded / name).read_bytes(), name
    with SearchEngine(encoded) as one, SearchEngine(tmp_path / "given") as other:
        asked = other.search_vectors(one.encoder.encode(QUESTIONS, "query"), k=5)
        assert [hits(found) for found in asked] == [hits(found) for found in one.search_many(QUESTIONS, k=5)]
        assert [hit.text for hit in asked[0]] == [hit.text for hit in one.search(QUESTIONS[0], k=5)]


def test_they_deduplicate_alike(encoded: Path, tmp_path: Path) -> None:
    build_index(with_vectors(stored(encoded)), tmp_path / "given", GIVEN)
    one, other = deduplicate_index(encoded, 0.1), deduplicate_index(tmp_path / "given", 0.1)
    assert one.table.num_rows
    assert one.table == other.table
    copy = shutil.copytree(tmp_path / "given", tmp_path / "copy")
    assert deduplicate_index(tmp_path / "given", 0.1, against=copy).facts["dropped"] == 9


def test_embeddings_of_real_queries_give_the_mean_that_their_texts_give(
    tiny_config: BuildConfig, tmp_path: Path
) -> None:
    (tmp_path / "queries.txt").write_text("\n".join(QUESTIONS))
    whitening = WhiteningConfig(strength=0.25, query_sample=str(tmp_path / "queries.txt"))
    build_index(DOCUMENTS, tmp_path / "encoded", dataclasses.replace(tiny_config, whitening=whitening))
    np.save(tmp_path / "queries.npy", load_encoder(tiny_config.encoder).encode(QUESTIONS, "query"))
    whitening = WhiteningConfig(strength=0.25, query_sample=str(tmp_path / "queries.npy"))
    given = dataclasses.replace(GIVEN, whitening=whitening)
    build_index(with_vectors(stored(tmp_path / "encoded")), tmp_path / "given", given)
    one, other = (tmp_path / name / "transforms/0001.safetensors" for name in ("encoded", "given"))
    assert one.read_bytes() == other.read_bytes()
    assert load_manifest(tmp_path / "given").transform["query_texts"]["texts"] == len(QUESTIONS)
    np.save(tmp_path / "queries.npy", np.ones((1, 32), np.float32))
    with pytest.raises(ExistsError, match=r"the queries in whitening\.query_sample have changed"):
        build_index(with_vectors(stored(tmp_path / "encoded")), tmp_path / "given", given)


def test_without_embeddings_of_queries_there_is_one_mean_and_a_note(tmp_path: Path) -> None:
    config = dataclasses.replace(GIVEN, whitening=WhiteningConfig(strength=0.25))
    report = build_index(random_documents(60), tmp_path / "index", config)
    build_index(random_documents(60), tmp_path / "common", GIVEN)
    assert "queries are centred by the mean of the documents" in report.notes[0]
    with SearchEngine(tmp_path / "index") as one, SearchEngine(tmp_path / "common") as other:
        query = np.random.default_rng(1).normal(size=(1, 6))
        assert hits(one.search_vectors(query)[0]) == hits(other.search_vectors(query)[0])


def test_given_vectors_are_whitened_only_if_the_recipe_says_so_and_a_note_names_the_ways(tmp_path: Path) -> None:
    documents, recipe = random_documents(60), BuildConfig(encoder=GIVEN.encoder)
    (note,) = build_index(documents, tmp_path / "as-given", recipe).notes
    assert "indexed as they are" in note
    (anchor,) = re.findall(r"https://isotrope\.github\.io/isotrope/benchmarks/#([\w-]+)\)", note)
    assert f"## {anchor.replace('-', ' ')}\n" in page("benchmarks").lower()
    assert "evaluate_retrieval(index, RetrievalOptions(beir, query_vectors=file), " in note
    assert 'refit_index(index, ["whitening.strength=0.25"])' in note
    whitened = recipe.with_overrides(["whitening.strength=0.25"])
    assert not any("as they are" in note for note in build_index(documents, tmp_path / "whitened", whitened).notes)
    refit_index(tmp_path / "as-given", ["whitening.strength=0.25"])
    first, second = (tmp_path / name / "transforms" for name in ("as-given", "whitened"))
    assert (first / "0002.safetensors").read_bytes() == (second / "0001.safetensors").read_bytes()
    refit_index(tmp_path / "as-given", ["whitening.strength=none"])
    with SearchEngine(tmp_path / "as-given") as engine:
        one, other = documents[0].vector, documents[1].vector
        assert one is not None
        assert other is not None
        (hit,) = (hit for hit in engine.search_vectors(one[None], 60)[0] if hit.id == "d1")
        assert hit.score == pytest.approx(one @ other / np.linalg.norm(one) / np.linalg.norm(other), abs=1e-6)


@pytest.mark.parametrize("stated", [False, True])
def test_only_a_stated_strength_whitens_given_vectors(stated: bool) -> None:
    kind = EncoderConfig(kind="vectors")
    strength: float | str = 0.25 if stated else "none"
    section: dict[str, Any] = {"whitening": {"strength": 0.25}} if stated else {"whitening": {"centre": "common"}}
    settings = ["whitening.strength=0.25"] if stated else []
    whitening = WhiteningConfig(strength=0.25) if stated else WhiteningConfig()
    recipes = [
        BuildConfig(encoder=kind, whitening=whitening),
        BuildConfig.from_dict({"encoder": {"kind": "vectors"}, **section}),
        BuildConfig().with_overrides([*settings, "encoder.kind=vectors"]),
        BuildConfig().with_overrides(["index.type=flat"]).with_overrides(["encoder.kind=vectors", *settings]),
        BuildConfig(whitening=whitening).with_columns({"vector_column": "v"}),
    ]
    for recipe in recipes:
        assert recipe.whitening.strength == strength
        assert BuildConfig.from_dict(recipe.to_dict()) == recipe  # as manifests store it
        assert BuildConfig.from_dict(tomllib.loads(recipe.to_toml())) == recipe
    with pytest.raises(ConfigError, match=r"Fix: config.whitening.strength = 0.25"):
        BuildConfig().with_overrides(["encoder.kind=vectors", "whitening.dim=4"])


def test_texts_cannot_be_asked(tmp_path: Path) -> None:
    named = dataclasses.replace(GIVEN, encoder=EncoderConfig(kind="vectors", model="our model, version 3"))
    build_index(random_documents(), tmp_path / "index", named)
    with pytest.raises(ConfigError, match='computed by "our model, version 3" and came with the corpus, so no text'):
        SearchEngine(tmp_path / "index").search("whales")
    with pytest.raises(ConfigError, match=r"there is no model to name\. Fix: leave out model"):
        SearchEngine(tmp_path / "index", model=tmp_path).search("whales")
    with pytest.raises(ConfigError, match=r"expected \(n, 6\)"):
        SearchEngine(tmp_path / "index").search_vectors(np.ones((1, 5)))


# --- builds


def test_bytes_do_not_depend_on_the_source_nor_on_threads(tmp_path: Path) -> None:
    documents = random_documents()
    rows = np.stack([document.vector for document in documents if document.vector is not None])
    np.save(tmp_path / "X.npy", rows.astype(np.float64))
    (tmp_path / "X.ids.txt").write_text("".join(f"{document.id}\n" for document in documents))
    table = {"id": [document.id for document in documents], "vector": pa.array(rows.tolist(), pa.list_(pa.float32()))}
    pq.write_table(pa.table(table), tmp_path / "docs.parquet")
    build_index(documents, tmp_path / "given", GIVEN)
    for name, workers in (("X.npy", 1), ("docs.parquet", 2)):
        corpus = read_corpus(tmp_path / name, config=GIVEN.corpus)
        build_index(corpus, tmp_path / f"of-{name}", GIVEN, RunOptions(threads=3, workers=workers))
        assert snapshot(tmp_path / f"of-{name}") == snapshot(tmp_path / "given")


def test_an_interrupted_build_continues(tmp_path: Path) -> None:
    documents = random_documents()

    def cut_short() -> Iterator[Document]:
        yield from documents[:6]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_index(cut_short(), tmp_path / "index", GIVEN)
    report = build_index(documents, tmp_path / "index", GIVEN)
    assert (report.parts_encoded, report.parts_kept, report.rows_given) == (2, 1, 5)
    build_index(documents, tmp_path / "whole", GIVEN)
    assert snapshot(tmp_path / "index") == snapshot(tmp_path / "whole")
    assert build_index(documents, tmp_path / "index", GIVEN).up_to_date


def test_other_vectors_under_the_same_ids_are_another_corpus(tmp_path: Path) -> None:
    build_index(random_documents(), tmp_path / "index", GIVEN)
    with pytest.raises(ExistsError, match=r'documents 1 to 4 differ \(the first is "d0"\)'):
        build_index(random_documents(seed=1), tmp_path / "index", GIVEN)
    report = build_index(random_documents(seed=1, dim=7), tmp_path / "index", GIVEN, RunOptions(overwrite=True))
    assert (report.generation, report.dim) == (2, 7)


def test_the_column_they_were_read_from_does_not_matter(tmp_path: Path) -> None:
    build_index(random_documents(), tmp_path / "index", GIVEN)
    renamed = dataclasses.replace(GIVEN, corpus=CorpusConfig(vector_column="emb"))
    assert build_index(random_documents(), tmp_path / "index", renamed).up_to_date


def test_an_index_of_an_earlier_version_is_still_that_of_its_recipe_and_corpus(tmp_path: Path) -> None:
    """Settings unknown to it have their defaults, and do not change the keys of its parts."""
    old = Path(__file__).parents[2] / "data/format1"
    index = Path(shutil.copytree(old / "index", tmp_path / "index"))
    manifest = load_manifest(index)
    assert "vector_column" not in manifest.config["corpus"]
    config = BuildConfig.from_dict(manifest.config)
    spec = resolve_spec(config.encoder, old / "model", rules=manifest.encoder["identity"]["rules"])
    generation = Generation(index, PublishedIndex(index, manifest), overwrite=False)
    generation.spec = spec
    require_same_recipe(generation)
    documents = list(SearchEngine(index, model=old / "model").index.documents.all_documents())
    assert [slot.name for slot in ingest(documents, generation, NoProgress()).parts] == [
        part.name for part in manifest.parts
    ]


def test_they_may_be_stored_in_half(tmp_path: Path) -> None:
    half = dataclasses.replace(GIVEN, store=StoreConfig(part_documents=4, embeddings="float16"))
    build_index(random_documents(), tmp_path / "index", half)
    assert stored(tmp_path / "index").dtype == np.float16
    assert build_index(random_documents(), tmp_path / "index", half).up_to_date
    for number in (1e6, 1e-9):
        huge = [*random_documents(), Document("odd", "", vector=np.full(6, number, np.float32))]
        with pytest.raises(CorpusError, match='document "odd": its vector cannot be stored as float16: a number is'):
            build_index(huge, tmp_path / "other", half)


def test_a_document_without_a_vector_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r'document 1 \(id "d0"\): the vector "vector" is null'):
        build_index(DOCUMENTS, tmp_path / "index", GIVEN)
    assert not (tmp_path / "index" / "manifests").exists()


def test_approximate_indexes_are_measured_with_embeddings_of_queries(tmp_path: Path) -> None:
    np.save(tmp_path / "queries.npy", np.random.default_rng(1).normal(size=(20, 6)))
    index = IndexConfig(type="IVF4,Flat", recall=0.9, queries=str(tmp_path / "queries.npy"))
    config = dataclasses.replace(GIVEN, index=index, store=StoreConfig(part_documents=100))
    report = build_index(random_documents(400), tmp_path / "index", config)
    assert report.quality["recall_at_10"]["value"] >= 0.9


# --- compatible embeddings


def test_embeddings_of_another_model_are_not_mixed(tmp_path: Path) -> None:
    named = dataclasses.replace(GIVEN, encoder=EncoderConfig(kind="vectors", model="ours"))
    build_index(random_documents(), tmp_path / "unnamed", GIVEN)
    build_index(random_documents(), tmp_path / "named", named)
    build_index(random_documents(dim=7), tmp_path / "longer", GIVEN)
    with pytest.raises(MismatchError, match="have different encoders"):
        deduplicate_index(tmp_path / "unnamed", 0.9, against=tmp_path / "named")
    with pytest.raises(MismatchError, match=r"has embeddings of 7 numbers, .* of 6"):
        deduplicate_index(tmp_path / "unnamed", 0.9, against=tmp_path / "longer")
    with pytest.raises(ExistsError, match='model is "ours", expected ""'):
        build_index(random_documents(), tmp_path / "unnamed", named)


def test_a_transform_is_taken_from_an_index_of_the_same_model(tmp_path: Path) -> None:
    build_index(random_documents(60), tmp_path / "donor", GIVEN)
    build_index(random_documents(seed=1), tmp_path / "index", GIVEN, transform_from=tmp_path / "donor")
    one, other = (load_manifest(tmp_path / name) for name in ("donor", "index"))
    assert one.files["transforms/0001.safetensors"] == other.files["transforms/0001.safetensors"]
    named = dataclasses.replace(GIVEN, encoder=EncoderConfig(kind="vectors", model="ours"))
    with pytest.raises(MismatchError, match='model is "ours"'):
        build_index(random_documents(), tmp_path / "other", named, transform_from=tmp_path / "donor")


# --- life


def test_added_documents_replace_those_with_another_vector(tmp_path: Path) -> None:
    first, second = random_documents(12), random_documents(12, seed=1)
    build_index(first, tmp_path / "index", GIVEN)
    news = [first[0], second[1], dataclasses.replace(second[2], id="new")]
    report = add_documents(news, tmp_path / "index")
    assert (report.added, report.replaced, report.unchanged, report.rows_given) == (1, 1, 1, 2)
    with SearchEngine(tmp_path / "index") as engine:
        assert len(engine) == 13
        asked = np.stack([document.vector for document in second[1:3] if document.vector is not None])
        assert [found[0].id for found in engine.search_vectors(asked, k=1)] == ["d1", "new"]
    again = add_documents(news, tmp_path / "index")
    assert (again.generation, again.unchanged) == (report.generation, 3)


def test_added_vectors_must_be_as_long_as_the_others(tmp_path: Path) -> None:
    build_index(random_documents(), tmp_path / "index", GIVEN)
    add_documents([dataclasses.replace(random_documents()[1], id="small")], tmp_path / "index")
    before = snapshot(tmp_path / "index")
    for wrong in (random_documents(dim=7), random_documents(dim=7)[:1]):  # alone, it is merged with "small"
        with pytest.raises(CorpusError, match=r'^document "d0": its vector has 7 numbers, those of .* have 6'):
            add_documents(wrong, tmp_path / "index")
    assert load_manifest(tmp_path / "index").generation == 2
    assert before.keys() <= snapshot(tmp_path / "index").keys()


@pytest.mark.parametrize("storage", ["float32", "float16"])
def test_a_compacted_index_is_the_one_that_a_build_makes(tmp_path: Path, storage: Any) -> None:
    config = dataclasses.replace(GIVEN, store=StoreConfig(part_documents=4, embeddings=storage))
    first, second = random_documents(), random_documents(seed=1)
    build_index(first, tmp_path / "index", config)
    add_documents([second[3]], tmp_path / "index")
    assert compact_index(tmp_path / "index", keep=1, grace=0).folded
    build_index([*first[:3], *first[4:], second[3]], tmp_path / "fresh", config, transform_from=tmp_path / "index")
    one, other = load_manifest(tmp_path / "index"), load_manifest(tmp_path / "fresh")
    assert [part.document_key for part in one.parts] == [part.document_key for part in other.parts]
    assert one.files[one.segments[0].file] == other.files[other.segments[0].file]
    assert np.array_equal(stored(tmp_path / "index"), stored(tmp_path / "fresh"))


def test_a_refit_needs_no_encoder(tmp_path: Path) -> None:
    build_index(random_documents(60), tmp_path / "index", GIVEN)
    report = refit_index(tmp_path / "index", ["whitening.strength=1", "whitening.dim=3"])
    assert (report.generation, report.dim) == (2, 3)
    fresh = dataclasses.replace(GIVEN, whitening=WhiteningConfig(strength=1.0, dim=3, centre="common"))
    build_index(random_documents(60), tmp_path / "fresh", fresh)
    one, other = load_manifest(tmp_path / "index"), load_manifest(tmp_path / "fresh")
    assert one.files["transforms/0002.safetensors"] == other.files["transforms/0001.safetensors"]


def test_an_index_of_given_embeddings_verifies_and_damage_is_found(tmp_path: Path) -> None:
    build_index(random_documents(60), tmp_path / "index", GIVEN)
    assert verify_index(tmp_path / "index").passed
    shutil.copytree(tmp_path / "index", tmp_path / "damaged")
    path = tmp_path / "damaged/parts/00003/embeddings.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    assert any("embeddings.npy" in problem for problem in verify_index(tmp_path / "damaged").problems)


# --- recipes


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"encoder": {"precision": "float32"}}, 'encoder.precision is "float32", but encoder.kind is "vectors"'),
        ({"encoder": {"layers": [1, -1]}}, "encoder.layers is [1, -1], but encoder.kind"),
        ({"encoder": {"query_prompt": "query: "}}, 'encoder.query_prompt is "query: "'),
        ({"chunk": {"tokens": 64}}, "chunk.tokens is 64"),
        ({"whitening": {"query_sample": "queries.txt"}}, 'whitening.query_sample is "queries.txt"'),
        ({"index": {"queries": "queries.txt"}}, 'index.queries is "queries.txt"'),
        ({"corpus": {"vector_column": "body", "text_column": "body"}}, 'corpus.vector_column is "body", which is also'),
        (
            {"corpus": {"drop": ["vector"], "vector_column": "vector"}},
            'corpus.vector_column is "vector", which is also',
        ),
    ],
)
def test_settings_that_make_no_sense_are_refused(change: dict[str, dict[str, Any]], what: str) -> None:
    plain = {"encoder": {"kind": "vectors"} | change.pop("encoder", {})} | change
    with pytest.raises(ConfigError) as caught:
        BuildConfig.from_dict(plain)
    assert str(caught.value).startswith(what)


def test_a_column_of_vectors_needs_the_kind(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'corpus\.vector_column is "emb", but encoder\.kind is "transformer"'):
        BuildConfig(corpus=CorpusConfig(vector_column="emb"))
    config = BuildConfig().with_columns({"vector_column": "emb"})
    assert (config.encoder.kind, config.corpus.vector_column) == ("vectors", "emb")
    assert BuildConfig().with_overrides(["encoder.kind=vectors"]).corpus.vector_column == "vector"


def test_the_model_is_but_a_name() -> None:
    assert EncoderConfig(kind="vectors").model == ""
    one, other = (EncoderConfig(kind="vectors", model=name) for name in ("a", "b"))
    assert resolve_spec(one).fingerprint != resolve_spec(other).fingerprint
    config = BuildConfig(encoder=one)
    assert BuildConfig.from_dict(config.to_dict()) == config


@pytest.mark.parametrize("call", ["encode", "tokenize", "states", "dim"])
def test_the_place_of_the_encoder_says_that_there_is_none(call: str) -> None:
    encoder = load_encoder(EncoderConfig(kind="vectors"))
    calls: dict[str, Callable[[], Any]] = {
        "encode": lambda: encoder.encode(["a"], "query"),
        "tokenize": lambda: encoder.tokenize(["a"], "query"),
        "states": lambda: encoder.states(["a"], [((-1,), "mean")]),
        "dim": lambda: encoder.dim,
    }
    with pytest.raises(IsotropeError, match="no text can be encoded here"):
        calls[call]()
