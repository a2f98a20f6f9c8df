"""`isotrope migrate`: the comparison against slow oracles, and the new generation, also after every kill."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from indexer import BuildConfig, Document, RunOptions, add_documents, build_index, delete_documents
from indexer.errors import ConfigError, EvaluationError, ModelError
from indexer.store import files
from search import SearchEngine
from search.evaluation.result import read_result
from search.evaluation.tables import tables_of
from search.index import Index
from search.migration import MigrationOptions, compare_encoders, migrate_index
from search.migration.comparison import answer_ranks, rescored_ranks
from search.migration.price import migration_price
from search.verify import verify_index
from tests.documents import DOCUMENTS
from tests.faults import Dead, FaultyOs, one_of_each
from tests.search.cli.test_cli import isotrope

LAYERS = ("encoder.layers=[1]",)
_WORDS = (*"abcdefghij", "whale", "sing", "song", "deep", "sea", "library", "data", "the", "of", "and")


def long_documents(count: int) -> list[Document]:
    chance = np.random.default_rng(7)
    sentences = [" ".join(chance.choice(_WORDS, 7)).capitalize() + "." for _ in range(3 * count)]
    return [Document(f"d{n}", " ".join(sentences[3 * n : 3 * n + 3]), metadata={"n": n}) for n in range(count)]


@pytest.fixture
def index(tmp_path: Path, tiny_config: BuildConfig) -> Path:
    build_index(DOCUMENTS, tmp_path / "index", tiny_config)
    return tmp_path / "index"


@pytest.fixture
def large(tmp_path: Path, tiny_config: BuildConfig) -> Path:
    build_index(long_documents(70), tmp_path / "large", tiny_config)
    return tmp_path / "large"


def test_ranks_equal_those_of_sorting() -> None:
    old, new = np.random.default_rng(0).normal(size=(2, 30, 30))
    for depth in (1, 5, 29):
        for question, rank in enumerate(rescored_ranks(old, new, depth)):
            order = np.argsort(-old[question]).tolist()
            first = sorted(order[:depth], key=lambda document: -new[question, document])
            assert rank == [*first, *order[depth:]].index(question) + 1
    assert answer_ranks(np.zeros((3, 3))).tolist() == [2, 2, 2]  # ties count half


def test_the_comparison_changes_nothing_and_is_read_back(large: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in large.rglob("*") if path.is_file()}
    task = MigrationOptions(assignments=LAYERS, cache=tmp_path / "cache")
    result = compare_encoders(large, task)
    assert {path: path.read_bytes() for path in large.rglob("*") if path.is_file()} == before
    settings = [row["setting"] for row in result["results"]]
    assert settings[0] == "the index as it is"
    assert settings[-1] == "the new encoder alone"
    assert {"20 candidates rescored", "50 candidates rescored", "questions mapped, affine"} <= {*settings}
    assert "100 candidates rescored" not in settings  # of 70 documents
    assert result["price"]["documents"] == 70
    again = compare_encoders(large, task)
    assert (again["results"], again["choice"]) == (result["results"], result["choice"])
    (tmp_path / "result.json").write_text(json.dumps(result.to_dict()), encoding="utf-8")
    assert [table.rows for table in tables_of(read_result(tmp_path / "result.json"))] == [
        table.rows for table in tables_of(result)
    ]


def test_a_worse_encoder_is_not_recommended(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from search.migration import comparison

    def better(old: bool) -> dict[str, object]:
        perfect, random = np.eye(70), np.random.default_rng(0).normal(size=(70, 70))
        first, last = (perfect, random) if old else (random, perfect)
        ways = [comparison.MeasuredWay(name, answer_ranks(scores)) for name, scores in (("old", first), ("new", last))]
        monkeypatch.setattr(comparison, "measured_ways", lambda _: iter(ways))
        choice: dict[str, object] = compare_encoders(large, MigrationOptions(assignments=LAYERS))["choice"]
        return choice

    kept, changed = better(old=True), better(old=False)
    assert (kept["setting"], kept["command"]) == ("old", "")
    assert "not better here; decided" in str(kept["reason"])
    assert changed["setting"] == "new"
    assert str(changed["command"]).endswith("'', ['encoder.layers=[1]'])")


def test_the_new_generation_is_a_build_of_the_live_documents(
    index: Path, tmp_path: Path, tiny_config: BuildConfig
) -> None:
    delete_documents(index, [DOCUMENTS[2].id])
    report = migrate_index(index, assignments=LAYERS)
    assert (report.generation, report.documents, report.rows_encoded) == (3, 8, 8)
    config = tiny_config.with_overrides(LAYERS)
    build_index([*DOCUMENTS[:2], *DOCUMENTS[3:]], tmp_path / "built", config)
    migrated, built = Index.open(index), Index.open(tmp_path / "built")
    assert migrated.manifest.fingerprint == built.manifest.fingerprint
    assert np.array_equal(migrated.vectors(np.arange(8)), built.vectors(np.arange(8)))
    assert list(migrated.documents.all_documents()) == list(built.documents.all_documents())
    assert verify_index(index).passed
    assert Index.open(index, 2).config.encoder.layers == (-1,)


def test_documents_added_before_the_lock_are_kept(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from search.migration import full

    def build_after_an_addition(documents: object, *arguments: object) -> object:
        add_documents([Document("late", "A late whale.")], index)
        return build_index(documents, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(full, "build_index", build_after_an_addition)
    assert migrate_index(index, assignments=LAYERS).documents == len(DOCUMENTS) + 1


def test_after_a_kill_the_old_generation_answers_and_a_rerun_continues(index: Path, tmp_path: Path) -> None:
    question = "whale song"

    def run_on_a_copy(at: int) -> tuple[Path, FaultyOs]:
        copy = tmp_path / f"copy{at}"
        shutil.copytree(index, copy)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(files, "os", system := FaultyOs(at))
            try:
                migrate_index(copy, assignments=LAYERS)
            except Dead:
                assert at >= 0
        return copy, system

    whole, counted = run_on_a_copy(-1)
    before, after = (SearchEngine(path).search(question) for path in (index, whole))
    assert before != after
    for at in one_of_each(counted.kinds):
        copy, _ = run_on_a_copy(at)
        answer = SearchEngine(copy).search(question)
        assert answer in (before, after)
        if answer == before:
            report = migrate_index(copy, assignments=LAYERS)
            assert report.parts_encoded + report.parts_kept == 3
            assert SearchEngine(copy).search(question) == after
        shutil.rmtree(copy)


def test_parts_of_an_interrupted_run_are_kept(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from indexer.pipeline import build

    with monkeypatch.context() as patch:
        patch.setattr(build, "fit", lambda *_: (_ for _ in ()).throw(Dead))
        with pytest.raises(Dead):
            migrate_index(index, assignments=LAYERS)
    report = migrate_index(index, assignments=LAYERS)
    assert (report.parts_encoded, report.parts_kept) == (0, 3)


def test_wrong_requests_are_refused_before_anything_changes(index: Path, tiny_model: Callable[[str], Path]) -> None:
    own = str(tiny_model("bert"))
    for assignments in ((), ("encoder.layers=[-1]",)):
        with pytest.raises(ConfigError, match=r"no other encoder is named|already has this encoder"):
            migrate_index(index, assignments=assignments)
    same = ["encoder.pooling=mean", "encoder.max_length=32", "encoder.precision=float32"]
    with pytest.raises(ConfigError, match="already has this encoder"):
        migrate_index(index, own, same)
    with pytest.raises(ModelError):
        migrate_index(index, "./no-such-model")
    with pytest.raises(EvaluationError, match="too few to compare encoders on"):
        compare_encoders(index, MigrationOptions(assignments=LAYERS))
    with pytest.raises(ConfigError, match="sample"):
        compare_encoders(index, MigrationOptions(assignments=LAYERS, sample=3))
    assert Index.open(index).manifest.generation == 1


def test_an_empty_index_has_no_price_and_nothing_to_compare(tmp_path: Path, tiny_config: BuildConfig) -> None:
    build_index([], tmp_path / "empty", tiny_config)
    opened = Index.open(tmp_path / "empty")
    price = migration_price(opened, tiny_config)
    assert (price.documents, price.tokens, price.seconds) == (0, 0, 0)
    with pytest.raises(EvaluationError, match="too few"):
        compare_encoders(tmp_path / "empty", MigrationOptions(assignments=LAYERS))


def test_given_vectors_are_replaced_by_a_model_without_a_comparison(
    tmp_path: Path, tiny_config: BuildConfig, tiny_model: Callable[[str], Path]
) -> None:
    rows = np.random.default_rng(0).normal(size=(len(DOCUMENTS), 5))
    build_index(DOCUMENTS, tmp_path / "given", vectors=rows)
    own = str(tiny_model("bert"))
    with pytest.raises(ConfigError, match="cannot be compared by questions"):
        compare_encoders(tmp_path / "given", MigrationOptions(own))
    report = migrate_index(tmp_path / "given", own, options=RunOptions(threads=1))
    assert report.rows_encoded == len(DOCUMENTS)
    assert SearchEngine(tmp_path / "given").search("whale")


def test_the_command_compares_then_migrates(large: Path, tmp_path: Path) -> None:
    output = tmp_path / "result.json"
    arguments = ["migrate", str(large), "--set", LAYERS[0]]
    assert "encoding every document: 70 documents" in isotrope(*arguments, "-o", str(output)).stdout
    assert read_result(output).kind == "migrate"
    refused = isotrope(*arguments, "--mode", "full", "--sample", "60")
    assert "--sample is for the comparison" in refused.stderr
    assert refused.returncode == 2
    assert "generation 2" in isotrope(*arguments, "--mode", "full").stdout
    assert Index.open(large).config.encoder.layers == (1,)
