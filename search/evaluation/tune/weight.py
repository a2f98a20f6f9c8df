"""Which weight the vectors get in a hybrid (`hybrid.weight`), chosen on the questions that settings are tuned on.

The curve of scores over weights is flat near its top, so the weight that scores highest is partly luck. What is taken
is the mean, over bootstrap resamples of the questions, of the weight that scores highest in each (bagging: Breiman,
1996), rounded down to a step: few questions, which agree on little, then give a weight of the middle, where neither
part is lost, and many questions the best.
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
    """The recipe's convex combination with each weight that is tried."""
    return [dataclasses.replace(config, fusion="convex", weight=weight) for weight in WEIGHTS]


@dataclass(frozen=True)
class WeightChoice:
    """What each of `WEIGHTS` scored on each question, (weights, questions), 0 to 1, and which is taken."""

    values: Float64Array

    @cached_property
    def scores(self) -> Float64Array:
        """The mean of each weight."""
        means: Float64Array = self.values.mean(axis=1)
        return means

    @property
    def best(self) -> int:
        """The place of the weight that scored highest."""
        return int(self.scores.argmax())

    @property
    def taken(self) -> int:
        """The place of the weight that is taken.

        The mean is rounded down: drawn questions call for a little more of the vectors than users' questions do.
        """
        return math.floor(float(self._highest.mean()))

    @property
    def weight(self) -> float:
        """The weight that is taken."""
        return WEIGHTS[self.taken]

    @property
    def reason(self) -> str:
        """Why it was."""
        resamples = f"{len(self._highest):,} resamples"
        return f"it is the mean of the weights that score highest in each of {resamples}, rounded down"

    def to_dict(self) -> dict[str, Any]:
        """JSON types: a row for each weight, "highest" the share of resamples in which it scores highest; 1 is the
        vectors alone, 0 BM25 alone."""
        rows = [self._row(place) for place in range(len(WEIGHTS))]
        return {"weight": self.weight, "reason": self.reason, "best": WEIGHTS[self.best], "weights": rows}

    def _row(self, place: int) -> dict[str, Any]:
        found = interval(float(self.scores[place]), self._resampled[place]).to_dict()
        highest = float((self._highest == place).mean())
        return {"weight": WEIGHTS[place], **found, "highest": highest, "taken": place == self.taken}

    @cached_property
    def _highest(self) -> Float64Array:
        """The place of the weight that scores highest in each resample, the least of several."""
        return np.asarray(self._resampled.round(12).argmax(axis=0), np.float64)

    @cached_property
    def _resampled(self) -> Float64Array:
        """The mean of each weight in each resample, (weights, resamples)."""
        counts = draw_counts(self.values.shape[1], "tune")
        return np.stack([resampled_mean(values, counts) for values in self.values])


def chosen(values: Sequence[Float64Array]) -> WeightChoice:
    """The choice of what each of `WEIGHTS` scored."""
    return WeightChoice(np.stack(values))
