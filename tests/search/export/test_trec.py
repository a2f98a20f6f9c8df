"""The exported run: other tools read the engine's answers from it."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import ir_measures
import numpy as np
import pytest

from indexer import BuildConfig, Document, build_index
from indexer.errors import ConfigError, EvaluationError
from indexer.pipeline.delete import delete_documents
from indexer.recipe.corpus_config import ChunkConfig
from indexer.recipe.index_config import IndexConfig
from indexer.recipe.run_options import RunOptions
from search import Hit, SearchEngine
from search.export import export_trec_run
from tests.documents import DOCUMENTS

TORCH = RunOptions(backend="torch", device="cpu", threads=1)
QUERIES = {"q1": "whales that sing", "q2": "what makes bread rise", "long": "sand and glass " * 30}


@pytest.fixture
def index(tiny_config: BuildConfig, tmp_path: Path) -> Path:
    build_index(DOCUMENTS, tmp_path / "index", tiny_config, TORCH)
    return tmp_path / "index"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A BEIR folder with queries."""
    (tmp_path / "beir").mkdir()
    lines = [json.dumps({"_id": name, "text": text}) for name, text in QUERIES.items()]
    (tmp_path / "beir/queries.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path / "beir"


def lines_of(path: Path) -> list[list[str]]:
    return [line.split(" ") for line in path.read_text().splitlines()]


def test_the_run_holds_the_engines_hits_in_order(index: Path, folder: Path, tmp_path: Path) -> None:
    found = export_trec_run(SearchEngine(index, options=TORCH), tmp_path / "out.run", folder, k=4)
    engine, lines = SearchEngine(index, options=TORCH), lines_of(found.path)
    wanted = [
        [name, "Q0", hit.id, str(rank), "isotrope"]
        for name, text in QUERIES.items()
        for rank, hit in enumerate(engine.search(text, 4), start=1)
    ]
    assert [[*line[:4], line[5]] for line in lines] == wanted
    scores = [hit.score for text in QUERIES.values() for hit in engine.search(text, 4)]
    np.testing.assert_allclose([float(line[4]) for line in lines], scores, atol=1e-6)
    assert found.facts == {"queries": 3, "k": 4, "hits": 12}
    assert found.notes == ("1 query longer than 32 tokens, cut there",)


def test_ir_measures_reads_and_judges_it(index: Path, folder: Path, tmp_path: Path) -> None:
    path = export_trec_run(SearchEngine(index, options=TORCH), tmp_path / "out.run", folder).path
    run = list(ir_measures.read_trec_run(str(path)))  # type: ignore[no-untyped-call]
    assert {(entry.query_id, entry.doc_id) for entry in run} == {(q, d.id) for q in QUERIES for d in DOCUMENTS}
    first = {name: hits[0].id for name, hits in zip(QUERIES, _hits(index, 1), strict=True)}
    judgements = {name: {identity: 1} for name, identity in first.items()}
    assert ir_measures.pytrec_eval.calc_aggregate([ir_measures.RR], judgements, run)[ir_measures.RR] == 1


def _hits(index: Path, k: int) -> Sequence[Sequence[Hit]]:
    return SearchEngine(index, options=TORCH).search_many(list(QUERIES.values()), k)


def test_deleted_documents_are_absent(index: Path, folder: Path, tmp_path: Path) -> None:
    delete_documents(index, ["d0", "d7"])
    path = export_trec_run(SearchEngine(index, options=TORCH), tmp_path / "out.run", folder).path
    assert {line[2] for line in lines_of(path)} == {"d1", "d2", "d3", "d4", "d5", "d6", "d8"}


def test_a_document_of_several_windows_comes_once(tiny_config: BuildConfig, folder: Path, tmp_path: Path) -> None:
    build_index(DOCUMENTS, tmp_path / "index", replace(tiny_config, chunk=ChunkConfig(tokens=8, overlap=2)), TORCH)
    lines = lines_of(
        export_trec_run(SearchEngine(tmp_path / "index", options=TORCH), tmp_path / "out.run", folder, k=9).path
    )
    assert [line[0] for line in lines] == [name for name in QUERIES for _ in DOCUMENTS]
    assert len({(line[0], line[2]) for line in lines}) == len(lines)


def test_ties_are_in_the_order_of_ids(tiny_config: BuildConfig, tmp_path: Path) -> None:
    documents = [Document(name, "The same text.") for name in ("c", "a", "d", "b")]
    build_index([*documents, *DOCUMENTS], tmp_path / "index", tiny_config, TORCH)
    (tmp_path / "queries.txt").write_text("The same text.\n")
    path = export_trec_run(
        SearchEngine(tmp_path / "index", options=TORCH), tmp_path / "out.run", tmp_path / "queries.txt", k=3
    ).path
    assert [line[2] for line in lines_of(path)] == ["a", "b", "c"]
    scores = [float(line[4]) for line in lines_of(path)]
    assert scores == sorted(set(scores), reverse=True)  # no ties, which trec_eval would put in another order


def test_an_approximate_index_fills_k(tiny_config: BuildConfig, folder: Path, tmp_path: Path) -> None:
    documents = [Document(f"m{number:03d}", f"The data of number {number}.") for number in range(80)]
    config = BuildConfig(encoder=tiny_config.encoder, index=IndexConfig(type="IVF8,Flat", recall=0.2))
    build_index(documents, tmp_path / "index", config, TORCH)
    found = export_trec_run(SearchEngine(tmp_path / "index", options=TORCH), tmp_path / "out.run", folder, k=40)
    assert found.facts["hits"] == 3 * 40


def test_raw_embeddings_of_queries_are_taken_as_they_are(index: Path, folder: Path, tmp_path: Path) -> None:
    encoder = SearchEngine(index, options=TORCH).encoder
    np.save(tmp_path / "queries.npy", encoder.encode(list(QUERIES.values()), "query"))
    given = export_trec_run(SearchEngine(index, options=TORCH), tmp_path / "given.run", tmp_path / "queries.npy", k=3)
    export_trec_run(SearchEngine(index, options=TORCH), tmp_path / "texts.run", folder, k=3)
    assert [line[0] for line in lines_of(given.path)[::3]] == ["1", "2", "3"]
    assert [line[1:] for line in lines_of(given.path)] == [line[1:] for line in lines_of(tmp_path / "texts.run")]


def test_a_name_without_a_file_is_an_error(index: Path, tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="no such file or folder"):
        export_trec_run(SearchEngine(index, options=TORCH), tmp_path / "out.run", tmp_path / "nothing")
    with pytest.raises(EvaluationError, match="expected a BEIR folder"):
        export_trec_run(SearchEngine(index, options=TORCH), tmp_path / "out.run", tmp_path)


def test_k_below_one_is_an_error(index: Path, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="k is 0"):
        export_trec_run(SearchEngine(index, options=TORCH), tmp_path / "out.run", folder, k=0)


def test_ids_with_white_space_are_refused(tiny_config: BuildConfig, folder: Path, tmp_path: Path) -> None:
    build_index([*DOCUMENTS, Document("a b", "Some text.")], tmp_path / "index", tiny_config, TORCH)
    with pytest.raises(EvaluationError, match="Fix: use ids without white space"):
        export_trec_run(SearchEngine(tmp_path / "index", options=TORCH), tmp_path / "out.run", folder)
    assert not (tmp_path / "out.run").exists()
