"""The weight of the vectors in hybrid search (`hybrid.weight`), chosen by the questions that settings are tuned on.

The curve of scores over weights is flat near its maximum, so the weight with the highest score is partly luck. The
choice is the mean of the best weights of bootstrap resamples of the questions (bagging: Breiman, 1996), rounded down to
a step. Few questions, which disagree, then give a weight in the middle, which loses neither part; many give the best.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from indexer.arrays import Float64Array
from indexer.recipe.ranking import HybridConfig
from search.evaluation.bootstrap import draw_counts, interval, resampled_mean

WEIGHTS = tuple(number / 20 for number in range(21))


def weighed(config: HybridConfig) -> list[HybridConfig]:
    """Return the recipe's convex combination with each of `WEIGHTS`."""
    return [dataclasses.replace(config, fusion="convex", weight=weight) for weight in WEIGHTS]


@dataclass(frozen=True)
class WeightChoice:
    """The scores of each of `WEIGHTS` on each question, (weights, questions), 0 to 1, and the choice."""

    values: Float64Array

    @cached_property
    def scores(self) -> Float64Array:
        """The mean score of each weight."""
        means: Float64Array = self.values.mean(axis=1)
        return means

    @property
    def best(self) -> int:
        """The position of the weight with the highest score."""
        return int(self.scores.argmax())

    @property
    def taken(self) -> int:
        """The position of the chosen weight.

        The mean is rounded down, because drawn questions favour the vectors slightly more than users' questions do.
        """
        return math.floor(float(self._highest.mean()))

    @property
    def weight(self) -> float:
        """The chosen weight."""
        return WEIGHTS[self.taken]

    @property
    def reason(self) -> str:
        """The reason for the choice."""
        resamples = f"{len(self._highest):,} resamples"
        return f"it is the mean of the weights that score highest in each of {resamples}, rounded down"

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types, with a row for each weight, from 0 (BM25 alone) to 1 (vectors alone).

        "highest" is the share of the resamples in which the weight has the highest score.
        """
        rows = [self._row(place) for place in range(len(WEIGHTS))]
        return {"weight": self.weight, "reason": self.reason, "best": WEIGHTS[self.best], "weights": rows}

    def _row(self, place: int) -> dict[str, Any]:
        score = interval(float(self.scores[place]), self._resampled[place]).to_dict()
        highest = float((self._highest == place).mean())
        return {"weight": WEIGHTS[place], **score, "highest": highest, "taken": place == self.taken}

    @cached_property
    def _highest(self) -> Float64Array:
        """The position of the weight with the highest score in each resample, the lowest of equals."""
        return np.asarray(self._resampled.round(12).argmax(axis=0), np.float64)

    @cached_property
    def _resampled(self) -> Float64Array:
        """The mean score of each weight in each resample, (weights, resamples)."""
        counts = draw_counts(self.values.shape[1], "tune")
        return np.stack([resampled_mean(values, counts) for values in self.values])


def chosen(values: Sequence[Float64Array]) -> WeightChoice:
    """Return the choice by the scores of each of `WEIGHTS`."""
    return WeightChoice(np.stack(values))
