"""Vectors and BM25 fused in other ways than `--hybrid` does it, and the weight that other questions call for.

    python -m benchmarks.fusion scalings --of INDEX FOLDER [--of INDEX FOLDER ...] [-o FILE]
    python -m benchmarks.fusion questions --of INDEX FOLDER [--of INDEX FOLDER ...] [-o FILE]
    python -m benchmarks.fusion weights --of INDEX FOLDER [--of INDEX FOLDER ...] [-o FILE]

FOLDER is a judged collection in BEIR's layout; INDEX was built from it, a document a row.

`scalings` has nDCG@10 of the judged queries for each way to bring two scores to one scale, and each weight.

`questions` has the mean reciprocal rank of drawn questions for each weight, the weight that is best for them, and what
the judged queries lose there. A question is a piece of a document and asks for the rest of it. "Shared words left out"
takes words out of the question that the rest has too: some of them by chance, or those first that the fewest documents
have. "words shared" is how many of a question's words are in what it asks for.

`weights` has the weight that `isotrope tune` takes without labels for the recipe's own whitening, beside the best by
the judged queries, and nDCG@10 of both, of BM25 and of the vectors. "kinds" are what questions were drawn: first
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
from indexer.ranking_config import HybridConfig, Scaling
from search.cli.output import print_table
from search.evaluation.target import Target
from search.evaluation.tune.unlabelled import DrawnPair, UnlabelledJudge, draw_pairs
from search.evaluation.tune.weight import WEIGHTS as TRIED
from search.evaluation.tune.weight import chosen, weighed
from search.ranking.bm25 import BM25Ranking
from search.ranking.fusion import BothScores, Spread, drawn_rows
from search.ranking.terms import tokenize

WEIGHTS = tuple(number / 10 for number in range(11))
_OUT = -1e9  # what is no candidate scores
_LEAST_TERMS = 8  # of a text that its title asks for
LEFT_OUT = (0.3, 0.5, 0.7)


@dataclass(frozen=True)
class Fused:
    """What documents score by the vectors and by BM25, (questions, documents), on one scale."""

    near: Float64Array
    words: Float64Array

    def at(self, weight: float) -> Float64Array:
        """Their sum; at 0 and 1 one of them alone."""
        return weight * self.near + (1 - weight) * self.words


Scaler = Callable[[Float64Array, Float64Array], Fused]


def _to_the_best(scores: Float64Array, floor: Any) -> Float64Array:
    return np.asarray((scores - floor) / np.maximum(scores.max(axis=1, keepdims=True) - floor, 1e-12))


def _least_of_all(near: Float64Array, words: Float64Array) -> Fused:
    return Fused(_to_the_best(near, near.min(axis=1, keepdims=True)), _to_the_best(words, 0.0))


def _least_possible(near: Float64Array, words: Float64Array) -> Fused:
    return Fused(_to_the_best(near, -1.0), _to_the_best(words, 0.0))


def least_of_first(depth: int) -> Scaler:
    """0 is the least score among the candidates: the first `depth` of either list."""

    def scaled(near: Float64Array, words: Float64Array) -> Fused:
        candidates = np.zeros(near.shape, bool)
        for scores in (near, words):
            best = np.argsort(-scores, axis=1, kind="stable")[:, :depth]
            found = np.take_along_axis(scores, best, axis=1) > (0.0 if scores is words else -np.inf)
            rows = np.broadcast_to(np.arange(len(scores))[:, None], best.shape)
            candidates[rows[found], best[found]] = True
        sides = (
            _to_the_best(one, np.where(candidates, one, np.inf).min(axis=1, keepdims=True)) for one in (near, words)
        )
        return Fused(*(np.where(candidates, side, _OUT) for side in sides))

    return scaled


def by_recipe(scaling: Scaling) -> Scaler:
    """As `hybrid.scaling` does it."""

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
    """A row for each way, with nDCG@10 by weight."""
    questions = list(collection.questions.values())
    near, words = (np.asarray(one(questions), np.float64) for one in (collection.scores, collection.bm25))
    for name, scaling in SCALINGS.items():
        fused = scaling(near, words)
        yield _row(collection, name, "nDCG@10", [collection.ndcg(fused.at(weight)) for weight in WEIGHTS])


def _row(collection: Collection, name: str, measure: str, values: Sequence[float]) -> dict[str, Any]:
    best = WEIGHTS[int(np.argmax(values))]
    about = {"collection": collection.name, "encoder": collection.model, "way": name, "measure": measure}
    return about | {"weights": dict(zip(map(str, WEIGHTS), values, strict=True)), "best": best}


@dataclass(frozen=True)
class Drawn:
    """Questions of one kind, each with the text it asks for: the one of the same number, as a vector too, (n, k)."""

    questions: list[str]
    answers: list[str]
    vectors: Vectors


def kinds(collection: Collection, size: int) -> dict[str, Drawn]:
    """At most `size` questions of every kind."""
    columns = collection.engine.index.config.corpus.text
    pairs = draw_pairs(collection.documents, columns, size)
    answers = [pair.document for pair in pairs]
    first = Drawn([pair.query for pair in pairs], answers, np.asarray(collection.engine.embed(answers, "document")))
    found = {"first sentence asks for the rest": first}
    found["title asks for the text"] = _titles(collection, size)
    counts = Counter(term for terms in _terms(collection, answers) for term in set(terms))
    for rarest in (False, True):
        for share in LEFT_OUT:
            questions = [without_shared(collection, pair, share, counts if rarest else None) for pair in pairs]
            how = "rarest first" if rarest else "by chance"
            found[f"{100 * share:.0f} % of shared words left out, {how}"] = replace(first, questions=questions)
    return found


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
    """The question without that share of the words that its document has too: with `counts`, how many documents have
    a term, those that the fewest have, else drawn by chance. One word stays."""
    words = pair.query.split()
    known = set(_terms(collection, [pair.document])[0])
    terms = [set(found) for found in _terms(collection, words)]
    shared = [place for place, found in enumerate(terms) if found & known]
    order = random.Random(pair.id).sample(shared, len(shared))  # noqa: S311
    if counts is not None:
        order.sort(key=lambda place: min(counts[term] for term in terms[place] & known))
    gone = set(order[: math.ceil(share * len(shared))])
    return " ".join(word for place, word in enumerate(words) if place not in gone) or words[0]


def questions_of(collection: Collection, size: int) -> Iterator[dict[str, Any]]:
    """A row for the judged queries, and one for each kind of drawn questions."""
    texts = list(collection.questions.values())
    near, words = (np.asarray(one(texts), np.float64) for one in (collection.scores, collection.bm25))
    fused = by_recipe("minmax")(near, words)
    judged = _row(collection, "judged queries", "nDCG@10", [collection.ndcg(fused.at(weight)) for weight in WEIGHTS])
    yield judged | {"costs": 0.0, "words shared": _shared(collection, *_judged_pairs(collection))}
    for name, drawn in kinds(collection, size).items():
        row = _row(collection, name, "MRR", _reciprocal_ranks(collection, drawn))
        costs = max(judged["weights"].values()) - judged["weights"][str(row["best"])]
        yield row | {"costs": costs, "words shared": _shared(collection, drawn.questions, drawn.answers)}


def weights_of(collection: Collection) -> dict[str, Any]:
    """The row of a collection."""
    texts, subject = list(collection.questions.values()), Target.of_index(collection.engine.index.path)
    near, words = (np.asarray(one(texts), np.float64) for one in (collection.scores, collection.bm25))
    fused = by_recipe("minmax")(near, words)
    judged = {weight: collection.ndcg(fused.at(weight)) for weight in TRIED}
    judge = UnlabelledJudge(subject, lambda: collection.documents, "retrieval", 1500)
    judge.prepare([subject.own])
    taken = chosen(judge.weigh(subject.own, weighed(subject.config.hybrid)))
    best = max(judged, key=lambda weight: judged[weight])
    return {
        "index": collection.engine.index.path.name,
        "encoder": collection.model,
        "kinds": dict(Counter(pair.kind for pair in judge.pairs)),
        "taken": {"weight": taken.weight, "nDCG@10": judged[taken.weight]},
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
    """The share of a question's terms that its answer has, the mean of all questions that have a term."""
    both = zip(_terms(collection, questions), _terms(collection, answers), strict=True)
    return float(np.mean([len(set(asked) & set(found)) / len(set(asked)) for asked, found in both if asked]))


def _reciprocal_ranks(collection: Collection, drawn: Drawn) -> list[float]:
    places = np.arange(len(drawn.answers))
    ranking = BM25Ranking.of(drawn.answers, places, collection.engine.index.config.hybrid, "eval")
    near = np.asarray(collection.embed(drawn.questions) @ drawn.vectors.T, np.float64)
    words = np.asarray(np.stack(list(ranking.scores(drawn.questions))), np.float64)
    fused = by_recipe("minmax")(near, words)
    return [100 * mean_reciprocal_rank(fused.at(weight)) for weight in WEIGHTS]


def mean_reciprocal_rank(scores: Float64Array) -> float:
    """Of document i for question i, scores (n, n); documents that tie with it count half."""
    own = np.diag(scores)[:, None]
    ranks = (scores > own).sum(axis=1) + ((scores == own).sum(axis=1) + 1) / 2
    return float(np.mean(1 / ranks))


@click.group()
def main() -> None:
    """Vectors and BM25 fused in other ways."""


@main.command("scalings")
@judged_options
def scalings_command(judged: Sequence[tuple[Path, Path]], output: Path | None) -> None:
    """Ways to bring two scores to one scale."""
    _tell([row for index, folder in judged for row in scalings(Collection.opened(index, folder))], output)


@main.command("questions")
@judged_options
@click.option("--size", type=int, default=1500, show_default=True, help="Questions of a kind, at most.")
def questions_command(judged: Sequence[tuple[Path, Path]], output: Path | None, size: int) -> None:
    """The weight that questions of some kinds call for."""
    _tell([row for index, folder in judged for row in questions_of(Collection.opened(index, folder), size)], output)


@main.command("weights")
@judged_options
def weights_command(judged: Sequence[tuple[Path, Path]], output: Path | None) -> None:
    """The weight that tune takes, beside the best by judged queries."""
    rows = [weights_of(Collection.opened(index, folder)) for index, folder in judged]
    cells = [
        [
            row["index"],
            ", ".join(f"{count} {kind}s" for kind, count in row["kinds"].items()),
            *(f"{row[one]['weight']:g}: {row[one]['nDCG@10']:.1f}" for one in ("taken", "best")),
            *(f"{row[one]:.1f}" for one in ("BM25", "vectors")),
        ]
        for row in rows
    ]
    print_table(["index", "questions", "taken", "best", "BM25", "vectors"], cells, "nDCG@10 x 100 by weight")
    if output:
        save(output, {"machine": machine(1), "command": sys.argv[1:], "results": rows})


def _tell(rows: Sequence[Mapping[str, Any]], output: Path | None) -> None:
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
