"""The weight of the vectors in hybrid search (`hybrid.weight`), chosen by the questions that settings are tuned on.

The curve of scores over weights is flat near its maximum, so the weight with the highest score is partly luck. The
choice is the mean of the best weights of bootstrap resamples of the questions (bagging: Breiman, 1996), rounded down to
a step. Few questions, which disagree, then give a weight in the middle, which loses neither part; many give the best.
"""

import dataclasses
import math
from typing import Any

import numpy as np

from indexer.arrays import Float64Array
from indexer.recipe.ranking import HybridConfig
from search.evaluation.bootstrap import draw_counts, interval, resampled_mean

WEIGHTS = tuple(number / 20 for number in range(21))


def weighed(config: HybridConfig) -> list[HybridConfig]:
    """Return the recipe's convex combination with each of `WEIGHTS`."""
    return [dataclasses.replace(config, fusion="convex", weight=weight) for weight in WEIGHTS]


def choose_weight(values: Float64Array) -> dict[str, Any]:
    """Return the choice as JSON types, by the scores of each of `WEIGHTS` on each question, (weights, questions).

    It has a row for each weight, from 0 (BM25 alone) to 1 (vectors alone). "highest" is the share of the resamples in
    which the weight has the highest score, the lowest of equals.
    """
    counts, scores = draw_counts(values.shape[1], "tune"), values.mean(axis=1)
    resampled = np.stack([resampled_mean(of_weight, counts) for of_weight in values])
    highest = resampled.round(12).argmax(axis=0)
    # Rounded down, because drawn questions favour the vectors slightly more than users' questions do.
    taken = math.floor(float(np.mean(highest, dtype=np.float64)))
    rows = [
        {
            "weight": weight,
            **interval(float(scores[place]), resampled[place]).to_dict(),
            "highest": float((highest == place).mean()),
            "taken": place == taken,
        }
        for place, weight in enumerate(WEIGHTS)
    ]
    mean = f"it is the mean of the weights that score highest in each of {len(highest):,} resamples"
    reason = f"{mean}, rounded down to a step of {WEIGHTS[1]:g}"
    return {"weight": WEIGHTS[taken], "reason": reason, "best": WEIGHTS[int(scores.argmax())], "weights": rows}
