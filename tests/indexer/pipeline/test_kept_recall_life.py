"""Kept recall of changing questions, windows, empty indexes and object storage; faults while recall is measured."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from indexer import BuildConfig, Document, build_index
from indexer.ann import GroundTruth
from indexer.errors import ConfigError, CorruptIndexError, MismatchError
from indexer.pipeline.add import add_documents
from indexer.pipeline.compact import compact_index
from indexer.pipeline.delete import delete_documents
from indexer.pipeline.erase import erase_from_index
from indexer.pipeline.refit import refit_index
from indexer.pipeline.sync import sync_index
from indexer.progress import NoProgress
from indexer.store import files
from indexer.store.manifest import load_manifest
from search import Index, SearchEngine, verify_index
from search.describe import describe_index, facts_in_words
from search.evaluation.report.sections import gates
from tests.faults import Dead, FaultyOs, one_of_each
from tests.indexer.pipeline.test_kept_recall import COUNT, DIM, brute_force, documents, history, recipe, truths
from tests.object_storage import Storage, use_cache

__all__ = ["truths"]  # a fixture


def measured(index: Path | str) -> list[dict[str, Any]]:
    """The history without its dates."""
    entries = Index.open(index).manifest.measured.recall_history
    return [{**msgspec.structs.asdict(entry), "date": ""} for entry in entries]


def clustered(first: int, count: int, seed: int) -> list[Document]:
    """Documents in 16 clusters, which inverted lists separate."""
    random = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(16, DIM)) * 3
    rows = centres[random.integers(0, 16, count)] + random.normal(size=(count, DIM)) * 0.3
    return [Document(f"d{first + number}", "", vector=row.astype(np.float32)) for number, row in enumerate(rows)]


def write_questions(path: Path, between: bool) -> None:
    """Questions inside clusters, or `between` the clusters, whose neighbours lie in many lists."""
    random = np.random.default_rng(5)
    centres = np.random.default_rng(99).normal(size=(16, DIM)) * 3
    inside = centres[random.integers(0, 16, 200)] + random.normal(size=(200, DIM)) * 0.3
    np.save(path, (random.normal(size=(200, DIM)) if between else inside).astype(np.float32))


def test_other_questions_widen_the_parameters_and_the_recall_holds(tmp_path: Path, truths: list[GroundTruth]) -> None:
    index, questions = tmp_path / "index", tmp_path / "questions.npy"
    write_questions(questions, between=False)
    build_index(clustered(0, COUNT, 1), index, recipe(0.95, type="IVF16,Flat", queries=str(questions)))
    built = load_manifest(index).segments[0].search_parameters["nprobe"]
    write_questions(questions, between=True)
    report = add_documents(clustered(COUNT, 80, 2), index)
    (entry,) = history(index)
    kept = load_manifest(index).segments[0].search_parameters["nprobe"]
    assert kept > built
    assert entry.recall_before is not None
    assert entry.recall_before < 0.95 <= entry.recall_at_10
    assert brute_force(index, truths[-1]) == pytest.approx(entry.recall_at_10, abs=1e-9)
    assert f"wider search parameters raise it to {entry.recall_at_10:.4f}" in " ".join(report.notes)
    write_questions(questions, between=False)
    add_documents(clustered(COUNT + 80, 80, 3), index)
    assert load_manifest(index).segments[0].search_parameters["nprobe"] == built  # no more work than needed


def test_documents_in_place_of_questions_never_narrow_the_parameters(tmp_path: Path) -> None:
    """The questions that widened the parameters were removed; moved documents reach the recall with fewer lists."""
    index, questions = tmp_path / "index", tmp_path / "questions.npy"
    write_questions(questions, between=False)
    build_index(clustered(0, COUNT, 1), index, recipe(0.95, type="IVF16,Flat", queries=str(questions)))
    built = load_manifest(index).segments[0].search_parameters["nprobe"]
    write_questions(questions, between=True)
    add_documents(clustered(COUNT, 80, 2), index)
    kept = load_manifest(index).segments[0].search_parameters["nprobe"]
    questions.unlink()
    delete_documents(index, [f"d{number}" for number in range(100)])
    assert len(history(index)) == 2
    assert load_manifest(index).segments[0].search_parameters["nprobe"] == kept > built


def test_other_questions_that_no_parameters_answer_name_refit(tmp_path: Path, truths: list[GroundTruth]) -> None:
    """Codes of few bits tell clusters apart, but not the rows of a cluster."""
    index, questions = tmp_path / "index", tmp_path / "questions.npy"
    write_questions(questions, between=True)
    build_index(clustered(0, COUNT, 1), index, recipe(0.7, type="IVF16,SQ4", queries=str(questions)))
    write_questions(questions, between=False)
    report = add_documents(clustered(COUNT, 80, 2), index)
    (entry,) = history(index)
    assert entry.recall_at_10 < 0.7
    assert brute_force(index, truths[-1]) == pytest.approx(entry.recall_at_10, abs=1e-9)
    (note,) = [note for note in report.notes if "recall" in note]
    assert 'reach it. Build its segments again with: refit_index(index, ["index.type=auto"])' in note


def test_windows_and_deleted_rows_are_measured(
    tiny_config: BuildConfig, tmp_path: Path, truths: list[GroundTruth]
) -> None:
    config = tiny_config.with_overrides(
        ["chunk.tokens=8", "chunk.overlap=2", "store.part_documents=16", "index.type=IVF4,SQ8", "index.recall=0.5"]
    )
    texts = [Document(f"w{n}", f"{n} {n % 7} {n * 31 % 17} whales of the southern seas " * 3) for n in range(70)]
    index = tmp_path / "index"
    build_index(texts[:60], index, config)
    delete_documents(index, ["w3", "w4"])
    add_documents(texts[60:], index)
    entry = history(index)[-1]
    assert (entry.documents, entry.rows) == (68, load_manifest(index).rows)
    assert entry.rows > 2 * entry.documents
    assert entry.queries == len(truths[-1]) > 20
    searched = brute_force(index, truths[-1])  # a search for more rows than ten can find a few more of the ten
    assert entry.recall_at_10 - 1e-9 <= searched <= entry.recall_at_10 + 0.01


def test_an_emptied_index_keeps_its_history_and_begins_again(tmp_path: Path) -> None:
    index = tmp_path / "index"
    build_index(documents(0, COUNT), index, recipe())
    add_documents(documents(COUNT, 100, seed=1), index)
    delete_documents(index, [f"d{number}" for number in range(COUNT + 100)])
    first = history(index)
    assert len(first) == 1  # nothing is left to measure
    add_documents(documents(0, COUNT), index)
    last = history(index)[-1]
    assert (len(history(index)), last.rows, last.stored_rows) == (2, COUNT, COUNT)
    assert last.recall_at_10 >= 0.8
    assert history(index)[:1] == first
    assert verify_index(index).passed


def test_a_refit_to_an_exact_index_ends_the_loss_in_the_history(tmp_path: Path) -> None:
    index = tmp_path / "index"
    build_index(documents(0, COUNT), index, recipe())
    add_documents(documents(COUNT, 100, seed=1), index)
    refit_index(index, ["index.type=flat"])
    quality = load_manifest(index).measured
    assert quality.last_recall == 1.0
    assert quality.recall_history[-1].query_origin == "every segment is exact"
    assert "with 0 queries" not in dict(facts_in_words(describe_index(Index.open(index))))["recall now"]


@pytest.mark.parametrize("change", [refit_index, compact_index])
def test_several_new_segments_are_measured_together(
    change: Callable[[Path], object], tmp_path: Path, truths: list[GroundTruth]
) -> None:
    index = tmp_path / "index"
    build_index(documents(0, COUNT), index, recipe(segment_rows=700))
    delete_documents(index, [f"d{number}" for number in range(20)])  # too few to be measured
    change(index)
    (entry,) = history(index)
    assert len(entry.search_parameters) == len(load_manifest(index).segments) == 2
    assert brute_force(index, truths[-1]) == pytest.approx(entry.recall_at_10, abs=0.002)


def test_an_erasure_measures_the_new_segments_and_continues_the_history(
    tmp_path: Path, truths: list[GroundTruth]
) -> None:
    index = tmp_path / "index"
    build_index(documents(0, COUNT), index, recipe(segment_rows=700))
    add_documents(documents(COUNT, 100, seed=1), index)
    erase_from_index(index, [f"d{number}" for number in range(100)], lambda *_: {})
    assert [entry.generation for entry in history(index)] == [2, 4]  # not the one with deleted rows, which is removed
    assert history(index)[-1].rows == COUNT
    assert brute_force(index, truths[-1]) == pytest.approx(history(index)[-1].recall_at_10, abs=0.002)


def test_an_index_in_object_storage_has_the_history_of_one_on_a_disk(
    url: str, storage: Storage, tmp_path: Path
) -> None:
    for place in (url, tmp_path / "local"):
        build_index(documents(0, COUNT), place, recipe())
        use_cache(tmp_path / "elsewhere")  # the published parts and the segment are fetched
        add_documents(documents(COUNT, 100, seed=1), place)
        delete_documents(place, [f"d{number}" for number in range(100)])
    mine, local = measured(url), measured(tmp_path / "local")
    assert len(mine) == 2
    for entry in (*mine, *local):
        entry["search_parameters"] = sorted(map(str, entry["search_parameters"].values()))  # other file names
    assert mine == local
    assert verify_index(url).passed


class Stopping(NoProgress):
    """A process that stops at a report of progress."""

    def __init__(self, at: int) -> None:
        self.left, self.phases = at, list[str]()

    def phase(self, name: str, total: int | None) -> None:
        self.phases.append(name)
        self.advance(0)

    def advance(self, texts: int, tokens: int = 0) -> None:
        self.left -= 1
        if not self.left:
            raise Dead


def test_a_sync_that_only_deletes_reports_its_progress(tmp_path: Path) -> None:
    index, progress = tmp_path / "index", Stopping(0)
    build_index(documents(0, COUNT), index, recipe())
    sync_index(documents(0, COUNT)[200:], index, progress=progress)
    assert progress.phases[-2:] == ["measuring recall", "tuning"]
    assert history(index)[-1].rows == COUNT - 200


def test_stopping_while_recall_is_measured_changes_nothing(tmp_path: Path) -> None:
    built, added = tmp_path / "built", documents(COUNT, 100, seed=1)
    build_index(documents(0, COUNT), built, recipe())
    whole, all_reports = Path(shutil.copytree(built, tmp_path / "whole")), Stopping(0)
    add_documents(added, whole, progress=all_reports)
    assert all_reports.phases[-2:] == ["measuring recall", "tuning"]
    stopped = set[str]()
    for at in range(1, 1 - all_reports.left):
        index, progress = Path(shutil.copytree(built, tmp_path / f"index-{at}")), Stopping(at)
        with pytest.raises(Dead):
            add_documents(added, index, progress=progress)
        stopped.add(progress.phases[-1])
        if progress.phases[-1] in ("measuring recall", "tuning"):
            assert load_manifest(index).generation == 1
            assert verify_index(index).passed
            add_documents(added, index)
            assert measured(index) == measured(whole)
    assert {"measuring recall", "tuning"} <= stopped


def test_a_measured_change_survives_every_failing_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built, counted = tmp_path / "built", FaultyOs()
    build_index(documents(0, 400), built, recipe())
    gone = [f"d{number}" for number in range(80)]
    whole = Path(shutil.copytree(built, tmp_path / "whole"))
    with monkeypatch.context() as patch:
        patch.setattr(files, "os", counted)
        delete_documents(whole, gone)
    for at in one_of_each(counted.kinds):
        index = Path(shutil.copytree(built, tmp_path / f"index-{at}"))
        with monkeypatch.context() as patch:
            patch.setattr(files, "os", FaultyOs(at, None, power_cut=True))
            with pytest.raises(Dead):
                delete_documents(index, gone)
        assert len(history(index)) == load_manifest(index).generation - 1
        delete_documents(index, gone, ignore_missing=True)
        assert measured(index) == measured(whole)


def test_another_encoder_is_refused_before_anything_is_measured(
    tiny_config: BuildConfig, tiny_model: Callable[[str], Path], tmp_path: Path, truths: list[GroundTruth]
) -> None:
    model, index = Path(shutil.copytree(tiny_model("bert"), tmp_path / "model")), tmp_path / "index"
    config = tiny_config.with_overrides([f"encoder.model={model}", "index.type=IVF4,SQ8", "index.recall=0.5"])
    texts = [Document(f"x{number}", f"{number} {number % 7} whales") for number in range(80)]
    build_index(texts[:70], index, config)
    with (model / "model.safetensors").open("ab") as file:
        file.write(b" ")
    with pytest.raises(MismatchError, match=r"model\.safetensors has sha256"):
        add_documents(texts[70:], index)
    assert truths == []
    assert load_manifest(index).generation == 1


def test_damage_is_found_before_it_is_measured(tmp_path: Path, truths: list[GroundTruth]) -> None:
    index = tmp_path / "index"
    build_index(documents(0, COUNT), index, recipe())
    path = index / load_manifest(index).parts[0].name / "embeddings.npy"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptIndexError, match=r"embeddings\.npy"):
        add_documents(documents(COUNT, 100, seed=1), index)
    assert truths == []
    assert load_manifest(index).generation == 1


@pytest.mark.parametrize("broken", ["other dimensions", "no array"])
def test_unusable_questions_are_refused_and_nothing_is_published(broken: str, tmp_path: Path) -> None:
    index, questions = tmp_path / "index", tmp_path / "questions.npy"
    np.save(questions, np.eye(DIM, dtype=np.float32))
    build_index(documents(0, COUNT), index, recipe(queries=str(questions)))
    if broken == "no array":
        questions.write_bytes(b"questions")
    else:
        np.save(questions, np.eye(DIM + 1, dtype=np.float32))
    with pytest.raises(ConfigError, match=r"index\.queries: .*questions\.npy"):
        add_documents(documents(COUNT, 100, seed=1), index)
    assert load_manifest(index).generation == 1
    questions.unlink()
    add_documents(documents(COUNT, 100, seed=1), index)
    assert history(index)[-1].query_origin.endswith("; index.queries is missing")


def test_inspect_and_the_report_show_the_whole_history(tmp_path: Path) -> None:
    index = tmp_path / "index"
    build_index(documents(0, COUNT), index, recipe())
    for number in range(2):
        add_documents(documents(COUNT + 100 * number, 100, seed=number + 1), index)
    facts, entries = describe_index(Index.open(index)), history(index)
    values = [f"{entry.recall_at_10:.4f}" for entry in entries]
    assert [entry["recall_at_10"] for entry in facts["quality"]["recall_history"]] == [
        entry.recall_at_10 for entry in entries
    ]
    assert dict(facts_in_words(facts))["recalls"] == f"by generation: {values[0]} in 2, {values[1]} in 3"
    tables = [block for kind, block in gates(facts).blocks if kind == "table"]
    assert [[row[0], row[2], row[4]] for row in tables[0].rows] == [
        ["2", "1,300", values[0]],
        ["3", "1,400", values[1]],
    ]
    with SearchEngine(index) as engine:
        assert engine.index.manifest.measured.last_recall == entries[-1].recall_at_10
