"""`compare_vectors`: every way against a slow oracle, on indexes that share most documents; and what is refused."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from indexer import BuildConfig, Document, build_index, delete_documents
from indexer.errors import ConfigError, EvaluationError
from indexer.hashing import hash_id
from search.evaluation.result import read_result
from search.evaluation.retrieval.retrieval import RetrievalOptions, evaluate_retrieval
from search.evaluation.tables import tables_of
from search.evaluation.target import Target
from search.migration import GivenQueries, compare_vectors, vectors
from search.migration.maps import FOLDS, MAP_KINDS, BothSides, fit_map
from tests.documents import DOCUMENTS
from tests.search.cli.test_cli import isotrope

Rows = npt.NDArray[np.float64]
SHARED = [f"d{number}" for number in range(70)]
QUERIES = [f"q{number}" for number in range(11)]
JUDGED = {query: {f"d{7 * n % 70}": 2, f"d{(7 * n + 30) % 70}": 1, "a1": 1} for n, query in enumerate(QUERIES)}
JUDGED["q10"] = {"a0": 1}  # the new index does not contain it


@dataclass(frozen=True)
class Model:
    """Embeddings by id, which models and indexes store exactly."""

    documents: dict[str, Rows]
    queries: dict[str, Rows]


def model_of(texts: dict[str, Rows], dim: int, noise: float) -> Model:
    chance = np.random.default_rng(dim)
    matrix = chance.normal(size=(8, dim))
    made = {name: np.round(64 * (row @ matrix + noise * chance.normal(size=dim))) / 64 for name, row in texts.items()}
    made["d35"] = made["d0"]  # a tie
    return Model({n: r for n, r in made.items() if n[0] != "q"}, {n: r for n, r in made.items() if n[0] == "q"})


@dataclass(frozen=True)
class Setup:
    old: Path
    new: Path
    task: GivenQueries
    models: tuple[Model, Model]


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    folder, chance = tmp_path_factory.mktemp("vectors"), np.random.default_rng(0)
    texts = {name: chance.normal(size=8) for name in (*SHARED, "a0", "a1", "b0", "b1", "b2")}
    for query, judged in JUDGED.items():
        texts[query] = texts[next(iter(judged))] + chance.normal(size=8)
    models = model_of(texts, 6, 2.0), model_of(texts, 9, 0.3)
    ids = [[*SHARED, "a0", "a1"], [*SHARED[::-1], "b0", "b1", "b2"]]
    for name, model, own in zip(("old", "new"), models, ids, strict=True):
        build(folder / name, own, model)
        write_queries(folder / f"{name}-q.npy", QUERIES[::-1], model)
    write_judged(folder / "beir", JUDGED)
    task = GivenQueries(folder / "beir", folder / "old-q.npy", folder / "new-q.npy")
    return Setup(folder / "old", folder / "new", task, models)


def build(index: Path, ids: Sequence[str], model: Model) -> None:
    rows = np.stack([model.documents[name] for name in ids])
    build_index([Document(name, "") for name in ids], index, vectors=rows)


def write_queries(file: Path, ids: Sequence[str], model: Model) -> None:
    np.save(file, np.stack([model.queries[name] for name in ids]))
    file.with_suffix(".ids.txt").write_text("".join(f"{name}\n" for name in ids))


def write_judged(folder: Path, judged: dict[str, dict[str, int]]) -> None:
    (folder / "qrels").mkdir(parents=True)
    (folder / "queries.jsonl").write_text("".join(json.dumps({"_id": q, "text": "x"}) + "\n" for q in judged))
    lines = [f"{query}\t{name}\t{gain}\n" for query, of in judged.items() for name, gain in of.items()]
    (folder / "qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))


def unit(row: Rows) -> Rows:
    return row / np.linalg.norm(row)


def order(query: Rows, model: Model, among: Sequence[str]) -> list[str]:
    scores = {name: round(float(unit(query) @ unit(model.documents[name])), 12) for name in among}
    return sorted(among, key=lambda name: (-scores[name], name))


def scores_of(query: str, ranking: Sequence[str]) -> tuple[float, float]:
    """Return the reciprocal rank and nDCG@10."""
    gains = [JUDGED[query].get(name, 0) for name in ranking]
    ideal = sorted(JUDGED[query].values(), reverse=True)
    dcg, best = (sum(gain / np.log2(2 + place) for place, gain in enumerate(of[:10])) for of in (gains, ideal))
    return next((1 / (1 + place) for place, gain in enumerate(gains) if gain), 0.0), float(dcg / best)


def mapped(kind: Any, old: Model, new: Model, fitted: int) -> dict[str, Rows]:
    """Return each query in the old space by the map that was fitted without its fold."""
    documents = sorted(SHARED, key=hash_id)[:fitted]
    found = {}
    for place, query in enumerate(QUERIES):
        others = [name for number, name in enumerate(QUERIES) if number % FOLDS != place % FOLDS]
        sides = BothSides(
            np.stack([new.documents[name] for name in documents]),
            np.stack([unit(old.documents[name]) for name in documents]),
            np.stack([new.queries[name] for name in others]),
            np.stack([unit(old.queries[name]) for name in others]),
        )
        found[query] = fit_map(kind, sides)(new.queries[query][None])[0].astype(np.float64)
    return found


def oracle(old: Model, new: Model, fitted: int) -> dict[str, list[tuple[float, float]]]:
    first = {query: order(old.queries[query], old, SHARED) for query in QUERIES}
    rankings = {"the index as it is": first}
    for depth in (20, 50):
        rankings[f"{depth} candidates rescored"] = {
            query: [*order(new.queries[query], new, first[query][:depth]), *first[query][depth:]] for query in QUERIES
        }
    for kind in MAP_KINDS:
        queries = mapped(kind, old, new, fitted)
        rankings[f"questions mapped, {kind}"] = {query: order(queries[query], old, SHARED) for query in QUERIES}
    rankings["the new encoder alone"] = {query: order(new.queries[query], new, SHARED) for query in QUERIES}
    return {way: [scores_of(query, of[query]) for query in QUERIES] for way, of in rankings.items()}


@pytest.mark.parametrize("fitted", [10_000, 15])
def test_every_way_has_the_scores_of_the_oracle(setup: Setup, fitted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "_FITTED", fitted)
    result, expected = compare_vectors(setup.old, setup.new, setup.task), oracle(*setup.models, fitted)
    assert [row["setting"] for row in result["results"]] == list(expected)
    for row in result["results"]:
        means = dict(zip(("MRR", "nDCG@10"), np.mean(expected[row["setting"]], axis=0), strict=True))
        assert {name: row["measure"][name]["value"] for name in means} == pytest.approx(means), row["setting"]
    before = np.array(expected["the index as it is"])
    for row in result["comparisons"]:
        gains = (np.array(expected[row["setting"]]) - before)[:, 0]
        compared = row["measure"]["MRR"]
        assert compared["value"] == pytest.approx(gains.mean())
        assert [compared[name] for name in ("won", "lost")] == [(gains > 1e-9).sum(), (gains < -1e-9).sum()]
    assert ("maps are fitted on 15 of the 70 documents" in result.notes) == (fitted == 15)


def test_the_result_says_what_to_use_what_was_left_out_and_that_nothing_is_encoded(
    setup: Setup, tmp_path: Path
) -> None:
    output = tmp_path / "result.json"
    files = {"--query-vectors": setup.task.query_vectors, "--to-query-vectors": setup.task.to_query_vectors}
    given = [str(word) for pair in files.items() for word in pair]
    arguments = ["migrate", str(setup.old), "--to-index", str(setup.new), "--beir", str(setup.task.folder)]
    done = isotrope(*arguments, *given, "-o", str(output))
    result = read_result(output)
    assert result["choice"]["best"] == "the new encoder alone"
    assert done.stdout.endswith(f"\nuse it: search {setup.new} instead of {setup.old}\n")
    assert "beir, test: x 100, means over 11 queries; 70 documents" in done.stdout
    assert "Price" not in done.stdout
    assert (result["price"]["documents"], result["price"]["seconds"]) == (0, 0)
    assert [note.partition(" of ")[0] for note in result.notes] == ["2", "2 documents", "3 documents"]
    assert {"old old-q.npy", "new new-q.npy"} <= {*result["provenance"]["data"]}
    again = compare_vectors(setup.old, setup.new, setup.task)
    assert (again["results"], again["choice"]) == (result["results"], result["choice"])
    assert [table.rows for table in tables_of(again)] == [table.rows for table in tables_of(result)]
    for wrong, reason in (
        (["--sample", "60"], "--sample does not apply to --to-index"),
        (["--mode", "full"], "--mode does not apply"),
    ):
        assert reason in isotrope(*arguments, *given, *wrong).stderr
    assert "Fix: name their folder with --beir" in isotrope(*arguments[:4]).stderr
    assert "Fix: name it with --to-index" in isotrope("migrate", str(setup.old), *given).stderr


def test_a_worse_index_is_not_recommended_and_deleted_documents_are_left_out(setup: Setup, tmp_path: Path) -> None:
    new = setup.models[1]
    away = replace(new, queries={name: -row for name, row in new.queries.items()})
    build(tmp_path / "worse", SHARED, away)
    write_queries(tmp_path / "q.npy", QUERIES, away)
    delete_documents(tmp_path / "worse", ["d1", "d2"])
    task = GivenQueries(setup.task.folder, setup.task.to_query_vectors, tmp_path / "q.npy")
    result = compare_vectors(setup.new, tmp_path / "worse", task)
    assert result["comparisons"][-1]["measure"]["MRR"]["high"] < 0
    assert (result["choice"]["setting"], result["choice"]["command"]) == ("the index as it is", "")
    assert "not better here" in result["choice"]["reason"]
    assert result["provenance"]["protocol"]["documents"] == 68
    assert f"5 documents of {setup.new} left out, not in the other index" in result.notes


def test_an_encoded_side_is_asked_by_its_model_and_measured_as_evaluate_retrieval_does(
    tmp_path: Path, tiny_config: BuildConfig
) -> None:
    ids = [document.id for document in DOCUMENTS]
    build_index(DOCUMENTS, tmp_path / "encoded", tiny_config)
    random = np.random.default_rng(1)
    queries = QUERIES[:6]
    model = Model({name: random.normal(size=5) for name in ids}, {name: random.normal(size=5) for name in queries})
    build(tmp_path / "given", ids, model)
    write_queries(tmp_path / "q.npy", queries, model)
    write_judged(tmp_path / "beir", {name: {ids[number]: 1} for number, name in enumerate(queries)})
    task = GivenQueries(tmp_path / "beir", None, tmp_path / "q.npy")
    result = compare_vectors(tmp_path / "encoded", tmp_path / "given", task)
    for row, name, file in ((0, "encoded", None), (-1, "given", tmp_path / "q.npy")):
        options = RetrievalOptions(tmp_path / "beir", cutoffs=(10,), bm25=False, query_vectors=file)
        measured = evaluate_retrieval(Target.of_index(tmp_path / name), options)["results"][0]["measure"]
        for measure, figure in result["results"][row]["measure"].items():
            assert figure["value"] == pytest.approx(measured[measure]["value"])


def test_indexes_and_queries_that_cannot_be_compared_are_refused(
    setup: Setup, tmp_path: Path, tiny_config: BuildConfig
) -> None:
    old, new, task = setup.old, setup.new, setup.task
    build(tmp_path / "b", ["b0", "b1"], setup.models[1])
    build_index(DOCUMENTS, tmp_path / "chunked", tiny_config.with_overrides(["chunk.tokens=8", "chunk.overlap=2"]))
    write_queries(tmp_path / "few.npy", QUERIES[:9], setup.models[1])
    write_judged(tmp_path / "four", {query: JUDGED[query] for query in QUERIES[:4]})
    write_judged(tmp_path / "others", {query: {"elsewhere": 1} for query in QUERIES})
    refused: list[tuple[type[Exception], str, Path, GivenQueries]] = [
        (ConfigError, "both indexes are this one", old, task),
        (ConfigError, r"embeddings of the queries: query_vectors=FILE", new, replace(task, query_vectors=None)),
        (ConfigError, r"embeddings of the queries: to_query_vectors=FILE", new, replace(task, to_query_vectors=None)),
        (ConfigError, "several windows", tmp_path / "chunked", replace(task, to_query_vectors=None)),
        (EvaluationError, r"have no common id \(d0, b0\)", tmp_path / "b", task),
        (EvaluationError, "has no vector for 2 of 11", new, replace(task, to_query_vectors=tmp_path / "few.npy")),
        (EvaluationError, "the vectors have 6 numbers", new, replace(task, to_query_vectors=task.query_vectors)),
        (EvaluationError, "has 4 judged queries; expected at least 5", new, replace(task, folder=tmp_path / "four")),
        (EvaluationError, "the ids do not match", new, replace(task, folder=tmp_path / "others")),
    ]
    for error, reason, other, given in refused:
        with pytest.raises(error, match=reason):
            compare_vectors(old, other, given)
