"""The retriever in PyTerrier's pipelines and experiments."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from search import SearchEngine
from tests.documents import DOCUMENTS

pytestmark = [
    pytest.mark.check,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),  # in PyTerrier's own code
]
pytest.importorskip("pyterrier", reason="needs the extra isotrope[pyterrier]")

import pyterrier as pt

from search.integrations.pyterrier import IsotropeRetriever

TOPICS = pd.DataFrame({"qid": ["q1", "q2"], "query": ["molten sand", "nothing alike"], "lang": ["en", "en"]})


@pytest.fixture(scope="module")
def engine(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> SearchEngine:
    path = tmp_path_factory.mktemp("pyterrier") / "index"
    return SearchEngine.from_texts(DOCUMENTS, path, model=tiny_model("bert"))


def test_a_pipeline_ranks_as_the_engine(engine: SearchEngine) -> None:
    found: Any = (IsotropeRetriever(engine, k=5, where={"year": {">": 1991}}) % 3)(TOPICS)
    answers = engine.search_many(TOPICS["query"].tolist(), k=3, where={"year": {">": 1991}})
    assert found["docno"].tolist() == [hit.id for answer in answers for hit in answer]
    assert found["score"].tolist() == pytest.approx([hit.score for answer in answers for hit in answer], abs=1e-6)
    assert found["qid"].tolist() == ["q1"] * 3 + ["q2"] * 3
    assert (found["rank"].tolist(), found["lang"].tolist()) == ([0, 1, 2] * 2, ["en"] * 6)
    first: Any = IsotropeRetriever(engine.index.path, k=1)(TOPICS)
    assert first["text"].tolist() == [engine.search(query, k=1)[0].text for query in TOPICS["query"]]


def test_topics_without_hits_have_no_rows(engine: SearchEngine) -> None:
    none: Any = IsotropeRetriever(engine, where={"year": 0})
    assert none(TOPICS).empty
    assert {"qid", "docno", "score", "rank"} <= set(none(TOPICS.iloc[:0]).columns)


def test_an_experiment_measures_a_retriever(engine: SearchEngine) -> None:
    qrels = pd.DataFrame({"qid": ["q1", "q2"], "docno": ["d7", "d8"], "label": [1, 1]})
    table = pt.Experiment([IsotropeRetriever(engine, k=9)], TOPICS, qrels, ["recip_rank", "recall_9"])
    ranks = [[hit.id for hit in engine.search(query, k=9)].index(docno) + 1
             for query, docno in zip(TOPICS["query"], qrels["docno"], strict=True)]  # fmt: skip
    assert table["recip_rank"][0] == pytest.approx(sum(1 / rank for rank in ranks) / 2)
