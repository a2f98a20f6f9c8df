"""Which weight the vectors get in a hybrid (`hybrid.weight`), chosen on the questions that settings are tuned on.

Questions that are cut from documents are no users' questions: on what was measured they call for bolder weights than
judged queries do, by 0.1 to 0.15. So of the weights whose mean score is within one standard error of the best (the
one-standard-error rule of Breiman et al., Classification and Regression Trees, 1984) the one nearest a careful weight
is taken, which leaves most to BM25. On judged queries it is the one nearest to it of those that cannot be told from
the best.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from indexer.arrays import Float64Array
from indexer.ranking_config import HybridConfig
from search.evaluation.bootstrap import difference, draw_counts, interval, resampled_mean
from search.evaluation.tune.choice import TOLD

WEIGHTS = tuple(number / 20 for number in range(21))
CAREFUL = 0.25


def weighed(config: HybridConfig) -> list[HybridConfig]:
    """The recipe's convex combination with each weight that is tried."""
    return [dataclasses.replace(config, fusion="convex", weight=weight) for weight in WEIGHTS]


@dataclass(frozen=True)
class WeightChoice:
    """What each of `WEIGHTS` scored on each question, (weights, questions), 0 to 1, and which are good enough."""

    values: Float64Array
    labelled: bool

    @cached_property
    def scores(self) -> Float64Array:
        """The mean of each weight."""
        means: Float64Array = self.values.mean(axis=1)
        return means

    @property
    def best(self) -> int:
        """The place of the weight that scored highest."""
        return int(self.scores.argmax())

    @cached_property
    def good(self) -> list[int]:
        """The places of those that will do."""
        best, scores = self.best, self.scores
        if self.labelled:
            return [place for place in range(len(scores)) if place == best or not self._told(place, best)]
        error = self.values[best].std() / math.sqrt(self.values.shape[1])
        return np.flatnonzero(scores >= scores[best] - error).tolist()

    @property
    def taken(self) -> int:
        """The place of the weight that is taken: of two as near the careful one, the better."""
        return min(self.good, key=lambda place: (abs(WEIGHTS[place] - CAREFUL), -self.scores[place]))

    @property
    def weight(self) -> float:
        """The weight that is taken."""
        return WEIGHTS[self.taken]

    @property
    def reason(self) -> str:
        """Why it was."""
        near = f"the one nearest a careful {CAREFUL:g}"
        if self.taken == self.best:
            return "it scored highest"
        if self.labelled:
            return f"it is {near} of {len(self.good)} that cannot be told from the highest"
        return f"it is {near} of {len(self.good)} within a standard error of the highest"

    def to_dict(self) -> dict[str, Any]:
        """JSON types: a row for each weight; 1 is the vectors alone, 0 BM25 alone."""
        rows = [self._row(place) for place in range(len(WEIGHTS))]
        return {"weight": self.weight, "reason": self.reason, "best": WEIGHTS[self.best], "weights": rows}

    def _row(self, place: int) -> dict[str, Any]:
        found = interval(float(self.scores[place]), resampled_mean(self.values[place], self._counts)).to_dict()
        return {"weight": WEIGHTS[place], **found, "good": place in self.good, "taken": place == self.taken}

    def _told(self, one: int, other: int) -> bool:
        resampled = (resampled_mean(self.values[place], self._counts) for place in (one, other))
        better = difference(float(self.scores[one]), float(self.scores[other]), *resampled).better
        return better is not None and better >= TOLD

    @cached_property
    def _counts(self) -> Float64Array:
        return draw_counts(self.values.shape[1], "tune")


def chosen(values: Sequence[Float64Array], labelled: bool) -> WeightChoice:
    """The choice of what each of `WEIGHTS` scored."""
    return WeightChoice(np.stack(values), labelled)
