"""How many documents score as high by chance: what each way of foretelling it says, and what judged questions show.

    python -m benchmarks.chance collection STS FOLDER
    python -m benchmarks.chance measure --of INDEX FOLDER [--of INDEX FOLDER ...] [--also INDEX] [-o FILE]
    python -m benchmarks.chance draw FILE [FILE ...] PICTURE

`collection` makes a judged collection of the STS sentences: the second sentence of every pair is a document, the first
asks for it. What counts as relevant is every sentence that a chain of judged pairs ties to the question. FOLDER of
`measure` is a judged collection in BEIR's layout and INDEX was built from it. Of each, and of every way in
`chance_methods`, the table has the documents found for one that was foretold, where 100, 30, ... 0.1 are foretold a
question; only documents that nobody judged relevant are counted. Then the share of foreign questions (those of the
other collections), and of their ten best answers, that pass 0.1, in the worst case. `--also` names an index that is
asked foreign questions only.

The tails are then tried without any judgement: a curve through one half of the documents, asked of the other half.

Two rows make use of what a search cannot know, so they bound what can be reached: "the questions, unjudged" takes the
scores of the very questions for the null, "half the questions, judged" the irrelevant documents of the other half.
"""

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.chance_methods import (
    LEVELS,
    METHODS,
    PIECES,
    TAILS,
    TITLES,
    Fitted,
    Null,
    held_out,
    standardised,
    thresholds_of,
)
from benchmarks.interleaved import machine, save
from benchmarks.judged import UNRELATED, Collection
from indexer.arrays import Mask, Scores
from indexer.corpus.document import pseudo_query
from search.cli.output import print_table
from search.evaluation.bootstrap import draw_counts
from search.evaluation.sts.data import read_tasks
from search.evaluation.tune.unlabelled import draw_pairs

UNJUDGED, HALF = "the questions, unjudged", "half the questions, judged"
_FACTOR = 2.0
_CUT = len(LEVELS) - 1  # the level of 0.1
_ANSWERS = 10
_LOWEST = {"SICK": 1.0}  # of the scale, where it is not 0; the highest is 5
_BLOCK = 256


@dataclass(frozen=True)
class Asked:
    """Questions against a corpus: `scores` (m, documents), and the documents judged relevant to each."""

    scores: Scores
    relevant: Mask
    unrelated: Mask


def asked_of(collection: Collection) -> Asked:
    """A collection's own questions."""
    scores = collection.scores(list(collection.questions.values()))
    return Asked(scores, _mask(collection, collection.judged), _mask(collection, collection.unrelated))


def null_of(collection: Collection, kind: str, size: int) -> Null:
    """At most `size` query-like texts, as a build draws them or as `tune` does."""
    rows, texts = (_titles if kind == TITLES else _pieces)(collection, size)
    others = np.ones((len(rows), len(collection.documents)), bool)
    others[np.arange(len(rows)), rows] = False
    vectors = collection.vectors
    return Null(collection.scores(texts), others, vectors[rows] @ vectors.T)


def _titles(collection: Collection, size: int) -> tuple[list[int], list[str]]:
    order = np.random.default_rng(0).permutation(len(collection.documents))[:size].tolist()
    drawn = [(row, pseudo_query(collection.documents[row])) for row in order]
    return [row for row, text in drawn if text], [text for _, text in drawn if text]


def _pieces(collection: Collection, size: int) -> tuple[list[int], list[str]]:
    pairs = draw_pairs(collection.documents, collection.engine.index.config.corpus.text, size)
    return [collection.rows[pair.id] for pair in pairs], [pair.query for pair in pairs]


def _mask(collection: Collection, judgements: Mapping[str, Mapping[str, int]]) -> Mask:
    mask, rows = np.zeros((len(collection.questions), len(collection.documents)), bool), collection.rows
    for number, question in enumerate(collection.questions):
        judged = judgements.get(question, {})
        mask[number, [rows[name] for name, grade in judged.items() if grade > 0 and name in rows]] = True
    return mask


def measure(fitted: Fitted, asked: Asked, name: str) -> dict[str, Any]:
    """What was found beside what was foretold, JSON types."""
    resamples = draw_counts(len(asked.scores), name)
    levels: list[dict[str, Any]] = []
    for level, mask in zip(LEVELS, _high(fitted, asked.scores), strict=True):
        counts = (mask & ~asked.relevant).sum(axis=1).astype(np.float64)
        low, up = np.quantile(resamples @ counts / len(counts), [0.025, 0.975]) / level
        levels.append(
            {
                "foretold": level,
                "found": float(counts.mean()),
                "ratio": float(counts.mean()) / level,
                "interval": [float(low), float(up)],
                "relevant_above": _share(mask, asked.relevant),
                "relevant_among": _share(asked.relevant, mask),
                "unrelated_ratio": _share(mask, asked.unrelated, mask.shape[1] / level),
            }
        )
    holds = all(1 / _FACTOR <= level["ratio"] <= _FACTOR for level in levels)
    return {"levels": levels, "within_factor_two": holds}


def oracles(asked: Asked, name: str) -> dict[str, dict[str, Any]]:
    """The two rows that know more than a search can."""
    values = standardised(asked.scores)  # a relevant document moves the mean here as it does where it is asked for
    everything = np.ones(values.shape, bool)
    known = np.arange(len(values)) % 2 == 0
    unjudged = Fitted(standardised, thresholds_of(values, everything))
    judged = Fitted(standardised, thresholds_of(values[known], ~asked.relevant[known]))
    rest = Asked(asked.scores[~known], asked.relevant[~known], asked.unrelated[~known])
    return {UNJUDGED: measure(unjudged, asked, name), HALF: measure(judged, rest, name)}


def foreign(fitted: Fitted, scores: Scores) -> dict[str, float]:
    """The share of questions, and of their ten best answers, that pass 0.1 where there is no answer."""
    passed = np.concatenate([found.sum(axis=1) for found in _blocks(fitted, scores, _CUT)])
    return {
        "questions": float(np.mean(passed > 0)),
        "answers": float(np.mean(np.minimum(passed, _ANSWERS) / _ANSWERS)),
    }


def _blocks(fitted: Fitted, scores: Scores, level: int) -> Iterator[Mask]:
    for start in range(0, len(scores), _BLOCK):
        yield fitted.found(scores[start : start + _BLOCK])[level]


def _high(fitted: Fitted, scores: Scores) -> list[Mask]:
    """By level the documents foretold to be that few; a question's values depend on no other question."""
    blocks = [fitted.found(scores[start : start + _BLOCK]) for start in range(0, len(scores), _BLOCK)]
    return [np.concatenate(masks) for masks in zip(*blocks, strict=True)]


def _share(mask: Mask, of: Mask, times: float = 1.0) -> float | None:
    count = int(of.sum())
    return float((mask & of).sum() / count * times) if count else None


def _measured(collection: Collection, others: Mapping[str, Sequence[str]], texts: int) -> list[dict[str, Any]]:
    nulls = {kind: null_of(collection, kind, texts) for kind in (TITLES, PIECES)}
    asked = asked_of(collection) if collection.questions else None
    elsewhere = {name: collection.scores(found) for name, found in others.items() if name != collection.name}
    about = {"collection": collection.name, "documents": len(collection.documents)}
    rows: list[dict[str, Any]] = []
    for name, (kind, method) in METHODS.items():
        fitted = method(nulls[kind])
        row = about | {"method": name, "null": kind}
        row |= measure(fitted, asked, collection.name) if asked else {}
        row |= {"held_out": held_out(TAILS[name], nulls[kind]).tolist()} if name in TAILS else {}
        rows.append(row | {"foreign": {other: foreign(fitted, scores) for other, scores in elsewhere.items()}})
    if asked:
        bounds = oracles(asked, collection.name)
        rows += [about | {"method": name, "null": "questions"} | row for name, row in bounds.items()]
    return rows


@click.group()
def main() -> None:
    """What a score says of chance."""


@main.command()
@click.argument("sts", type=click.Path(path_type=Path, exists=True))
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--least", type=float, help="Relevant are sentences of pairs that score so much, 0 to 5; without it "
              "all that pairs tie to one another.")  # fmt: skip
def collection(sts: Path, folder: Path, least: float | None) -> None:
    """Make a judged collection in FOLDER of the sentence pairs in STS."""
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    pairs = dict(_pairs(sts))
    questions = {text: f"q{number}" for number, text in enumerate(dict.fromkeys(first for first, _ in pairs))}
    documents = {text: f"d{number}" for number, text in enumerate(dict.fromkeys(second for _, second in pairs))}
    for name, texts in (("corpus", documents), ("queries", questions)):
        lines = [json.dumps({"_id": number, "text": text}) for text, number in texts.items()]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    kin = families(pairs)
    members: dict[str, list[str]] = {}
    for text in documents:
        members.setdefault(kin[_words(text)], []).append(text)
    tied = [(first, second) for first in questions for second in members.get(kin[_words(first)], [])]
    if least is not None:
        tied = [pair for pair, score in pairs.items() if score >= least]
    unrelated = (pair for pair, score in pairs.items() if score < 1)
    for split, judged in (("test", tied), (UNRELATED, unrelated)):
        rows = [f"{questions[first]}\t{documents[second]}\t1" for first, second in judged]
        path = folder / "qrels" / f"{split}.tsv"
        path.write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]) + "\n", encoding="utf-8")
    click.echo(f"{len(documents):,} documents, {len(questions):,} questions, {len(pairs):,} pairs")


def _pairs(sts: Path) -> Iterator[tuple[tuple[str, str], float]]:
    """Two sentences and their score, from 0 to 5."""
    for task in read_tasks(sts):
        lowest = _LOWEST.get(task.name, 0.0)
        for subset in task.subsets:
            scores = 5 * (subset.scores - lowest) / (5 - lowest)
            yield from zip(zip(subset.first, subset.second, strict=True), scores.tolist(), strict=True)


def families(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The words of each sentence -> a name that all sentences share which chains of pairs tie to one another.

    Sentences are made of one another in some sets, and only a few of the pairs were judged.
    """
    parents: dict[str, str] = {}

    def root(words: str) -> str:
        while parents.setdefault(words, words) != words:
            parents[words] = words = parents[parents[words]]
        return words

    for first, second in pairs:
        parents[root(_words(first))] = root(_words(second))
    return {words: root(words) for words in list(parents)}


def _words(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.casefold()))


@main.command("measure")
@click.option("--of", "judged", type=(click.Path(path_type=Path), click.Path(path_type=Path)), multiple=True)
@click.option("--also", type=click.Path(path_type=Path), multiple=True, help="An index without questions of its own.")
@click.option("--texts", type=int, default=1000, show_default=True, help="Query-like texts.")
@click.option("--questions", type=int, default=1000, show_default=True, help="Of a collection, at most.")
@click.option("-o", "--output", type=click.Path(path_type=Path))
def measure_command(
    judged: Sequence[tuple[Path, Path]], also: Sequence[Path], texts: int, questions: int, output: Path | None
) -> None:
    """Foretold and found, for every collection and method."""
    opened = [Collection.opened(index, folder, questions) for index, folder in judged]
    asked = {found.name: list(found.questions.values()) for found in opened}
    opened += [Collection.opened(index, None, questions) for index in also]
    rows = [row for found in opened for row in _measured(found, asked, texts)]
    _show(rows)
    if output:
        about = {"machine": machine(1), "encoder": opened[0].model, "texts": texts, "command": sys.argv[1:]}
        save(output, about | {"levels": LEVELS, "results": rows})


def _show(rows: Sequence[Mapping[str, Any]]) -> None:
    levels = [f"{level:g}" for level in LEVELS]
    cells = []
    for row in rows:
        found = [f"{level['ratio']:.2f}" for level in row.get("levels", [])] or [""] * len(LEVELS)
        cells.append([row["collection"], row["method"], *found, _worst(row.get("foreign", {}))])
    print_table(["collection", "method", *levels, "foreign at 0.1"], cells)
    halves = [
        [row["collection"], row["method"], *(f"{ratio:.2f}" for ratio in row["held_out"])]
        for row in rows
        if "held_out" in row
    ]
    click.echo()
    print_table(["half of", "method", *levels], halves)


def _worst(shares: Mapping[str, Mapping[str, float]]) -> str:
    """Of questions and of answers, in the collection's worst case."""
    if not shares:
        return ""
    return " / ".join(f"{100 * max(found[of] for found in shares.values()):.1f} %" for of in ("questions", "answers"))


@main.command()
@click.argument("results", type=click.Path(path_type=Path, exists=True), nargs=-1, required=True)
@click.argument("picture", type=click.Path(path_type=Path))
def draw(results: Sequence[Path], picture: Path) -> None:
    """Draw what was found for one that was foretold, of each of the RESULTS in a row of panels."""
    from benchmarks.chance_picture import draw_chance

    draw_chance([json.loads(path.read_text(encoding="utf-8")) for path in results], picture)


if __name__ == "__main__":
    main()
