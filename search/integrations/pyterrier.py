"""Indexes in PyTerrier (extra `pyterrier`): a retriever for its pipelines and experiments."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from indexer.lazy_imports import require_extra
from search.engine import SearchEngine
from search.export.trec import strictly_falling
from search.hits import Hit
from search.ranking.options import SearchOptions

require_extra("pyterrier", "pyterrier")

import pyterrier as pt


class IsotropeRetriever(pt.Transformer):
    """Returns the documents that an index finds for each query: `docno`, `score`, `rank` and `text`.

    `index` is a path or an engine with an encoder. The other arguments are those of `SearchEngine.search`, such as
    `k=1000` and `hybrid=True`. PyTerrier sorts by score in an order of its own for ties, so scores are passed without
    ties, in the order of the index. Raises the errors of `SearchEngine`.
    """

    def __init__(self, index: SearchEngine | str | Path, **options: Any) -> None:
        self.engine = index if isinstance(index, SearchEngine) else SearchEngine(index)
        self.options = SearchOptions(**options)
        super().__init__()

    def transform(self, topics: pd.DataFrame) -> pd.DataFrame:
        """Return the hits of all `query`s, one a row, with the columns of their topic."""
        pt.validate.query_frame(topics, extra_columns=["query"])
        answers = self.engine.search_many(topics["query"].tolist(), self.options)
        rows = [
            {"place": place, "docno": hit.id, "score": score, "rank": rank, "text": hit.text}
            for place, hits in enumerate(answers)
            for rank, (hit, score) in enumerate(zip(hits, _scores(hits), strict=True))
        ]
        hits = pd.DataFrame(rows, columns=["place", "docno", "score", "rank", "text"])
        kept = topics.drop(columns=hits.columns, errors="ignore").reset_index(drop=True)
        return kept.merge(hits, left_index=True, right_on="place").drop(columns="place").reset_index(drop=True)


def _scores(hits: Sequence[Hit]) -> list[float]:
    scores: list[float] = strictly_falling(np.array([hit.score for hit in hits], np.float32)).tolist()
    return scores
