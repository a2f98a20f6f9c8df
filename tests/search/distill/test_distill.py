"""`isotrope distill`: the fit against a slow oracle, the written table, its answers, and what is refused."""

import asyncio
import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from time import sleep
from typing import Any

import numpy as np
import pytest

from indexer import BuildConfig, add_documents, build_index, delete_documents, refit_index
from indexer.arrays import Float32Array
from indexer.encoders.load import open_encoder
from indexer.encoders.static.tables import load_table
from indexer.errors import ConfigError, EvaluationError, ExistsError, MismatchError, ModelError
from indexer.progress import NoProgress
from search import SearchEngine
from search.cli.serve import engine_of
from search.distill import DistillOptions, distill_index
from search.distill.ridge import TokenShares, solve_ridge
from search.distill.table import PENALTIES, FittedTable, TokenisedTexts, choose_penalty, fit_table, single_tokens
from search.evaluation.result import read_result
from search.evaluation.sweep import Sweep
from search.evaluation.tables import tables_of
from search.evaluation.target import Target
from search.evaluation.tune.tune import TuneOptions, run_tune
from search.index import Index, LiveRows
from search.query_encoder import open_query_encoder
from search.ranking.options import SearchOptions
from search.server.service import SearchService
from search.unit_vectors import UnitVectors
from tests.documents import DOCUMENTS
from tests.search.cli.test_cli import isotrope
from tests.search.migration.test_migration import long_documents
from tests.search.server.test_service import with_service

QUERY = "whale song of the deep sea"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory, tiny_model: Callable[[str], Path]) -> Path:
    folder = tmp_path_factory.mktemp("distilled")
    config = BuildConfig.from_dict({"encoder": {"model": str(tiny_model("bert")), "precision": "float32"}})
    build_index(long_documents(120), folder / "index", config)
    return folder / "index"


@pytest.fixture(scope="module")
def table(index: Path) -> Path:
    distill_index(index, index.parent / "table")
    return index.parent / "table"


def answering_by(engine: SearchEngine, folder: str | Path) -> SearchEngine:
    engine.encode_queries_by(folder)
    return engine


def test_the_fit_equals_the_normal_equations() -> None:
    chance = np.random.default_rng(3)
    counts = chance.integers(0, 9, 40)
    starts, tokens = np.concatenate([[0], np.cumsum(counts)]), chance.integers(0, 15, counts.sum())
    importance, targets = chance.uniform(0.1, 2, 16).astype(np.float32), chance.normal(size=(40, 5)).astype(np.float32)
    dense = np.zeros((40, 16))
    for text in range(40):
        for token in tokens[starts[text] : starts[text + 1]]:
            dense[text, token] += importance[token]
        dense[text] /= dense[text].sum() or 1
    shares = TokenShares.of(starts, tokens, importance)
    assert np.allclose(shares.times(np.eye(16, dtype=np.float32)), dense, atol=1e-6)
    for penalty in (0.01, 1.0):
        expected = np.linalg.solve(dense.T @ dense + penalty * np.eye(16), dense.T @ targets)
        solved = solve_ridge(shares, targets, penalty)
        assert np.linalg.norm(solved - expected) < 1e-2 * np.linalg.norm(expected)
    assert not solve_ridge(shares, targets, 0.1)[15].any()  # no text has this token


def test_importance_counts_texts_not_occurrences() -> None:
    texts = TokenisedTexts(
        np.array([0, 3, 4, 5]), np.array([0, 0, 1, 0, 2]), np.zeros((3, 2), np.float32), np.arange(3)
    )
    expected = np.log(4 / (np.array([2, 1, 1, 0]) + 1)) + 0.1
    assert np.allclose(texts.importance(4), expected)


def test_the_penalty_is_chosen_on_texts_from_all_over_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """A corpus can be in the order of its topics."""
    vectors = np.random.default_rng(3).normal(size=(40, 2)).astype(np.float32)
    texts, fitted = TokenisedTexts(np.arange(41), np.arange(40) % 7, vectors, np.arange(40)), list[list[int]]()

    def noted(texts: TokenisedTexts, alone: Float32Array, penalty: float) -> FittedTable:
        fitted.append(texts.documents.tolist())
        return fit_table(texts, alone, penalty)

    monkeypatch.setattr("search.distill.table._TRIAL", 10)
    monkeypatch.setattr("search.distill.table.fit_table", noted)
    assert choose_penalty(texts, texts, np.zeros((7, 2), np.float32), NoProgress()) in PENALTIES
    assert fitted == [list(range(0, 40, 4))] * len(PENALTIES)


def test_the_written_folder_is_a_table_and_its_questions_are_means_of_tokens(index: Path, table: Path) -> None:
    loaded, engine = load_table(table), answering_by(SearchEngine(index), table)
    ids = loaded.tokenizer.encode(QUERY, add_special_tokens=False).ids
    known = [loaded.vectors[token] for token in ids if loaded.vectors[token].any() and token != loaded.unknown]
    mean = np.mean(known, axis=0)
    (vector,) = engine.embed([QUERY])
    assert np.allclose(vector, mean / np.linalg.norm(mean), atol=1e-5)
    assert json.loads((table / "config.json").read_text())["model_type"] == "model2vec"


def test_a_token_that_no_document_contains_has_the_vector_of_the_token_alone(index: Path, table: Path) -> None:
    loaded, texts = load_table(table), " ".join(document.text for document in long_documents(120))
    seen = set(loaded.tokenizer.encode(texts, add_special_tokens=False).ids)
    single = {number: text for number, text in single_tokens(loaded.tokenizer).items() if number not in seen}
    assert len(single) > 5
    expected = np.asarray(SearchEngine(index).embed(list(single.values()), "document"))
    found = loaded.vectors[list(single)]
    assert (found * expected).sum(axis=1) == pytest.approx(np.linalg.norm(found, axis=1), rel=1e-3)


def test_a_question_finds_the_documents_closest_to_its_vector(index: Path, table: Path) -> None:
    engine = answering_by(SearchEngine(index), table)
    stored = Index.open(index)
    vectors = np.concatenate([rows for _, rows in LiveRows(stored).vector_blocks()])
    expected = np.argsort(-(vectors @ np.asarray(engine.embed([QUERY])[0])), kind="stable")[:5]
    assert [hit.id for hit in engine.search(QUERY, 5)] == stored.documents.ids(expected.tolist())
    assert [hit.id for hit in engine.search_vectors(engine.encode([QUERY]), 5)[0]] == [
        hit.id for hit in engine.search(QUERY, 5)
    ]
    assert isinstance(engine.encode([QUERY]), UnitVectors)
    assert not isinstance(engine.encode([QUERY], "document"), UnitVectors)


def test_the_own_model_is_not_needed(index: Path, table: Path, tmp_path: Path) -> None:
    copy = tmp_path / "index"
    shutil.copytree(index, copy)
    with answering_by(SearchEngine(copy, tmp_path / "no-model"), table) as engine:
        assert len(engine.search(QUERY, 3)) == 3
        with pytest.raises(ModelError):
            engine.embed(["a"], "document")


@pytest.fixture(scope="module")
def other(index: Path) -> Path:
    distill_index(index, index.parent / "other", DistillOptions(sample=60))
    return index.parent / "other"


def test_a_chosen_table_replaces_one_that_is_being_loaded(
    index: Path, table: Path, other: Path, tmp_path: Path
) -> None:
    copy, recorded = tmp_path / "index", tmp_path / "table"
    shutil.copytree(index, copy)
    shutil.copytree(table, recorded)
    refit_index(copy, [f"queries.encoder={json.dumps(str(recorded))}"])
    expected = answering_by(SearchEngine(copy), other).embed([QUERY])
    assert np.array_equal(answering_by(SearchEngine(copy, ahead=True), other).embed([QUERY]), expected)
    own = answering_by(SearchEngine(copy), "").embed([QUERY])
    shutil.rmtree(recorded)
    assert np.array_equal(answering_by(SearchEngine(copy, ahead=True), "").embed([QUERY]), own)


def test_a_table_chosen_during_the_first_query_of_another_thread_answers(
    index: Path, table: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, loading, choosing = answering_by(SearchEngine(index), table), Event(), Event()

    def slow(*arguments: Any) -> Any:
        loading.set()
        assert choosing.wait(30)
        return open_query_encoder(*arguments)

    monkeypatch.setattr("search.open_index.open_query_encoder", slow)
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(engine.embed, [QUERY])
        assert loading.wait(30)
        chosen = threads.submit(engine.encode_queries_by, other)
        sleep(0.2)  # until it waits for the first query
        second = threads.submit(engine.embed, [QUERY])
        sleep(0.2)
        choosing.set()
        for done in (first, chosen, second):
            done.result(30)
    expected = answering_by(SearchEngine(index), other).embed([QUERY])
    assert np.array_equal(engine.embed([QUERY]), expected)


@pytest.mark.parametrize("chosen", ["", "table"])
def test_the_next_generation_shares_an_encoder_that_is_being_loaded(
    index: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: str
) -> None:
    copy, loaded = tmp_path / "index", list[Any]()
    shutil.copytree(index, copy)
    if chosen:
        refit_index(copy, [f"queries.encoder={json.dumps(str(table))}"])

    def slow(*arguments: Any) -> Any:
        sleep(0.2)
        loaded.append(arguments)
        return open_encoder(*arguments)

    for place in ("open_index", "query_encoder"):
        monkeypatch.setattr(f"search.{place}.open_encoder", slow)
    engine = SearchEngine(copy, ahead=True)
    newest = engine.newest()
    assert np.array_equal(engine.embed([QUERY]), newest.embed([QUERY]))
    assert len(loaded) == 1


def test_tuning_leaves_the_table_out_of_its_recipe(index: Path, table: Path, tmp_path: Path) -> None:
    copy = tmp_path / "index"
    shutil.copytree(index, copy)
    refit_index(copy, [f"queries.encoder={json.dumps(str(table))}"])
    sweep = Sweep(strengths=(0.0, 0.5))
    result = run_tune(Target.of_index(copy), TuneOptions(sample=60, recipe_file=Path("tuned.toml")), sweep)
    assert not result["recipe"]["queries"]["encoder"]
    assert any("leaves out the query encoder" in note for note in result.notes)
    refit_index(copy, recipe=BuildConfig.from_dict(result["recipe"]))  # the command that it names
    assert SearchEngine(copy).search(QUERY, 3)


def test_losses_are_paired_and_read_back(index: Path, table: Path, tmp_path: Path) -> None:
    result = read_result(table / "measurement.json")
    assert [(row["task"], row["setting"]) for row in result["results"]] == [
        ("drawn questions", "own encoder"),
        ("drawn questions", "table"),
    ]
    own, other = (row["measure"]["MRR"]["value"] for row in result["results"])
    assert result["comparisons"][0]["measure"]["MRR"]["value"] == pytest.approx(other - own)
    (shown,) = tables_of(result, compare=False)
    assert shown.rows[0][0] == "drawn questions, MRR"
    assert any("same" in remark for remark in shown.remarks)


def test_judged_queries_and_pairs_are_measured(index: Path, tmp_path: Path) -> None:
    folder = tmp_path / "judged"
    (folder / "qrels").mkdir(parents=True)
    (folder / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": QUERY}) + "\n")
    (folder / "qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td3\t1\nq\td9\t1\n")
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{n / 10}\twhale song {'abcdefghij'[n % 10]}\tdeep sea {n % 3}\n" for n in range(12)))
    result = distill_index(index, tmp_path / "table", DistillOptions(beir=(folder,), sts=(pairs,), hybrid=True))
    tasks = [pair["task"] for pair in result["comparisons"]]
    assert tasks[:3] == ["drawn questions", "judged", "judged, hybrid"]
    engine = answering_by(SearchEngine(index), tmp_path / "table")
    found = [hit.id for hit in engine.search(QUERY, 10)]
    ideal = 1 + 1 / np.log2(3)
    gain = sum(1 / np.log2(2 + found.index(name)) for name in ("d3", "d9") if name in found)
    row = next(r for r in result["results"] if (r["task"], r["setting"]) == ("judged", "table"))
    assert row["measure"]["nDCG@10"]["value"] == pytest.approx(gain / ideal)


def test_a_refit_records_the_table_and_refuses_another(index: Path, table: Path, tmp_path: Path) -> None:
    copy = tmp_path / "index"
    shutil.copytree(index, copy)
    with SearchEngine(copy) as before:
        own = before.embed([QUERY])
    assert isotrope("refit", copy, "--queries-by", table).returncode == 0
    engine = SearchEngine(copy)
    assert np.array_equal(engine.embed([QUERY]), answering_by(SearchEngine(copy), table).embed([QUERY]))
    assert np.array_equal(answering_by(SearchEngine(copy), "").embed([QUERY]), own)
    add_documents([DOCUMENTS[0]], copy)  # the space stays
    delete_documents(copy, ["d3"])
    assert SearchEngine(copy).search(QUERY, 3)
    with pytest.raises(ConfigError, match=r"queries\.encoder"):
        refit_index(copy)
    with pytest.raises(ConfigError, match=r"queries\.encoder"):
        build_index(DOCUMENTS, tmp_path / "other", Index.open(copy).config)
    config = json.loads((table / "config.json").read_text())
    changed = tmp_path / "changed"
    changed.mkdir()
    for file in table.iterdir():
        (changed / file.name).write_bytes(file.read_bytes())
    (changed / "config.json").write_text(json.dumps(config | {"normalize": False}))
    refit_index(copy, [f"queries.encoder={json.dumps(str(changed))}"])
    (changed / "config.json").write_text(json.dumps(config))
    with pytest.raises(MismatchError, match="differs from the query encoder in the recipe"):
        SearchEngine(copy).search(QUERY)
    refit_index(copy, ['queries.encoder=""'])
    assert np.array_equal(SearchEngine(copy).embed([QUERY]), own)
    refit_index(copy)
    with pytest.raises(MismatchError, match="another encoder or transform"):
        answering_by(SearchEngine(copy), table).search(QUERY)


def test_a_server_answers_by_the_table(index: Path, table: Path, tmp_path: Path) -> None:
    copy = tmp_path / "index"
    shutil.copytree(index, copy)
    refit_index(copy, [f"queries.encoder={json.dumps(str(table))}"])
    engine, texts = SearchEngine(copy), [f"{QUERY} {word}" for word in "abcdefghij"] * 4
    asked = [SearchOptions(3), SearchOptions(3, hybrid=True)]

    async def use(service: SearchService) -> None:
        replies = await asyncio.gather(*(service.search(texts, options) for options in asked))
        for options, reply in zip(asked, replies, strict=True):
            expected = engine.search_many(texts, options)
            assert [[hit.id for hit in answer] for answer in reply.answers] == [
                [hit.id for hit in answer] for answer in expected
            ]
        for role in ("query", "document"):
            embedded = await service.embed(texts, role)
            np.testing.assert_allclose(embedded.vectors, engine.embed(texts, role), atol=1e-5)
        assert (await service.info())["recipe"]["queries"]["encoder"] == "table"

    with_service(copy, use)


def test_a_server_notes_its_encoder_of_questions(
    index: Path, table: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copy = shutil.copytree(index, tmp_path / "index")
    refit_index(copy, [f"queries.encoder={json.dumps(str(table))}"])
    caplog.set_level("INFO", "isotrope.server")
    for folder, chosen in ((index, None), (index, str(table)), (copy, None), (copy, "")):
        engine_of(folder, {"model": None, "recall": None, "query_encoder": chosen})
    assert caplog.messages == [f"questions are encoded by {table}"] * 2


def test_the_command_line(index: Path, table: Path, tmp_path: Path) -> None:
    done = isotrope("distill", index, "-o", tmp_path / "new", "--quiet")
    assert done.returncode == 0, done.stderr
    assert f"isotrope refit {index} --queries-by {tmp_path / 'new'}" in done.stdout
    lost = json.loads((tmp_path / "new/measurement.json").read_text())["comparisons"][0]["measure"]["MRR"]
    assert ("is worse than the own encoder on all" in done.stdout) == (lost["decided"] and lost["value"] < 0)
    answer = isotrope("query", index, QUERY, "--encoder", table, "-k", "2", "--json")
    expected = answering_by(SearchEngine(index), table).search(QUERY, 2)
    assert [hit["id"] for hit in json.loads(answer.stdout)["hits"]] == [hit.id for hit in expected]
    assert isotrope("query", "--url", "http://localhost:1", "--encoder", table, QUERY).returncode == 2


def test_bad_folders_are_refused(index: Path, table: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"contains no query_encoder\.json"):
        answering_by(SearchEngine(index), tmp_path).search(QUERY)
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in table.iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    described = json.loads((broken / "query_encoder.json").read_text())
    for change, message in (
        ({"format": 9}, "has format 9"),
        ({"dim": 3}, "has dim 3"),
        ({"dim": "x"}, "query_encoder"),
    ):
        (broken / "query_encoder.json").write_text(json.dumps(described | change))
        with pytest.raises(ModelError, match=message):
            answering_by(SearchEngine(index), broken).search(QUERY)


def test_what_cannot_be_distilled(index: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(ExistsError):
        distill_index(index, tmp_path / "full")
    with pytest.raises(EvaluationError, match="expected a BEIR folder"):
        distill_index(index, tmp_path / "table", DistillOptions(beir=(tmp_path / "none",)))
    small = tmp_path / "small"
    build_index(DOCUMENTS, small, Index.open(index).config)
    with pytest.raises(EvaluationError, match="too few to measure a table"):
        distill_index(small, tmp_path / "table")
    delete_documents(small, [document.id for document in DOCUMENTS])
    with pytest.raises(EvaluationError, match="too few to measure a table"):
        distill_index(small, tmp_path / "table")
    given = tmp_path / "given"
    documents = long_documents(120)
    build_index(documents, given, vectors=np.random.default_rng(0).normal(size=(120, 8)).astype(np.float32))
    with pytest.raises(ConfigError, match="came with the corpus"):
        distill_index(given, tmp_path / "table")
    for vocabulary, error in (
        ("", ModelError),
        ('"model": {"type": "WordLevel", "vocab": {}, "unk_token": "x"}', ConfigError),
    ):
        (tmp_path / "full/tokenizer.json").write_text(f"{{{vocabulary}}}")
        with pytest.raises(error, match=r"tokenizer\.json"):
            distill_index(index, tmp_path / "table", DistillOptions(tokenizer=tmp_path / "full"))
    assert not (tmp_path / "table").exists()
