"""`isotrope diff`: documents and answers that differ, against an oracle, between generations and between indexes."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexer import BuildConfig, Document, add_documents, build_index, compact_index, delete_documents, refit_index
from indexer.errors import ConfigError, EvaluationError
from search import SearchEngine
from search.evaluation.diff.diff import DiffOptions, diff_indexes
from search.evaluation.result import read_result
from search.index import Index
from search.ranking.options import SearchOptions
from tests.documents import DOCUMENTS
from tests.search.cli.test_cli import isotrope

K3 = DiffOptions(search=SearchOptions(k=3))


@pytest.fixture
def index(tmp_path: Path, tiny_config: BuildConfig) -> Path:
    build_index(DOCUMENTS, tmp_path / "index", tiny_config)
    return tmp_path / "index"


def changes(result: Any) -> dict[str, list[str]]:
    ids: dict[str, list[str]] = result["documents"]["ids"]
    return ids


def test_an_index_does_not_differ_from_itself_or_from_its_compaction(index: Path) -> None:
    delete_documents(index, [DOCUMENTS[0].id])
    compact_index(index, keep=9, grace=9e9)
    result = diff_indexes(Index.open(index, 2), Index.open(index, 3), K3)
    assert changes(result) == {"added": [], "removed": [], "changed": []}
    assert result["results"][0]["changed"] == result["results"][0]["first_changed"] == 0
    assert result["results"][0]["unchanged"] == 1
    assert not result["examples"]
    assert not result["settings"]


def test_documents_are_added_removed_and_changed(index: Path) -> None:
    first, second, third = DOCUMENTS[:3]
    new = Document("new", "a whale that sings", metadata={"year": 1.5})
    add_documents([new, replace(second, text=second.text + " again"), first], index)
    delete_documents(index, [third.id])
    result = diff_indexes(Index.open(index, 1), index, K3)
    assert changes(result) == {"added": ["new"], "removed": [third.id], "changed": [second.id]}
    assert result["documents"]["before"] == result["documents"]["after"] == len(DOCUMENTS)
    back = diff_indexes(index, Index.open(index, 1), K3)
    assert changes(back) == {"added": [third.id], "removed": ["new"], "changed": [second.id]}
    assert back["results"][0]["gained"].keys() == {"added", "changed", "same"}


def test_an_edit_that_is_undone_is_no_change(index: Path) -> None:
    edited = replace(DOCUMENTS[1], metadata={"edited": True})
    add_documents([edited], index)
    add_documents([DOCUMENTS[1]], index)
    assert changes(diff_indexes(Index.open(index, 1), Index.open(index, 2), K3))["changed"] == [edited.id]
    assert changes(diff_indexes(Index.open(index, 1), Index.open(index, 3), K3))["changed"] == []


def test_whole_numbers_equal_floats_of_another_index(tmp_path: Path, tiny_config: BuildConfig) -> None:
    for name, extra in (("whole", 3), ("broken", 3.5)):
        documents = [replace(document, metadata={"year": 2000}) for document in DOCUMENTS]
        build_index([*documents, Document("x", "sea", metadata={"year": extra})], tmp_path / name, tiny_config)
    assert changes(diff_indexes(tmp_path / "whole", tmp_path / "broken", K3))["changed"] == ["x"]


def test_the_share_of_changed_hits_is_that_of_two_engines(index: Path, tmp_path: Path) -> None:
    refit_index(index, ["whitening.strength=1"])
    questions = ["whale song", "an iron bridge", "bread and stars"]
    (tmp_path / "questions.txt").write_text("\n".join(questions), encoding="utf-8")
    asked = replace(K3, queries=tmp_path / "questions.txt")
    row = diff_indexes(Index.open(index, 1), index, asked)["results"][0]
    engines = [SearchEngine(Index.open(index, number)) for number in (1, 2)]
    found = [[{hit.id: hit.score for hit in engine.search(text, 3)} for text in questions] for engine in engines]
    shares = [1 - len(old.keys() & new.keys()) / 3 for old, new in zip(*found, strict=True)]
    moved = [new[name] - old[name] for old, new in zip(*found, strict=True) for name in old.keys() & new.keys()]
    assert row["changed"] == pytest.approx(np.mean(shares))
    assert row["score_rise"] == pytest.approx(np.mean(moved), abs=1e-5)
    assert row["score_moved"] == pytest.approx(np.mean(np.abs(moved)), abs=1e-5)
    assert sum(row["gained"].values()) == sum(row["lost"].values()) == round(3 * sum(shares))


def test_a_drawn_question_does_not_find_its_own_document(index: Path) -> None:
    refit_index(index, ["whitening.strength=1"])
    result = diff_indexes(Index.open(index, 1), index, replace(K3, origin="sentences"))
    own = {document.text: document.id for document in DOCUMENTS}
    for example in result["examples"]:
        assert own.get(example["question"]) not in {hit["id"] for hit in example["before"] + example["after"]}


def test_indexes_of_different_encoders_are_compared_each_with_its_own(
    index: Path, tmp_path: Path, tiny_model: Callable[[str], Path], tiny_config: BuildConfig
) -> None:
    encoder = replace(tiny_config.encoder, model=str(tiny_model("roberta")))
    build_index(DOCUMENTS, tmp_path / "other", replace(tiny_config, encoder=encoder))
    result = diff_indexes(index, tmp_path / "other", K3)
    assert changes(result) == {"added": [], "removed": [], "changed": []}
    assert any(setting.startswith("encoder.model ") for setting in result["settings"])


def test_given_embeddings_are_part_of_a_document(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    vectors = draw.standard_normal((40, 8)).astype(np.float32)
    ids = [f"d{n}" for n in range(40)]
    config = BuildConfig().with_overrides(['encoder.kind="vectors"'])
    for name, rows in (("one", vectors), ("two", np.concatenate([vectors[:1] + 1, vectors[1:]]))):
        build_index([{"id": id_, "text": id_} for id_ in ids], tmp_path / name, config, vectors=rows)
    assert changes(diff_indexes(tmp_path / "one", tmp_path / "two"))["changed"] == ["d0"]


def test_indexes_without_a_common_document_need_questions(
    index: Path, tmp_path: Path, tiny_config: BuildConfig
) -> None:
    build_index([Document("other", "whale song"), Document("b", "iron bridge")], tmp_path / "other", tiny_config)
    with pytest.raises(EvaluationError, match="contains none of the 2 sampled documents"):
        diff_indexes(index, tmp_path / "other")


def test_a_generation_that_does_not_exist_is_named(index: Path) -> None:
    with pytest.raises(ConfigError, match=r"no generation 7; it has 1 only"):
        Index.open(index, 7)


def test_the_command_compares_with_the_generation_before(index: Path, tmp_path: Path) -> None:
    alone = isotrope("diff", str(index))
    assert alone.returncode == 1
    assert "has one generation, 1; expected an earlier one" in alone.stderr
    refit_index(index, ["whitening.strength=1"])
    shown = isotrope("diff", str(index), "-k", "3", "--fail-over", "0", "-o", str(tmp_path / "diff.json"))
    assert shown.returncode == 1
    assert "--fail-over allows 0.0 %" in shown.stderr
    assert "whitening.strength" in shown.stdout
    result = read_result(tmp_path / "diff.json")
    assert result.kind == "diff"
    printed = isotrope("diff", str(index), "-k", "3", "--json", "--fail-over", "1")
    assert printed.returncode == 0
    assert json.loads(printed.stdout)["results"] == result["results"]
