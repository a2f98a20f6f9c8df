"""Measurement of settings by the user's own queries and judgements: nDCG@10 over the whole corpus."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from indexer.arrays import Float64Array, SearchResult
from indexer.corpus.corpus import OnError
from indexer.progress import NoProgress, Progress
from indexer.recipe.ranking import HybridConfig
from search.evaluation.embeddings import encode_with_lengths
from search.evaluation.retrieval.beir import read_judged
from search.evaluation.retrieval.corpus import open_collection
from search.evaluation.retrieval.metrics import measure as judged_values
from search.evaluation.retrieval.metrics import ranked_ids
from search.evaluation.retrieval.reranked import whole_texts
from search.evaluation.retrieval.runs import Asked, runs_of_settings
from search.evaluation.sweep import Setting
from search.evaluation.target import Target
from search.evaluation.tune.choice import MeasuredSetting
from search.evaluation.tune.rerank_depth import DEPTHS, FirstHits
from search.ranking.bm25 import BM25Ranking
from search.ranking.exact import id_order
from search.ranking.fusion import list_depth

_DEPTH = 10
_MEASURE = f"nDCG@{_DEPTH}"


@dataclass
class QrelsJudge:
    """The queries and judgements of a BEIR folder, on the raw embeddings of an index or on the folder's corpus."""

    subject: Target
    folder: Path
    split: str = "test"
    cache: Path | None = None
    progress: Progress = field(default_factory=NoProgress)
    on_error: OnError = "fail"
    centre_margin = 0.0  # the questions are the users' own

    def prepare(self, settings: Sequence[Setting]) -> None:
        """Encode the queries, and without an index the corpus."""
        self._judged = read_judged(self.folder, self.split)
        self._queries = list(self._judged.queries.values())
        self.source = self.subject.states(list(settings), self.cache, self.progress)
        self._collection, data = open_collection(self.folder, self.subject, self.source, self.progress, self.on_error)
        self.data = self._judged.files | data
        self._names = list(self._collection.ids)
        self._places = id_order(self._names)
        matched = self._judged.match(set(self._names))
        self._states, self._lengths = encode_with_lengths(self.source, self._queries, "query")
        self._collection.prepare(any(setting.whitening.centres_by_role for setting in settings))
        self.notes = [*self._judged.notes, *self._collection.notes, *matched]
        if cut := self._collection.truncated:
            encoded = "windows" if self.subject.config.chunk.tokens else "documents"
            self.notes.append(f"{cut:,} {encoded} were truncated at {self.source.spec.identity.max_length} tokens")

    @property
    def protocol(self) -> dict[str, Any]:
        """The measure, for provenance."""
        return {"measure": _MEASURE, "kind": "judged queries", "questions": len(self._queries), "split": self.split}

    def measure(self, settings: Sequence[Setting]) -> Iterator[MeasuredSetting]:
        """Yield the nDCG@10 of every setting on each query, by exact search."""
        self.progress.phase("comparing settings", len(settings))
        for run in runs_of_settings(self._collection, settings, self._asked(_DEPTH), self._places):
            digest = None if run.setting.raw else run.transform
            yield MeasuredSetting(run.setting, self._values(run.found), run.dimensions, digest, run.note)
            self.progress.advance(1)

    def weigh(self, setting: Setting, fusions: Sequence[HybridConfig]) -> list[Float64Array]:
        """Return the nDCG@10 of the setting on each query, fused with BM25 by each of `fusions`."""
        self.progress.phase("comparing weights", None)
        config = self.subject.config.hybrid
        texts, starts = self._collection.bm25_texts(config.unit)
        words = BM25Ranking.of(texts, self._places, config, "hybrid", starts)
        asked = replace(self._asked(list_depth(_DEPTH)), fusions=fusions, lengths=self._lengths)
        (run,) = runs_of_settings(self._collection, [setting], asked, self._places, words)
        return [self._values(hits) for hits in run.hybrids]

    def first_hits(self, setting: Setting) -> FirstHits:
        """Return the hits of the setting for each query, to be reranked; whole documents, even if they are chunked."""
        asked = self._asked(max(_DEPTH, *DEPTHS))
        (run,) = runs_of_settings(self._collection, [setting], asked, self._places)
        return FirstHits(self._queries, run.found, whole_texts(self._collection.texts()), self._places, self._values)

    def _asked(self, depth: int) -> Asked:
        return Asked(self._queries, self._states, self._queries, depth)

    def _values(self, hits: Sequence[SearchResult]) -> Float64Array:
        """Return nDCG@10 of each query."""
        ranked = ranked_ids(self._judged.queries, hits, self._names, _DEPTH)
        return judged_values(self._judged.judgements, ranked, (_DEPTH,))[_MEASURE]
