"""Two small STS tasks, and a slow computation of their figures by the definitions."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from indexer.arrays import Float64Array
from indexer.encoders.load import open_encoder
from indexer.encoders.transformer import TransformerEncoder
from indexer.models.encoder_spec import EncoderSpec
from indexer.recipe.run_options import RunOptions
from search.evaluation import embeddings as states_module
from search.evaluation.sts.data import Task
from search.evaluation.sts.readers import Subset
from tests.search.cli.test_cli import Done, isotrope

WORDS = ("whale", "song", "deep", "sea", "library", "data", "sing", "of", "the", "in")


def made_subset(name: str, count: int, seed: int) -> Subset:
    """Pairs scored by their shared words; some sentences repeat, within pairs and between them."""
    random = np.random.default_rng(seed)
    first: list[str] = []
    second: list[str] = []
    scores: list[float] = []
    for number in range(count):
        one, two = (" ".join(random.choice(WORDS, random.integers(2, 6))) for _ in range(2))
        two = one if number % 10 == 0 else two
        one = first[0] if number % 7 == 3 else one
        first.append(one)
        second.append(two)
        scores.append(round(len(set(one.split()) & set(two.split())) + random.normal(), 1))
    return Subset(name, np.array(scores), tuple(first), tuple(second))


STSB = Task("STSB", (made_subset("stsb", 70, 1),), {"stsb.tsv": "aa"})
STS12 = Task("STS12", (made_subset("A", 60, 2), made_subset("B", 40, 3)), {"sts12.A.tsv": "bb", "sts12.B.tsv": "cc"})
TWO = [STSB, STS12]


def sentences(task: Task) -> list[str]:
    return [text for subset in task.subsets for pair in zip(subset.first, subset.second, strict=True) for text in pair]


def write(path: Path, subset: Subset) -> None:
    rows = zip(subset.scores.tolist(), subset.first, subset.second, strict=True)
    lines = ["score\tsentence1\tsentence2", *(f"{score}\t{first}\t{second}" for score, first, second in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_tasks(folder: Path) -> Path:
    """The two tasks as TSV files."""
    folder.mkdir()
    for stem, subset in (("stsb", STSB.subsets[0]), ("sts12.A", STS12.subsets[0]), ("sts12.B", STS12.subsets[1])):
        write(folder / f"{stem}.tsv", subset)
    return folder


def figures(result: Mapping[str, Any], **wanted: Any) -> dict[str, float]:
    """Spearman x 100 by task of the rows with these values."""
    rows = [row for row in result["results"] if all(row[key] == value for key, value in wanted.items())]
    assert len({row["task"] for row in rows}) == len(rows)
    return {row["task"]: 100 * row["spearman"] for row in rows}


def expected_scores(subset: Subset, vectors: dict[str, Float64Array]) -> list[float]:
    """Single cosines by the vector of each text, rounded so that equal pairs tie."""

    def cosine(a: Float64Array, b: Float64Array) -> float:
        return round(float(a @ b / np.sqrt((a @ a) * (b @ b))), 13)

    return [cosine(vectors[a], vectors[b]) for a, b in zip(subset.first, subset.second, strict=True)]


def expected_figures(task: Task, vectors: dict[str, Float64Array]) -> dict[str, float]:
    """Each protocol by its definition."""
    scores = [expected_scores(subset, vectors) for subset in task.subsets]
    each = [100 * spearmanr(one, subset.scores).statistic for one, subset in zip(scores, task.subsets, strict=True)]
    sizes = [len(one) for one in scores]
    joined = [score for one in scores for score in one]
    return {
        "mean": sum(each) / len(each),
        "wmean": sum(value * size for value, size in zip(each, sizes, strict=True)) / sum(sizes),
        "all": 100 * spearmanr(joined, [s for subset in task.subsets for s in subset.scores]).statistic,
    }


def count_passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of texts of each forward pass of encoders loaded later."""
    passed: list[int] = []

    def counting(spec: EncoderSpec, options: RunOptions) -> Any:
        encoder = open_encoder(spec, options)
        assert isinstance(encoder, TransformerEncoder)
        model = encoder.runner.model.model
        forward = model.forward

        def count(*arguments: Any, **named: Any) -> Any:
            passed.append(len(named["input_ids"]))
            return forward(*arguments, **named)

        monkeypatch.setattr(model, "forward", count)
        return encoder

    monkeypatch.setattr(states_module, "open_encoder", counting)
    return passed


def said(*arguments: str | Path) -> str:
    """The one-line error of a failing command."""
    done: Done = isotrope("evaluate", "sts", *arguments)
    assert (done.returncode, done.stdout) == (1, ""), done
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1
    return lines[0]
