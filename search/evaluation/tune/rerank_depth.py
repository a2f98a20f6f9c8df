"""Advice on reranking and its depth (`rerank.depth`), by the questions that settings are tuned on.

The first hits of every question are scored once, to the deepest depth, so all depths share the same scores. Reranking
is advised only if some depth is significantly better than none (see `choice`). The advised depth is the smallest such
depth that the best depth does not beat significantly.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from indexer.arrays import Float64Array, RowIds, SearchResult
from indexer.models.cross_encoder_spec import with_recorded_hash
from indexer.progress import Progress
from indexer.recipe.config import BuildConfig
from indexer.recipe.ranking import RerankConfig
from search.evaluation.bootstrap import draw_counts, mean_difference, mean_interval
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


def choose_depth(values: Mapping[int, Float64Array], counts: Float64Array) -> tuple[int, int, list[int]]:
    """Return the advised depth, the best one, and the depths that the best does not beat significantly.

    `values` are the scores of each of `DEPTHS` and of 0 (not reranked) on each question, `counts` the resamples. The
    advised depth is 0 if no depth is significantly better than none.
    """

    def beats(better: int, other: int) -> bool:
        return is_better(mean_difference(values[other], values[better], counts))

    best = max(DEPTHS, key=lambda depth: float(values[depth].mean()))
    tied = [depth for depth in DEPTHS if depth == best or not beats(best, depth)]
    return next((depth for depth in tied if beats(depth, 0)), 0), best, tied


def advise(hits: FirstHits, reranker: Reranker, measure: str, progress: Progress) -> dict[str, Any]:
    """Rerank the hits to each of `DEPTHS` and score the rankings. Raises what the reranker raises.

    Returns JSON types: the advised "depth", the advice in words, and a row without reranking and for each depth.
    """
    pairs = PairScores(reranker, hits.queries, hits.texts_of)
    reranked = {
        depth: rerank_run(pairs, hits.found, hits.places, depth, progress) for depth in sorted(DEPTHS, reverse=True)
    }
    values = {0: hits.judge(hits.found)} | {depth: hits.judge(reranked[depth]) for depth in DEPTHS}
    counts = draw_counts(len(values[0]), "tune")
    gains = {depth: mean_difference(values[0], values[depth], counts) for depth in DEPTHS}
    taken, best, tied = choose_depth(values, counts)
    rows = [
        {
            "depth": depth,
            **mean_interval(scores, counts).to_dict(),
            "gain": gains[depth].to_dict() if depth else None,
            "ms": pairs.milliseconds(sum(min(depth, len(found)) for _, found in hits.found) / len(hits.found)),
            "tied": bool(taken) and depth in tied,
            "taken": depth == taken,
        }
        for depth, scores in values.items()
    ]
    return {
        "measure": measure,
        "questions": len(values[0]),
        "advice": _in_words(taken, best, len(tied), gains[best].better or 0.0),
        "depth": taken,
        "by": pairs.facts,
        "depths": rows,
    }


def _in_words(taken: int, best: int, tied: int, better: float) -> str:
    if not taken:
        return (
            f"off, because no depth is better than none in {SIGNIFICANT:.0%} of the resamples (the best, {best}, in "
            f"{better:.0%})"
        )
    if taken == best:
        return f"on, the first {taken}, because that scored highest"
    depths = counted(tied, "depth")
    return f"on, the first {taken}, the fewest of {depths} that do not differ significantly from the highest"


def advised_recipe(recipe: BuildConfig, advice: Mapping[str, Any], chosen: RerankerChoice) -> BuildConfig:
    """Return the recipe with the advice in its `[rerank]`, and the model's hash.

    The recipe is unchanged for a reranker without a name, and if the rejected reranker is not the recipe's.
    """
    if not isinstance(chosen, str | Path):
        return recipe
    if not advice["depth"]:
        own = recipe.rerank.sha256 in ("", advice["by"].get("sha256"))
        return dataclasses.replace(recipe, rerank=RerankConfig()) if own else recipe
    rerank = dataclasses.replace(another_model(recipe.rerank, chosen), depth=advice["depth"])
    return with_recorded_hash(dataclasses.replace(recipe, rerank=rerank))
