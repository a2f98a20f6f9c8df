"""Advice on reranking and its depth (`rerank.depth`), by the questions that settings are tuned on.

The first hits of every question are scored once, to the deepest depth, so all depths share the same scores. Reranking
is advised only if some depth is significantly better than none (see `choice`). The advised depth is the smallest such
depth that the best depth does not beat significantly.
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
from search.evaluation.tune.choice import SIGNIFICANT, is_better
from search.formatting import counted
from search.ranking.cross_encoder import another_model
from search.ranking.reranker import Reranker, RerankerChoice

DEPTHS = (10, 20, 50, 100)
QUESTIONS = 300  # most drawn questions that are reranked: each costs as many pairs as the deepest depth


@dataclass(frozen=True)
class FirstHits:
    """The hits of a setting for each question, best first, with their texts and a function that scores rankings."""

    queries: Sequence[str]  # (n,)
    found: Sequence[SearchResult]  # (n,): as many documents as the deepest depth, or all
    texts_of: TextsOf
    places: RowIds  # of documents in the order of their ids
    judge: Callable[[Sequence[SearchResult]], Float64Array]  # rankings (n,) -> scores (n,), 0 to 1


@dataclass(frozen=True)
class RerankAdvice:
    """The scores without reranking and with each of `DEPTHS` on each question, and the conclusion."""

    measure: str
    values: Float64Array  # (1 + depths, questions): the first without reranking
    milliseconds: tuple[float, ...]  # per question, for each depth
    by: dict[str, Any]  # the reranker, JSON types

    @property
    def best(self) -> int:
        """The position of the depth with the highest score."""
        return 1 + int(self.values[1:].mean(axis=1).argmax())

    @property
    def tied(self) -> list[int]:
        """The positions of the best depth and of the depths that it does not beat significantly."""
        places = range(1, len(self.values))
        return [place for place in places if place == self.best or not is_better(self._beyond(place, self.best))]

    @property
    def taken(self) -> int:
        """The position of the advised depth; 0 if reranking is not advised."""
        return next((place for place in self.tied if is_better(self._beyond(0, place))), 0)

    @property
    def depth(self) -> int:
        """The advised depth; 0 if reranking is not advised."""
        return DEPTHS[self.taken - 1] if self.taken else 0

    @property
    def advice(self) -> str:
        """The conclusion in words."""
        if not self.taken:
            better = self._beyond(0, self.best).better or 0.0
            return (
                f"off, because no depth is better than none in {SIGNIFICANT:.0%} of the resamples (the best, "
                f"{DEPTHS[self.best - 1]}, in {better:.0%})"
            )
        if self.taken == self.best:
            return f"on, the first {self.depth}, because that scored highest"
        tied = counted(len(self.tied), "depth")
        return f"on, the first {self.depth}, the fewest of {tied} that do not differ significantly from the highest"

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types, with a row without reranking and a row for each depth."""
        return {
            "measure": self.measure,
            "questions": self.values.shape[1],
            "advice": self.advice,
            "depth": self.depth,
            "by": self.by,
            "depths": [self._row(place) for place in range(len(self.values))],
        }

    def _row(self, place: int) -> dict[str, Any]:
        return {
            "depth": DEPTHS[place - 1] if place else 0,
            **mean_interval(self.values[place], self._counts).to_dict(),
            "gain": self._beyond(0, place).to_dict() if place else None,
            "ms": self.milliseconds[place - 1] if place else 0.0,
            "tied": bool(self.taken) and place in self.tied,
            "taken": place == self.taken,
        }

    def _beyond(self, first: int, second: int) -> Difference:
        return mean_difference(self.values[first], self.values[second], self._counts)

    @cached_property
    def _counts(self) -> Float64Array:
        return draw_counts(self.values.shape[1], "tune")


def advise(hits: FirstHits, reranker: Reranker, measure: str, progress: Progress) -> RerankAdvice:
    """Rerank the hits to each of `DEPTHS` and score the rankings. Raises what the reranker raises."""
    scores = PairScores(reranker, hits.queries, hits.texts_of)
    reranked = {
        depth: rerank_run(scores, hits.found, hits.places, depth, progress) for depth in sorted(DEPTHS, reverse=True)
    }
    values = np.stack([hits.judge(hits.found), *(hits.judge(reranked[depth]) for depth in DEPTHS)])
    pairs = [sum(min(depth, len(rows)) for _, rows in hits.found) / len(hits.found) for depth in DEPTHS]
    return RerankAdvice(measure, values, tuple(map(scores.milliseconds, pairs)), scores.facts)


def advised_recipe(recipe: BuildConfig, advice: RerankAdvice, chosen: RerankerChoice) -> BuildConfig:
    """Return the recipe with the advice in its `[rerank]`, and the model's hash.

    The recipe is unchanged for a reranker without a name, and if the rejected reranker is not the recipe's.
    """
    if not isinstance(chosen, str | Path):
        return recipe
    if not advice.depth:
        own = recipe.rerank.sha256 in ("", advice.by.get("sha256"))
        return dataclasses.replace(recipe, rerank=RerankConfig()) if own else recipe
    rerank = dataclasses.replace(another_model(recipe.rerank, chosen), depth=advice.depth)
    return with_recorded_hash(dataclasses.replace(recipe, rerank=rerank))
