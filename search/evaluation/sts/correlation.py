"""The score of a pair of sentences, and how well scores rank pairs as people do."""

from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.errors import EvaluationError
from search.extras import require_extra

Array = npt.NDArray[np.float64]
Positions = npt.NDArray[np.intp]


def cosines(vectors: Array, first: Positions, second: Positions) -> Array:
    """Cosine of the rows `first[i]` and `second[i]` of `vectors` (n, k), float64.

    A row of zeros has cosine 0 with every other, as in an index.
    """
    # float64 throughout: in float32, as vectors are stored, pairs that differ by less than 6e-8 would tie or swap.
    # Pairs that do tie must stay tied. Equal texts share a row, sqrt(x * x) is x in binary floating point and a
    # product does not depend on its order: so two equal sentences have exactly 1, and (a, b) what (b, a) has.
    with np.errstate(invalid="ignore", over="ignore"):  # what is not finite stays so, for the caller to refuse
        squares = (vectors * vectors).sum(axis=1)
        products = (vectors[first] * vectors[second]).sum(axis=1)
        norms = np.sqrt(squares[first] * squares[second])
        found: Array = np.divide(products, norms, out=np.zeros_like(products), where=norms != 0)
    return found


def all_alike(values: Array, what: str = "cosines") -> str:
    """Why `values` (n,) have no correlation with anything; "" where they differ."""
    if not len(values) or (values != values[0]).any():
        return ""
    return f"all {len(values):,} {what} are {values[0]:g}, so the correlation is undefined"


def spearman(predicted: Array, human: Array, where: str) -> float:
    """Spearman's rank correlation, ties averaged, times 100. `where` names the pairs and the setting in errors.

    Raises EvaluationError where it is not defined, and MachineError without SciPy.
    """
    stats: Any = require_extra("scipy.stats", "eval")
    if len(human) < 2:
        raise EvaluationError(f"{where}: {len(human)} pair; a rank correlation needs at least 2. Leave the set out.")
    if not np.isfinite(predicted).all():
        raise EvaluationError(
            f"{where}: {np.count_nonzero(~np.isfinite(predicted)):,} of {len(predicted):,} scores are NaN or infinite. "
            "The model overflows or is damaged: try --set encoder.precision=float32, or another model."
        )
    for values, what, way_out in (
        (human, "human scores", "Leave the set out, or take one with scores that differ."),
        (predicted, "cosines", "Under this setting the vectors tell no two pairs apart: leave it out, or the set."),
    ):
        if said := all_alike(values, what):
            raise EvaluationError(f"{where}: {said}. {way_out}")
    return 100 * float(stats.spearmanr(predicted, human).statistic)
