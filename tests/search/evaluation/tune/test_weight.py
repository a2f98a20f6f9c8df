"""The weight of the vectors in a hybrid: the rule of choice, the scores by a slow oracle, and the written recipe."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.encoders.load import load_encoder
from indexer.pipeline.build import build_index
from indexer.recipe.config import BuildConfig, EncoderConfig
from indexer.recipe.index_config import StoreConfig
from indexer.recipe.ranking import HybridConfig
from search.evaluation.bootstrap import draw_counts
from search.evaluation.retrieval.retrieval import RetrievalOptions, evaluate_retrieval
from search.evaluation.sweep import Sweep
from search.evaluation.target import Target
from search.evaluation.tune.tune import TuneOptions, run_tune
from search.evaluation.tune.unlabelled import draw_pairs
from search.evaluation.tune.weight import WEIGHTS, choose_weight
from search.ranking.bm25 import BM25
from search.ranking.terms import tokenize
from tests.search.cli.test_cli import isotrope
from tests.search.evaluation.tune.tuned_corpora import COLUMNS, corpus, judged, written

RAW = Sweep(strengths=("none",))


@pytest.fixture
def config(tiny_model: Callable[[str], Path]) -> BuildConfig:
    encoder = EncoderConfig(model=str(tiny_model("bert")), max_length=64, precision="float32")
    return BuildConfig(encoder=encoder, store=StoreConfig(part_documents=50))


def curve(peak: float, height: float = 0.5, noise: float = 0.0, questions: int = 400) -> Any:
    """Scores of each weight that fall on both sides of a peak, with independent noise for every question."""
    rng = np.random.default_rng(1)
    means = height - 0.4 * np.abs(np.array(WEIGHTS) - peak)
    shared = rng.normal(0, noise, questions)
    return np.clip(means[:, None] + shared - shared.mean(), 0, 1)


def test_without_doubt_the_best_is_taken() -> None:
    for peak in (0.0, 0.3, 0.75, 1.0):
        choice = choose_weight(curve(peak, noise=0.2))  # noise of questions, not of weights: they agree on the weight
        assert (choice["weight"], choice["best"]) == (peak, peak)
        assert [row["highest"] for row in choice["weights"]] == [float(weight == peak) for weight in WEIGHTS]


def test_where_questions_disagree_the_mean_of_what_they_call_for_is_taken() -> None:
    """Half of the questions need BM25 alone, half vectors alone: resamples prefer either end."""
    words = np.tile(1 - np.array(WEIGHTS)[:, None], 30)
    choice = choose_weight(np.concatenate([words, 1 - words], axis=1))
    assert 0.4 <= choice["weight"] <= 0.6
    certain = choose_weight(np.concatenate([words, words, words, 1 - words], axis=1))
    assert certain["weight"] == 0.0


def test_it_is_the_mean_over_resamples_one_after_another() -> None:
    values = np.random.default_rng(0).random((len(WEIGHTS), 25))
    places = [int((values * counts).sum(axis=1).argmax()) for counts in draw_counts(25, "tune")]
    choice = choose_weight(values)
    assert choice["weight"] == WEIGHTS[int(np.mean(places))]
    shares = [row["highest"] for row in choice["weights"]]
    assert shares == pytest.approx([places.count(place) / len(places) for place in range(len(WEIGHTS))])
    assert "the mean of the weights that score highest in each of 1,000 resamples" in choice["reason"]


@given(st.integers(0, 20), st.floats(0, 0.3), st.integers(2, 60))
def test_it_lies_among_those_that_are_highest_in_some_resample(peak: int, noise: float, questions: int) -> None:
    choice = choose_weight(curve(WEIGHTS[peak], noise=noise, questions=questions))
    rows = choice["weights"]
    assert [row["weight"] for row in rows] == list(WEIGHTS)
    assert [row["taken"] for row in rows] == [weight == choice["weight"] for weight in WEIGHTS]
    highest = [place for place, row in enumerate(rows) if row["highest"] > 0]
    assert WEIGHTS[min(highest)] <= choice["weight"] <= WEIGHTS[max(highest)]
    assert sum(row["highest"] for row in rows) == pytest.approx(1)


def slow_scores(config: BuildConfig, documents: Any, scaling: str) -> list[float]:
    """Mean reciprocal rank of each weight for raw embeddings, by the definitions."""
    encoder, pairs = load_encoder(config.encoder), draw_pairs(documents, COLUMNS, 1500)
    asked = encoder.encode([pair.query for pair in pairs], "query").astype(np.float64)
    rests = encoder.encode([pair.document for pair in pairs], "document").astype(np.float64)
    unit = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (asked, rests)]
    bm25 = BM25.of([pair.document for pair in pairs], "hybrid", HybridConfig())
    found = np.zeros(len(WEIGHTS))
    for number, pair in enumerate(pairs):
        near = unit[1] @ unit[0][number]
        words = bm25.scores(tokenize([pair.query], "hybrid", HybridConfig())[0]).astype(np.float64)
        if scaling == "zscore":
            near, words = (near - near.mean()) / near.std(), (words - words.mean()) / (words.std() or 1)
        else:
            near, words = (near - near.mean()) / (near.max() - near.mean()), words / (words.max() or 1)
        for place, weight in enumerate(WEIGHTS):
            total = weight * near + (1 - weight) * words
            better, equal = (total > total[number] + 1e-9).sum(), (np.abs(total - total[number]) <= 1e-9).sum()
            found[place] += 1 / (better + (equal + 1) / 2)
    means: list[float] = (found / len(pairs)).tolist()
    return means


@pytest.mark.parametrize("scaling", ["minmax", "zscore"])
def test_scores_are_those_of_the_definitions(config: BuildConfig, scaling: str, tmp_path: Path) -> None:
    config = config.with_overrides([f"hybrid.scaling={scaling}"])
    source = written(corpus(130), tmp_path / "docs.jsonl")
    result = run_tune(Target.of_recipe(config), TuneOptions((str(source),)), RAW, tmp_path)
    assert result["choice"]["setting"].endswith("raw")
    found = [row["value"] for row in result["hybrid"]["weights"]]
    assert found == pytest.approx(slow_scores(config, corpus(130), scaling), abs=2e-3)
    assert len({round(value, 4) for value in found}) > 3
    assert result["recipe"]["hybrid"] == config.to_dict()["hybrid"] | {"weight": result["hybrid"]["weight"]}


@pytest.mark.parametrize("unit", ["document", "window"])
def test_with_judgements_it_is_what_evaluating_the_weights_gives(
    config: BuildConfig, unit: str, tmp_path: Path
) -> None:
    documents = corpus(90)
    folder = judged(documents, tmp_path / "beir")
    config = config.with_overrides(["chunk.tokens=12", "chunk.overlap=4", f"hybrid.unit={unit}"])
    build_index(documents, tmp_path / "index", config)
    subject = Target.of_index(tmp_path / "index")
    tuned = run_tune(subject, TuneOptions((str(tmp_path / "index"),), beir=folder), RAW, tmp_path / "cache")
    task = RetrievalOptions(folder, cutoffs=(10,), hybrid=True, hybrid_weights=WEIGHTS)
    whitening = tuned["recipe"]["whitening"]
    sweep = Sweep(strengths=(whitening["strength"],), centres=(whitening["centre"],))
    rows = [row for row in evaluate_retrieval(subject, task, sweep)["results"] if "weight" in row.get("hybrid", {})]
    expected = [row["measure"]["nDCG@10"]["value"] for row in rows]
    assert [row["value"] for row in tuned["hybrid"]["weights"]] == pytest.approx(expected)
    assert len(set(expected)) > 2


def test_the_table_and_the_command_that_uses_it(config: BuildConfig, tmp_path: Path) -> None:
    build_index(corpus(90), tmp_path / "index", config.with_overrides(["hybrid.weight=0.95"]))
    done = isotrope("tune", tmp_path / "index", "--strength", "none", "--cache", tmp_path / "cache")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    table = lines[lines.index("Hybrid: MRR x 100 by weight of the vectors") :]
    assert {line.split()[0] for line in table[2:] if line[:1].isdigit()} >= {f"{n / 10:g}" for n in range(11)}
    assert 98 <= sum(int(share) for share in re.findall(r"(\d+) %", "\n".join(table[2:]))) <= 102
    assert any("rounded down to a step of 0.05" in line for line in table)
    assert sum(line.endswith("  chosen") for line in table) == 1
    (taken,) = (line for line in table if line.startswith("chosen: hybrid.weight="))
    weight = taken.removeprefix("chosen: ").split(",")[0]
    assert lines[-1].startswith(f"use it: isotrope refit {tmp_path / 'index'} --set whitening.")
    assert lines[-1].endswith(f"--set {weight}")
    done = isotrope(*lines[-1].split()[3:])
    assert done.returncode == 0, done.stderr


def test_where_none_can_be_chosen_the_reason_is_told(
    config: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = TuneOptions((str(written(corpus(90), tmp_path / "docs.jsonl")),))
    ranks = run_tune(Target.of_recipe(config.with_overrides(["hybrid.fusion=rrf"])), task, RAW, tmp_path)
    assert ranks["hybrid"] is None
    assert 'no weight was chosen for hybrids: the recipe\'s fusion "rrf" has no weight' in ranks["notes"]
    alike = TuneOptions(task.sources, objective="sts")
    assert run_tune(Target.of_recipe(config), alike, RAW, tmp_path)["hybrid"] is None
    monkeypatch.setitem(sys.modules, "bm25s", None)
    missing = run_tune(Target.of_recipe(config), task, RAW, tmp_path)
    assert missing["hybrid"] is None
    assert any("no weight was chosen for hybrids: " in note and "isotrope[hybrid]" in note for note in missing["notes"])
