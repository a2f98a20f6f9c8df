"""Slow, obvious re-implementations to compare fast code with."""

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating]


def whitening_projection(rows: Array, strength: float, dim: int, shrinkage: float = 0.0, floor: float = 1e-9) -> Array:
    """Return the whitening by definition: from singular values of the centred rows, without moments."""
    centred = np.asarray(rows, np.float64) - np.mean(rows, axis=0, dtype=np.float64)
    _, singular, directions = np.linalg.svd(centred, full_matrices=True)
    variances = np.zeros(centred.shape[1])
    variances[: len(singular)] = singular**2 / len(rows)
    kept = min(dim or len(variances), int((variances > floor * variances[0]).sum()))
    shrunk = (1 - shrinkage) * variances + shrinkage * variances.mean()
    columns = []
    for number in range(kept):
        direction = directions[number]
        if direction[np.abs(direction).argmax()] < 0:
            direction = -direction
        columns.append(direction / shrunk[number] ** (strength / 2))
    return np.stack(columns, axis=1)


def best_rows(vectors: Array, query: Array, ids: Sequence[str], k: int) -> list[tuple[str, float]]:
    """Return (id, score) of the k best by a float64 dot product rounded to float32, ties by id."""
    scores = [np.float32(sum(float(a) * float(b) for a, b in zip(row, query, strict=True))) for row in vectors]
    order = sorted(range(len(ids)), key=lambda row: (-float(scores[row]), ids[row]))
    return [(ids[row], float(scores[row])) for row in order[:k]]


def held_out_recall(
    vectors: Array,
    texts: Sequence[str],
    queries: Array,
    own: Sequence[int],
    search: Callable[[Array, int], list[int]],
    k: int,
) -> list[float]:
    """Return the share of each query's first k answers that score at least as high as the k-th best row. Both lists
    exclude the query's document and rows with the same text or vector. `search(query, depth)` returns rows, best
    first."""
    shares = []
    for query, row in zip(np.asarray(queries, np.float64), own, strict=True):
        scores = [float(query @ np.asarray(vector, np.float64)) for vector in vectors]
        out = {n for n in range(len(texts)) if texts[n] == texts[row] or float(vectors[n] @ vectors[row]) >= 1 - 1e-6}
        best = sorted((score for n, score in enumerate(scores) if n not in out), reverse=True)
        answers = [n for n in search(query.astype(np.float32), k + len(out)) if n not in out][:k]
        shares.append(sum(scores[n] >= best[k - 1] - 1e-6 for n in answers) / k)
    return shares


def iso_score(vectors: Array) -> float:
    """Return IsoScore (Rudman et al., Findings of ACL 2022), algorithm 1, step by step."""
    n = vectors.shape[1]
    rows = np.asarray(vectors, np.float64)
    _, directions = np.linalg.eigh(np.cov(rows.T))
    reoriented = rows @ directions
    diagonal = np.diag(np.cov(reoriented.T))
    normalised = np.sqrt(n) * diagonal / np.linalg.norm(diagonal)
    defect = np.linalg.norm(normalised - np.ones(n)) / np.sqrt(2 * (n - np.sqrt(n)))
    share = (n - defect**2 * (n - np.sqrt(n))) ** 2 / n**2
    return float((n * share - 1) / (n - 1))


def partition_ratio(vectors: Array) -> float:
    """Return min Z / max Z, Z(c) = sum of exp(c . v), over the singular vectors c of the rows and over -c."""
    _, _, directions = np.linalg.svd(np.asarray(vectors, np.float64), full_matrices=True)
    sums = [np.exp(vectors @ (sign * c)).sum() for c in directions for sign in (1, -1)]
    return float(min(sums) / max(sums))


def resamples(items: int, name: str, count: int = 1000) -> npt.NDArray[np.int64]:
    """Return the items of each bootstrap resample of a name, (count, items)."""
    seed = int(hashlib.sha256(name.encode()).hexdigest()[:16], 16)
    return np.random.default_rng(seed).integers(0, items, (count, items))


def percentile_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the middle 95 % of resampled values, with linear interpolation."""
    ordered, last = sorted(values), len(values) - 1

    def at(share: float) -> float:
        below = int(share * last)
        return ordered[below] + (share * last - below) * (ordered[below + 1] - ordered[below])

    return at(0.025), at(0.975)
