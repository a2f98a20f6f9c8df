"""Whether reranking pays, and how deep (`rerank.depth`), on the questions that settings are tuned on.

Every question's first hits are scored once, as deep as the deepest depth, so that all depths are judged by the same
scores. Reranking is advised only where some depth is told to be better than none (see `choice`); then it is the
smallest depth that is, of those that cannot be told from the best.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from indexer.arrays import Float64Array, RowIds, SearchResult
from indexer.models.cross_encoder_spec import with_recorded_hash
from indexer.progress import Progress
from indexer.recipe.config import BuildConfig
from indexer.recipe.ranking import RerankConfig
from search.evaluation.bootstrap import Difference, draw_counts, mean_difference, mean_interval
from search.evaluation.retrieval.reranked import PairScores, TextsOf, rerank_run
from search.evaluation.tune.choice import TOLD, is_better
from search.ranking.cross_encoder import another_model
from search.ranking.reranker import Reranker, RerankerChoice
from search.text import counted

DEPTHS = (10, 20, 50, 100)
QUESTIONS = 300  # drawn ones that are reranked, at most: each costs as many pairs as the deepest depth


@dataclass(frozen=True)
class FirstHits:
    """What a setting finds for each question, best first, what of it is read, and how rankings are judged."""

    queries: Sequence[str]  # (n,)
    found: Sequence[SearchResult]  # (n,): at least as many documents as the deepest depth, if there are
    texts_of: TextsOf
    places: RowIds  # of documents, as their ids are ordered
    judge: Callable[[Sequence[SearchResult]], Float64Array]  # rankings (n,) to what each scores, 0 to 1


@dataclass(frozen=True)
class RerankAdvice:
    """What no reranking and each of `DEPTHS` scored on each question, and what that says."""

    measure: str
    values: Float64Array  # (1 + depths, questions): the first without
    milliseconds: tuple[float, ...]  # of a question, for each depth
    by: dict[str, Any]  # what reranked, JSON types

    @property
    def best(self) -> int:
        """The place of the depth that scored highest."""
        return 1 + int(self.values[1:].mean(axis=1).argmax())

    @property
    def tied(self) -> list[int]:
        """The places of the depths that cannot be told from the best."""
        places = range(1, len(self.values))
        return [one for one in places if one == self.best or not is_better(self._beyond(one, self.best))]

    @property
    def taken(self) -> int:
        """The place of the depth that is advised; 0: reranking is not."""
        return next((place for place in self.tied if is_better(self._gain(place))), 0)

    @property
    def depth(self) -> int:
        """The depth that is advised; 0: reranking is not."""
        return DEPTHS[self.taken - 1] if self.taken else 0

    @property
    def advice(self) -> str:
        """That in words."""
        gain = self._gain(self.best)
        if not self.taken:
            better = 0.0 if gain.better is None else gain.better
            return (
                f"off, because no depth is better than none in {TOLD:.0%} of the resamples (the best, "
                f"{DEPTHS[self.best - 1]}, in {better:.0%})"
            )
        if self.taken == self.best:
            return f"on, the first {self.depth}, because that scored highest"
        return (
            f"on, the first {self.depth}, the fewest of {counted(len(self.tied), 'depth')} that cannot be told from "
            "the highest"
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON types: a row for none and for each depth."""
        rows = [self._row(place) for place in range(len(self.values))]
        return {
            "measure": self.measure,
            "questions": self.values.shape[1],
            "advice": self.advice,
            "depth": self.depth,
            "by": self.by,
            "depths": rows,
        }

    def _row(self, place: int) -> dict[str, Any]:
        values = self.values[place]
        found = mean_interval(values, self._counts).to_dict()
        return {
            "depth": DEPTHS[place - 1] if place else 0,
            **found,
            "gain": self._gain(place).to_dict() if place else None,
            "ms": self.milliseconds[place - 1] if place else 0.0,
            "tied": bool(self.taken) and place in self.tied,
            "taken": place == self.taken,
        }

    def _gain(self, place: int) -> Difference:
        return self._beyond(0, place)

    def _beyond(self, one: int, other: int) -> Difference:
        """Second minus first, paired."""
        return mean_difference(self.values[one], self.values[other], self._counts)

    @cached_property
    def _counts(self) -> Float64Array:
        return draw_counts(self.values.shape[1], "tune")


def advise(hits: FirstHits, reranker: Reranker, measure: str, progress: Progress) -> RerankAdvice:
    """Rerank what was found as deep as each of `DEPTHS`, and judge. Raises what the reranker raises."""
    scores = PairScores(reranker, hits.queries, hits.texts_of)
    reranked = {
        depth: rerank_run(scores, hits.found, hits.places, depth, progress) for depth in sorted(DEPTHS, reverse=True)
    }
    values = np.stack([hits.judge(hits.found), *(hits.judge(reranked[depth]) for depth in DEPTHS)])
    pairs = [sum(min(depth, len(rows)) for _, rows in hits.found) / len(hits.found) for depth in DEPTHS]
    return RerankAdvice(measure, values, tuple(map(scores.milliseconds, pairs)), scores.facts)


def advised_recipe(recipe: BuildConfig, advice: RerankAdvice, chosen: RerankerChoice) -> BuildConfig:
    """The recipe with what is advised in its `[rerank]`, and the model's hash.

    As it was for a reranker that has no name, and where another than the recipe's is advised against.
    """
    if not isinstance(chosen, str | Path):
        return recipe
    if not advice.depth:
        own = recipe.rerank.sha256 in ("", advice.by.get("sha256"))
        return dataclasses.replace(recipe, rerank=RerankConfig()) if own else recipe
    rerank = dataclasses.replace(another_model(recipe.rerank, chosen), depth=advice.depth)
    return with_recorded_hash(dataclasses.replace(recipe, rerank=rerank))
