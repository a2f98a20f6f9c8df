"""Fusion of vectors and BM25 by other scalings than `--hybrid`, and the best weight for other kinds of questions.

    python -m benchmarks.fusion scalings --of INDEX FOLDER [--of INDEX FOLDER ...] [-o FILE]
    python -m benchmarks.fusion questions --of INDEX FOLDER [--of INDEX FOLDER ...] [-o FILE]
    python -m benchmarks.fusion weights --of INDEX FOLDER [--of INDEX FOLDER ...] [-o FILE]

FOLDER is a judged collection in BEIR's layout; INDEX was built from it with one row for each document.

`scalings` prints nDCG@10 of the judged queries for each scaling and each weight.

`questions` prints the mean reciprocal rank of drawn questions for each weight, the best weight for them, and the loss
of the judged queries at that weight. A question is a piece of a document, and its answer is the rest of the document.
"Shared words left out" removes words from the question that also occur in the rest, at random or the rarest words
first. "words shared" is the share of a question's words that occur in its answer.

`weights` prints the weight that `isotrope tune` chooses without labels for the recipe's whitening, the best weight by
the judged queries, and nDCG@10 of both, of BM25 and of the vectors. "kinds" counts the drawn questions: first
sentences, titles, windows.
"""

import math
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.interleaved import machine, save
from benchmarks.judged import Collection, judged_options
from indexer.arrays import Float64Array, Vectors
from indexer.corpus.document import joined_text
from indexer.recipe.ranking import HybridConfig, Scaling
from search.cli.output import print_table
from search.evaluation.target import Target
from search.evaluation.tune.unlabelled import DrawnPair, UnlabelledJudge, draw_pairs
from search.evaluation.tune.weight import WEIGHTS as TRIED
from search.evaluation.tune.weight import choose_weight, weighed
from search.ranking.bm25 import BM25Ranking
from search.ranking.fusion import BothScores, Spread, drawn_rows
from search.ranking.terms import tokenize

WEIGHTS = tuple(number / 10 for number in range(11))
_OUT = -1e9  # score of documents that are not candidates
_LEAST_TERMS = 8  # of a text that answers its title
LEFT_OUT = (0.3, 0.5, 0.7)


@dataclass(frozen=True)
class Fused:
    """Scores by the vectors and by BM25, (questions, documents), on one scale."""

    near: Float64Array
    words: Float64Array

    def at(self, weight: float) -> Float64Array:
        """Return the weighted sum; at 0 and 1 it is one of the two."""
        return weight * self.near + (1 - weight) * self.words


Scaler = Callable[[Float64Array, Float64Array], Fused]


def _to_the_best(scores: Float64Array, floor: Any) -> Float64Array:
    return np.asarray((scores - floor) / np.maximum(scores.max(axis=1, keepdims=True) - floor, 1e-12))


def _least_of_all(near: Float64Array, words: Float64Array) -> Fused:
    return Fused(_to_the_best(near, near.min(axis=1, keepdims=True)), _to_the_best(words, 0.0))


def _least_possible(near: Float64Array, words: Float64Array) -> Fused:
    return Fused(_to_the_best(near, -1.0), _to_the_best(words, 0.0))


def least_of_first(depth: int) -> Scaler:
    """Return the scaling whose 0 is the lowest score of the candidates, the first `depth` of either list."""

    def scaled(near: Float64Array, words: Float64Array) -> Fused:
        candidates = np.zeros(near.shape, bool)
        for scores in (near, words):
            best = np.argsort(-scores, axis=1, kind="stable")[:, :depth]
            hits = np.take_along_axis(scores, best, axis=1) > (0.0 if scores is words else -np.inf)
            rows = np.broadcast_to(np.arange(len(scores))[:, None], best.shape)
            candidates[rows[hits], best[hits]] = True
        sides = (
            _to_the_best(side, np.where(candidates, side, np.inf).min(axis=1, keepdims=True)) for side in (near, words)
        )
        return Fused(*(np.where(candidates, side, _OUT) for side in sides))

    return scaled


def by_recipe(scaling: Scaling) -> Scaler:
    """Return the scaling of `hybrid.scaling`."""

    def scaled(near: Float64Array, words: Float64Array) -> Fused:
        both = BothScores(near, words, Spread.of(near[:, drawn_rows(near.shape[1])]), Spread.of(words))
        sides = (both.combined(HybridConfig(weight=weight, scaling=scaling)) for weight in (1.0, 0.0))
        return Fused(*sides)

    return scaled


SCALINGS: dict[str, Scaler] = {
    "minmax: mean of 1,000": by_recipe("minmax"),
    "least of all documents": _least_of_all,
    **{f"least of the first {depth:,}": least_of_first(depth) for depth in (100, 200, 1000)},
    "least possible": _least_possible,
    "zscore": by_recipe("zscore"),
}


def scalings(collection: Collection) -> Iterator[dict[str, Any]]:
    """Yield a row for each scaling, with nDCG@10 by weight."""
    near, words = _scores(collection)
    for name, scaling in SCALINGS.items():
        yield _judged(collection, name, scaling(near, words))


def _judged(collection: Collection, name: str, fused: Fused) -> dict[str, Any]:
    return _row(collection, name, "nDCG@10", [collection.ndcg(fused.at(weight)) for weight in WEIGHTS])


def _scores(collection: Collection) -> tuple[Float64Array, Float64Array]:
    """Return the scores of the judged queries by the vectors and by BM25, (questions, documents)."""
    texts = list(collection.questions.values())
    return np.asarray(collection.scores(texts), np.float64), np.asarray(collection.bm25(texts), np.float64)


def _row(collection: Collection, name: str, measure: str, values: Sequence[float]) -> dict[str, Any]:
    best = WEIGHTS[int(np.argmax(values))]
    about = {"collection": collection.name, "encoder": collection.model, "way": name, "measure": measure}
    return about | {"weights": dict(zip(map(str, WEIGHTS), values, strict=True)), "best": best}


@dataclass(frozen=True)
class Drawn:
    """Questions of one kind with their answers at the same positions, also as vectors (n, k)."""

    questions: list[str]
    answers: list[str]
    vectors: Vectors


def kinds(collection: Collection, size: int) -> dict[str, Drawn]:
    """Return at most `size` questions of every kind."""
    columns = collection.engine.index.config.corpus.text
    pairs = draw_pairs(collection.documents, columns, size)
    answers = [pair.document for pair in pairs]
    first = Drawn([pair.query for pair in pairs], answers, np.asarray(collection.engine.embed(answers, "document")))
    by_kind = {"first sentence asks for the rest": first, "title asks for the text": _titles(collection, size)}
    counts = Counter(term for terms in _terms(collection, answers) for term in set(terms))
    for rarest in (False, True):
        for share in LEFT_OUT:
            questions = [without_shared(collection, pair, share, counts if rarest else None) for pair in pairs]
            how = "rarest first" if rarest else "by chance"
            by_kind[f"{100 * share:.0f} % of shared words left out, {how}"] = replace(first, questions=questions)
    return by_kind


def _terms(collection: Collection, texts: Sequence[str]) -> list[list[str]]:
    return tokenize(texts, "eval", collection.engine.index.config.hybrid)


def _titles(collection: Collection, size: int) -> Drawn:
    columns = [name for name in collection.engine.index.config.corpus.text if name != "title"]
    both = [(document.title or "", joined_text(document, columns)) for document in collection.documents]
    both = [(title, text) for title, text in both if title.strip() and len(text.split()) >= _LEAST_TERMS]
    drawn = random.Random(0).sample(both, min(size, len(both)))  # noqa: S311
    texts = [text for _, text in drawn]
    return Drawn([title for title, _ in drawn], texts, np.asarray(collection.engine.embed(texts, "document")))


def without_shared(collection: Collection, pair: DrawnPair, share: float, counts: Mapping[str, int] | None) -> str:
    """Return the question without a share of the words that its document shares, but with at least one word.

    The words are drawn at random, or with `counts` (term -> number of documents) the rarest are removed.
    """
    words = pair.query.split()
    known = set(_terms(collection, [pair.document])[0])
    terms = [set(word_terms) for word_terms in _terms(collection, words)]
    shared = [place for place, word_terms in enumerate(terms) if word_terms & known]
    order = random.Random(pair.id).sample(shared, len(shared))  # noqa: S311
    if counts is not None:
        order.sort(key=lambda place: min(counts[term] for term in terms[place] & known))
    removed = set(order[: math.ceil(share * len(shared))])
    return " ".join(word for place, word in enumerate(words) if place not in removed) or words[0]


def questions_of(collection: Collection, size: int) -> Iterator[dict[str, Any]]:
    """Yield a row for the judged queries, and one for each kind of drawn questions."""
    judged = _judged(collection, "judged queries", by_recipe("minmax")(*_scores(collection)))
    yield judged | {"costs": 0.0, "words shared": _shared(collection, *_judged_pairs(collection))}
    for name, drawn in kinds(collection, size).items():
        row = _row(collection, name, "MRR", _reciprocal_ranks(collection, drawn))
        costs = max(judged["weights"].values()) - judged["weights"][str(row["best"])]
        yield row | {"costs": costs, "words shared": _shared(collection, drawn.questions, drawn.answers)}


def weights_of(collection: Collection) -> dict[str, Any]:
    """Return the row of a collection."""
    subject, fused = Target.of_index(collection.engine.index.path), by_recipe("minmax")(*_scores(collection))
    judged = {weight: collection.ndcg(fused.at(weight)) for weight in TRIED}
    judge = UnlabelledJudge(subject, lambda: collection.documents, "retrieval", 1500)
    judge.prepare([subject.own])
    taken = choose_weight(np.stack(judge.weigh(subject.own, weighed(subject.config.hybrid))))["weight"]
    best = max(judged, key=lambda weight: judged[weight])
    return {
        "index": collection.engine.index.path.name,
        "encoder": collection.model,
        "kinds": dict(Counter(pair.kind for pair in judge.pairs)),
        "taken": {"weight": taken, "nDCG@10": judged[taken]},
        "best": {"weight": best, "nDCG@10": judged[best]},
        "BM25": judged[0.0],
        "vectors": judged[1.0],
    }


def _judged_pairs(collection: Collection) -> tuple[list[str], list[str]]:
    pairs = [
        (text, collection.texts[collection.rows[name]])
        for question, text in collection.questions.items()
        for name, grade in collection.judged[question].items()
        if grade > 0 and name in collection.rows
    ]
    return [text for text, _ in pairs], [text for _, text in pairs]


def _shared(collection: Collection, questions: Sequence[str], answers: Sequence[str]) -> float:
    """Return the share of a question's terms that its answer contains, averaged over questions with terms."""
    both = zip(_terms(collection, questions), _terms(collection, answers), strict=True)
    return float(np.mean([len(set(terms) & set(answer)) / len(set(terms)) for terms, answer in both if terms]))


def _reciprocal_ranks(collection: Collection, drawn: Drawn) -> list[float]:
    places = np.arange(len(drawn.answers))
    ranking = BM25Ranking.of(drawn.answers, places, collection.engine.index.config.hybrid, "eval")
    near = np.asarray(collection.embed(drawn.questions) @ drawn.vectors.T, np.float64)
    words = np.asarray(np.stack(list(ranking.scores(drawn.questions))), np.float64)
    fused = by_recipe("minmax")(near, words)
    return [100 * mean_reciprocal_rank(fused.at(weight)) for weight in WEIGHTS]


def mean_reciprocal_rank(scores: Float64Array) -> float:
    """Return the mean reciprocal rank of document i for question i by scores (n, n); tied documents count half."""
    right = np.diag(scores)[:, None]
    ranks = (scores > right).sum(axis=1) + ((scores == right).sum(axis=1) + 1) / 2
    return float(np.mean(1 / ranks))


@click.group()
def main() -> None:
    """Measure the fusion of vectors and BM25."""


@main.command("scalings")
@judged_options
def scalings_command(judged: Sequence[tuple[Path, Path]], output: Path | None) -> None:
    """Compare scalings."""
    _report([row for index, folder in judged for row in scalings(Collection.opened(index, folder))], output)


@main.command("questions")
@judged_options
@click.option("--size", type=int, default=1500, show_default=True, help="Questions of a kind, at most.")
def questions_command(judged: Sequence[tuple[Path, Path]], output: Path | None, size: int) -> None:
    """Compare the best weights for kinds of questions."""
    _report([row for index, folder in judged for row in questions_of(Collection.opened(index, folder), size)], output)


@main.command("weights")
@judged_options
def weights_command(judged: Sequence[tuple[Path, Path]], output: Path | None) -> None:
    """Compare tune's weight with the best by judged queries."""
    rows = [weights_of(Collection.opened(index, folder)) for index, folder in judged]
    cells = [
        [
            row["index"],
            ", ".join(f"{count} {kind}s" for kind, count in row["kinds"].items()),
            *(f"{row[name]['weight']:g}: {row[name]['nDCG@10']:.1f}" for name in ("taken", "best")),
            *(f"{row[name]:.1f}" for name in ("BM25", "vectors")),
        ]
        for row in rows
    ]
    print_table(["index", "questions", "chosen", "best", "BM25", "vectors"], cells, "nDCG@10 x 100 by weight")
    if output:
        save(output, {"machine": machine(1), "command": sys.argv[1:], "results": rows})


def _report(rows: Sequence[Mapping[str, Any]], output: Path | None) -> None:
    for number, ((name, encoder), group) in enumerate(groupby(rows, lambda row: (row["collection"], row["encoder"]))):
        click.echo("\n" * bool(number), nl=False)
        more = ["costs", "words shared"] if "costs" in rows[0] else []
        cells = [[row["way"], *_figures(row), f"{row['best']:g}", *_costs(row)] for row in group]
        print_table(["", *(f"{weight:g}" for weight in WEIGHTS), "best", *more], cells, f"{name}, {encoder}")
    if output:
        save(output, {"machine": machine(1), "command": sys.argv[1:], "results": list(rows)})


def _figures(row: Mapping[str, Any]) -> list[str]:
    return [f"{value:.1f}" for value in row["weights"].values()]


def _costs(row: Mapping[str, Any]) -> list[str]:
    return [f"{row['costs']:.1f}", f"{row['words shared']:.0%}"] if "costs" in row else []


if __name__ == "__main__":
    main()
