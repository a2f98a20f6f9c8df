"""`evaluate retrieval --rerank` measures the reranked ranking of the engine."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexer import BuildConfig, Document
from indexer.errors import ConfigError
from indexer.recipe.corpus_config import ChunkConfig
from indexer.recipe.ranking import RerankConfig
from search import SearchEngine
from search.evaluation.result import read_result, write_result
from search.evaluation.retrieval.reranked import RerankTask
from search.evaluation.retrieval.runs import run_tag
from search.evaluation.tables import tables_of
from tests.rerankers import Constant, SharedWords
from tests.search.evaluation.retrieval.tiny_collection import OWN, Cli, built, evaluated, ranking, row_of, values_of
from tests.search.evaluation.tune.tuned_corpora import judged
from tests.tiny_models import make_tiny_cross_encoder

ALL, DEPTH = 60, 20
LABEL = f"{OWN}, reranked {DEPTH}"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_cross_encoder(tmp_path_factory.mktemp("models") / "cross-encoder")


def of_query(lines: list[tuple[str, ...]], query: str) -> list[str]:
    return [document for name, document, _ in lines if name == query]


@pytest.mark.parametrize("chunk", [ChunkConfig(), ChunkConfig(tokens=12, overlap=4)], ids=["whole", "windows"])
def test_an_index_is_measured_as_its_engine_reranks(
    folder: Path, config: BuildConfig, tmp_path: Path, chunk: ChunkConfig
) -> None:
    index, runs = built(folder, dataclasses.replace(config, chunk=chunk), tmp_path / "index"), tmp_path / "runs"
    runs.mkdir()
    evaluated(folder, index, run=runs, hybrid=True, rerank=RerankTask(SharedWords(), DEPTH))
    engine = SearchEngine(index)
    engine.rerank_by(SharedWords())
    queries = {one["_id"]: one["text"] for one in read_lines(folder / "queries.jsonl")}
    for beginning, hybrid in ((run_tag(OWN), False), ("hybrid_0", True)):
        (file,) = runs.glob(f"{beginning}*,_reranked_{DEPTH}.run")
        found = ranking(file)
        for query in {query for query, _, _ in found}:
            hits = engine.search(queries[query], k=60, hybrid=hybrid, rerank_depth=DEPTH)
            assert of_query(found, query) == [hit.id for hit in hits]


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_shared_words_beat_a_random_encoder_and_the_gain_is_paired(config: BuildConfig, tmp_path: Path) -> None:
    words = [f"{name} {name}s of number {name}" for name in (f"w{number}" for number in range(60))]
    documents = [Document(f"d{number}", text, title=text.split()[1]) for number, text in enumerate(words)]
    folder = judged(documents, tmp_path / "beir")  # queries are titles of documents
    index = built(folder, config, tmp_path / "index")
    result = evaluated(folder, index, hybrid=True, rerank=RerankTask(SharedWords(), ALL))
    label = f"{OWN}, reranked {ALL}"
    before, after = values_of(row_of(result, OWN)), values_of(row_of(result, label))
    assert after["nDCG@3"] > before["nDCG@3"] + 0.1
    pairs = {(pair["setting"], pair["against"]): pair["measure"]["nDCG@3"] for pair in result["comparisons"]}
    assert pairs[label, OWN]["value"] == pytest.approx(after["nDCG@3"] - before["nDCG@3"])
    assert pairs[label, OWN]["better"] > 0.9
    reranked = {setting for setting, _ in pairs if "reranked" in setting}
    assert {against for setting, against in pairs if setting == label} == {OWN, "BM25"}
    assert not any("reranked" in against for _, against in pairs)
    assert len(reranked) == 3  # of the vectors and of two fusions
    about = row_of(result, label)["rerank"]
    assert (about["of"], about["depth"]) == (OWN, ALL)
    assert about["ms"] >= 0
    assert result["provenance"]["rerank"]["model"] == "SharedWords"


def test_recall_beyond_the_depth_stays(folder: Path, index: Path) -> None:
    result = evaluated(folder, index, rerank=RerankTask(SharedWords(), 10))
    label = f"{OWN}, reranked 10"
    assert values_of(row_of(result, label))["R@10"] == values_of(row_of(result, OWN))["R@10"]


def test_one_hit_or_equal_scores_change_what_they_must(folder: Path, index: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    result = evaluated(folder, index, rerank=RerankTask(SharedWords(), 1), bm25=False)
    assert values_of(row_of(result, f"{OWN}, reranked 1")) == values_of(row_of(result, OWN))
    evaluated(folder, index, rerank=RerankTask(Constant(), 6), bm25=False, run=runs)
    plain, again = (ranking(runs / f"{name.replace(' ', '_')}.run") for name in (OWN, f"{OWN}, reranked 6"))
    for query in {query for query, _, _ in plain}:
        found, first = of_query(again, query), of_query(plain, query)
        assert found == sorted(first[:6]) + first[6:]


def test_a_recipe_and_its_index_are_reranked_alike(folder: Path, config: BuildConfig, index: Path) -> None:
    task = RerankTask(SharedWords(), DEPTH)
    recipe, asked = evaluated(folder, config, rerank=task), evaluated(folder, index, rerank=task)
    found, expected = (values_of(row_of(result, LABEL)) for result in (recipe, asked))
    assert found == pytest.approx(expected, abs=1e-6)


def test_each_pair_is_scored_once(folder: Path, config: BuildConfig) -> None:
    words = SharedWords()
    result = evaluated(folder, config, hybrid=True, rerank=RerankTask(words, DEPTH))
    assert len(words.asked) == len(set(words.asked)) or len(words.asked) == result["provenance"]["rerank"]["pairs"]
    queries = len({query for query, _ in words.asked})
    assert len(words.asked) < 3 * DEPTH * queries


def test_the_command_line_prints_gain_interval_and_milliseconds(cli: Cli, index: Path, model: Path) -> None:
    shown = cli("--index", index, "--rerank", model, "--rerank-depth", "5", "-k", "3", "--quiet").stdout
    (line,) = [line for line in shown.splitlines() if re.search(r"\b5\b.*[-+]\d+\.\d\d \[", line)]
    assert OWN.split()[0] in line
    assert "ms per query" in shown
    assert "reranked by" in shown
    refused = cli("--index", index, "--rerank-depth", "5")
    assert refused.returncode == 2
    assert "add --rerank MODEL" in " ".join(refused.stderr.split())
    blank = cli("--index", index, "--rerank", " ")
    assert "the name of the cross-encoder is blank" in blank.stderr


def test_a_result_file_shows_the_same_tables(folder: Path, index: Path, model: Path, tmp_path: Path) -> None:
    from search.evaluation.retrieval.retrieval import RetrievalOptions, evaluate_retrieval
    from search.evaluation.target import Target

    task = RetrievalOptions(folder, cutoffs=(3,), rerank=RerankTask(model, 4))
    result = evaluate_retrieval(Target.of_index(index), task)
    write_result(tmp_path / "result.json", result)
    tables, again = tables_of(result), tables_of(read_result(tmp_path / "result.json"))
    assert tables == again
    (table,) = [table for table in tables if table.caption.startswith("Reranking")]
    assert len(table.rows) == 1
    assert np.all([len(row) == len(table.columns) for row in table.rows])


def test_a_recipe_that_reranks_is_noted_where_that_is_not_measured(
    folder: Path, config: BuildConfig, model: Path
) -> None:
    recipe = dataclasses.replace(config, rerank=RerankConfig(model=str(model), depth=7))
    (note,) = [note for note in evaluated(folder, recipe, bm25=False)["notes"] if "reranking" in note]
    assert note.endswith(f'pass rerank=RerankTask("{model}", 7)')
    measured = evaluated(folder, recipe, bm25=False, rerank=RerankTask(SharedWords(), 7))
    assert not any("reranking" in note for note in measured["notes"])


def test_a_depth_that_is_none_is_refused() -> None:
    for depth in (0, 1001):
        with pytest.raises(ConfigError, match=f"the rerank depth is {depth}; expected 1 to 1,000 hits"):
            RerankTask("model", depth)
