"""Everything that reads an index reads one without documents: never filled, or emptied and not compacted."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from indexer import BuildConfig, add_documents, build_index, delete_documents
from indexer.encoders.protocol import EncodeStats
from indexer.errors import ConfigError, EvaluationError, UnknownDocumentError
from indexer.recipe.config import EncoderConfig
from search import SearchClient, SearchEngine, verify_index
from search.dedup import deduplicate
from search.describe import describe_index, settings_in_words
from search.evaluation.recall.recall import evaluate_recall
from search.evaluation.report.page import write_report
from search.export.faiss import export_faiss
from search.export.parquet import export_parquet
from tests.documents import DOCUMENTS
from tests.servers import live_server

FIELDS = [{}, {"hybrid": True}, {"where": "year > 1990"}, {"group_by": "year"}, {"fold": 0.9}, {"exact": True}]


@pytest.fixture(params=["never filled", "emptied"])
def empty(request: pytest.FixtureRequest, tiny_config: BuildConfig, tmp_path: Path) -> Path:
    index = tmp_path / "index"
    if request.param == "never filled":
        build_index([], index, tiny_config)
    else:
        build_index(DOCUMENTS, index, tiny_config)
        delete_documents(index, [document.id for document in DOCUMENTS])
    return index


@pytest.mark.parametrize("fields", FIELDS, ids=str)
def test_every_answer_is_empty(fields: dict[str, Any], empty: Path) -> None:
    with SearchEngine(empty) as engine:
        log = EncodeStats()
        assert engine.search_many(["whales", "bread"], 3, log, **fields) == [[], []]
        assert len(log.lengths) == 2
        assert engine.rank_among(["whales"], [["d1"]], **fields) == [[]]
        assert len(engine) == 0
        assert engine.newest().search("whales") == []


def test_no_document_is_found_by_id(empty: Path) -> None:
    with SearchEngine(empty) as engine:
        for look_up in (engine.neighbours, engine.document):
            with pytest.raises(UnknownDocumentError, match='no document with id "d1"'):
                look_up("d1")
        assert sum(len(facet.values) for facet in engine.facets()) == 0


def test_an_engine_in_use_follows_the_first_addition(empty: Path) -> None:
    with SearchEngine(empty) as engine:
        assert engine.search("whales") == []
        add_documents(DOCUMENTS[:1], empty)
        assert [hit.id for hit in engine.newest().search("whales")] == ["d0"]


def test_reports_and_exports_of_no_documents(empty: Path, tmp_path: Path) -> None:
    assert not verify_index(empty).problems
    with SearchEngine(empty) as engine:
        assert describe_index(engine.index)["documents"] == 0
        assert "normalisation" in settings_in_words(describe_index(engine.index))["transform"] or engine.index.segments
        for measure in (lambda: evaluate_recall(engine), lambda: write_report(engine, tmp_path / "report.html")):
            with pytest.raises(EvaluationError, match=r"has no documents.*Fix: add documents first"):
                measure()
    assert deduplicate(empty, 0.9).table.num_rows == 0
    export_parquet(empty, tmp_path / "rows.parquet")
    assert pq.read_table(tmp_path / "rows.parquet").num_rows == 0
    assert export_faiss(empty, tmp_path / "rows.faiss").facts["rows"] == 0


def test_vectors_of_unknown_dimensions_can_be_read(tmp_path: Path) -> None:
    index = tmp_path / "index"
    build_index([], index, BuildConfig(encoder=EncoderConfig(kind="vectors")))
    with SearchEngine(index) as engine:
        assert engine.search_vectors(np.ones((2, 7)), where="year > 1990") == [[], []]
    assert deduplicate(index, 0.9).table.num_rows == 0
    with pytest.raises(ConfigError, match="its first vectors decide the dimensions"):
        export_faiss(index, tmp_path / "rows.faiss")


def test_a_server_answers_from_no_documents(empty: Path) -> None:
    with live_server(empty) as server, SearchClient(server.url) as client:
        assert client.search_many(["whales"], where="year > 1990") == [[]]
        routes = server.client.get("/openapi.json").json()["paths"]
        for path in (path for path, methods in routes.items() if "get" in methods and "{" not in path):  # 422: no id
            assert server.client.get(path).status_code in (200, 422), path
