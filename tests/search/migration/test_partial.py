"""`isotrope migrate --mode map` and `--mode rescore`: answers against slow oracles, and what is refused."""

import ast
import json
import re
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from indexer import BuildConfig, Document, add_documents, build_index, delete_documents, refit_index
from indexer.encoders.load import open_encoder
from indexer.errors import ConfigError, ExistsError, LockedError, MismatchError, ModelError
from indexer.models.resolution import resolve_spec
from indexer.progress import NoProgress
from indexer.recipe.run_options import RunOptions
from indexer.store.files import writer_lock
from indexer.transforms import transform_from_bytes
from search import SearchEngine
from search.distill import distill_index
from search.erasure import erase_documents
from search.index import Index, LiveRows
from search.migration import MigrationOptions, compare_encoders, map_index, rescore_index
from search.migration.comparison import MeasuredWay, measure_encoders, migration_command
from search.migration.maps import fit_map
from search.migration.partial import best_map
from search.ranking.rescorer import VECTORS, KeptVectors
from search.verify import verify_index
from tests.object_storage import Storage
from tests.search.cli.test_cli import isotrope
from tests.search.distill.test_distill import answering_by
from tests.search.migration.test_migration import LAYERS, long_documents

QUERY = "whale song of the deep sea"
DEPTH = 20
TASK = MigrationOptions(assignments=LAYERS)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, tiny_model: Callable[[str], Path]) -> Path:
    folder = tmp_path_factory.mktemp("migrated") / "index"
    config = BuildConfig.from_dict({"encoder": {"model": str(tiny_model("bert")), "precision": "float32"}})
    build_index(long_documents(70), folder, config)
    return folder


@pytest.fixture
def index(built: Path, tmp_path: Path) -> Path:
    shutil.copytree(built, tmp_path / "index")
    return tmp_path / "index"


def new_encoder(index: Path) -> "tuple[Callable[..., np.ndarray], BuildConfig]":
    config = Index.open(index).config.with_overrides(LAYERS)
    encoder = open_encoder(resolve_spec(config.encoder), RunOptions())
    return encoder.encode, config


def test_a_mapped_index_answers_by_the_new_encoder_and_the_stored_vectors(index: Path, tmp_path: Path) -> None:
    compared = measure_encoders(index, TASK, RunOptions(), NoProgress())
    expected = fit_map(best_map(compared.result), compared.encoded.sides)
    before = {path: path.read_bytes() for path in index.rglob("*.index")}
    result = map_index(index, tmp_path / "map", TASK)
    assert result["results"] == compared.result["results"]
    encode, _ = new_encoder(index)
    engine = SearchEngine(index)
    (vector,) = np.asarray(engine.embed([QUERY]))
    np.testing.assert_allclose(vector, expected(encode([QUERY], "query"))[0], atol=1e-5)
    stored = np.concatenate([rows for _, rows in LiveRows(engine.index).vector_blocks()])
    order = np.argsort(-(stored @ vector), kind="stable")[:5].tolist()
    assert [hit.id for hit in engine.search(QUERY, 5)] == engine.index.documents.ids(order)
    assert {path: path.read_bytes() for path in before} == before
    add_documents([Document("new", "whale song")], index)  # by the stored encoder
    delete_documents(index, ["d3"])
    assert SearchEngine(index).search("whale song", 3)
    verify_index(index)
    with pytest.raises(ConfigError, match="not by its own encoder"):
        compare_encoders(index, TASK)
    with pytest.raises(ConfigError, match="is a query encoder"):
        compare_encoders(index, MigrationOptions(str(tmp_path / "map")))
    with pytest.raises(ConfigError, match=r"queries\.encoder"):  # a new space
        refit_index(index)


def test_a_changed_map_is_refused(index: Path, tmp_path: Path) -> None:
    map_index(index, tmp_path / "map", TASK)
    file = tmp_path / "map/map.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(MismatchError, match="differs from the query encoder in the recipe"):
        SearchEngine(index).search(QUERY)
    file.write_bytes(b"no map")
    with pytest.raises(ModelError, match="is not a map"):
        answering_by(SearchEngine(index), tmp_path / "map").search(QUERY)


def test_rescored_hits_are_in_the_order_of_the_new_vectors(index: Path, tmp_path: Path) -> None:
    folder = tmp_path / "rescorer"
    old = SearchEngine(index)
    found = [hit.id for hit in old.search(QUERY, 70)]
    rescore_index(index, folder, TASK, DEPTH)
    encode, _ = new_encoder(index)
    transform = transform_from_bytes((folder / "transform.safetensors").read_bytes(), "test")
    texts = {document.id: document.text for document in long_documents(70)}
    question = transform.transform(encode([QUERY], "query"), "query")[0]
    vectors = transform.transform(encode([texts[name] for name in found[:DEPTH]], "document"), "document")
    scores = dict(zip(found, (vectors @ question).tolist(), strict=False))
    answer = SearchEngine(index).search(QUERY, 70)
    assert [hit.id for hit in answer] == [*sorted(found[:DEPTH], key=lambda name: -scores[name]), *found[DEPTH:]]
    assert [hit.rerank_score for hit in answer[:DEPTH]] == pytest.approx(
        sorted(scores.values(), reverse=True), abs=1e-5
    )
    kept = KeptVectors(folder / VECTORS, transform.dim)
    assert len(kept) == DEPTH
    SearchEngine(index).search(QUERY, 5)
    assert len(kept) == DEPTH  # nothing new was met
    SearchEngine(index).search("library data", 5)
    assert len(kept) > DEPTH


@pytest.mark.parametrize("damage", ["text", "folder", "short"])
def test_vectors_that_cannot_be_kept_are_made_again(index: Path, tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "rescorer"
    rescore_index(index, folder, TASK, DEPTH)
    expected = SearchEngine(index).search(QUERY, 5)
    file = folder / VECTORS
    if damage == "short":
        with sqlite3.connect(file) as database:
            database.execute("UPDATE vectors SET vector = x'00'")
    else:
        file.unlink()
        file.write_bytes(b"no database" * 100) if damage == "text" else file.mkdir()
    engine = SearchEngine(index)
    for _ in range(2):  # then from memory
        assert [hit.id for hit in engine.search(QUERY, 5)] == [hit.id for hit in expected]


def test_what_is_refused(index: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="depth is 0"):
        rescore_index(index, tmp_path / "x", TASK, 0)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    with pytest.raises(ExistsError):
        map_index(index, tmp_path / "full", TASK)
    with pytest.raises(ConfigError, match="inside"):
        map_index(index, index / "map", TASK)
    rescore_index(index, tmp_path / "rescorer", TASK, DEPTH)
    transform = tmp_path / "rescorer/transform.safetensors"
    data = transform.read_bytes()
    transform.write_bytes(data[:-4] + b"\0\0\0\1")
    with pytest.raises(MismatchError, match="differs from the rescorer"):
        SearchEngine(index).search(QUERY)
    transform.unlink()
    with pytest.raises(ModelError, match="contains no transform"):
        SearchEngine(index).search(QUERY)
    assert len(SearchEngine(index).search(QUERY, 3, rerank_depth=0)) == 3


def test_a_folder_that_could_not_be_recorded_stays_and_is_named(index: Path, tmp_path: Path) -> None:
    """The comparison took time; the call in the message records its result."""
    with writer_lock(index), pytest.raises(LockedError, match="is complete, but the index does not use it") as failed:
        map_index(index, tmp_path / "map", TASK)
    assert not Index.open(index).config.queries.encoder
    call = re.fullmatch(r".* yet: refit_index\((.+)\)", str(failed.value))
    assert call
    refit_index(*ast.literal_eval(f"({call[1]})"))
    assert Index.open(index).config.queries.encoder == str((tmp_path / "map").resolve())


def test_an_erasure_removes_the_kept_vectors_and_refuses_a_query_encoder(index: Path, tmp_path: Path) -> None:
    erased = Index.open(index).documents.ids([3])
    rescore_index(index, tmp_path / "rescorer", TASK, DEPTH)
    SearchEngine(index).search(QUERY, 5)
    assert (tmp_path / "rescorer" / VECTORS).exists()
    report = erase_documents(index, erased, tmp_path / "erased.json")
    assert not (tmp_path / "rescorer" / VECTORS).exists()
    assert "the transform of the rescorer" in report.notes[0]
    assert len(SearchEngine(index).search(QUERY, 5)) == 5
    map_index(index, tmp_path / "map", TASK)
    with pytest.raises(ConfigError, match=r"own encoder first \(refit_index\('"):
        erase_documents(index, Index.open(index).documents.ids([3]), tmp_path / "second.json")


def test_the_command_line(index: Path, tmp_path: Path) -> None:
    common = ("migrate", index, "--set", LAYERS[0], "--quiet")
    assert isotrope(*common, "--mode", "map").returncode == 2
    assert isotrope(*common, "--depth", "5").returncode == 2
    done = isotrope(*common, "--mode", "rescore", "--depth", "20", "-o", tmp_path / "rescorer")
    assert done.returncode == 0, done.stderr
    assert "encoding every document: 70 documents" in done.stderr
    done = isotrope(*common, "--mode", "map", "-o", tmp_path / "map", "--json")
    assert json.loads(done.stdout)["kind"] == "migrate"
    recipe = Index.open(index).config
    assert (recipe.rerank.depth, recipe.queries.encoder) == (20, str((tmp_path / "map").resolve()))


def test_commands_name_an_index_in_object_storage_by_its_url(built: Path, storage: Storage, tmp_path: Path) -> None:
    url = f"{storage.bucket()}/index"
    build_index(long_documents(60), url, Index.open(built).config)
    assert f"'{url}'" in distill_index(url, tmp_path / "table")["command"]
    compared = measure_encoders(url, TASK, RunOptions(), NoProgress())
    command = migration_command(compared.index, TASK, MeasuredWay("questions mapped", np.ones(1), mode="map"))
    assert command.startswith(f"map_index('{url}', 'index-map'")
