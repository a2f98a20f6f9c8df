"""What `benchmarks.chance` says: its counting by hand, its ways where the truth is known, and the page made of them."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.chance import HALF, UNJUDGED, Asked, families, foreign, main, measure, oracles
from benchmarks.chance_methods import (
    LEVELS,
    METHODS,
    TAILS,
    Fitted,
    Null,
    between_quantiles,
    held_out,
    plain,
    pooled,
    standardised,
    without_crowded,
    without_near_duplicates,
    without_nearest,
)
from indexer.arrays import Scores
from search.evaluation.retrieval.beir import read_judged

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ("chance-minilm.json", "chance-static.json")


def scores_of(questions: int, documents: int, seed: int, tail: float = 0.0) -> Scores:
    """Normal scores, or exponential ones, whose mean and width are each question's own."""
    chance = np.random.default_rng(seed)
    drawn = (
        chance.standard_normal((questions, documents)) if not tail else chance.exponential(tail, (questions, documents))
    )
    own = chance.uniform(0.01, 0.03, (questions, 1))
    return np.asarray(chance.uniform(-0.1, 0.1, (questions, 1)) + own * drawn, np.float32)


def null_of(scores: Scores) -> Null:
    """Text i is from document i, which scores 1 and must not count."""
    scores = scores.copy()
    others = np.ones(scores.shape, bool)
    rows = np.arange(len(scores))
    scores[rows, rows], others[rows, rows] = 1.0, False
    kinship = np.zeros_like(scores)
    kinship[rows, rows] = 1.0
    return Null(scores, others, kinship)


def asked_of(scores: Scores) -> Asked:
    return Asked(scores, np.zeros(scores.shape, bool), np.zeros(scores.shape, bool))


def ratios(fitted: Fitted, scores: Scores) -> list[float]:
    return [level["ratio"] for level in measure(fitted, asked_of(scores), "test")["levels"]]


def test_thresholds_are_those_that_sorting_gives() -> None:
    null = null_of(scores_of(40, 500, 0))
    fitted = pooled(plain)(null)
    counted = np.sort(null.scores[null.others])[::-1]
    assert fitted.thresholds.tolist() == [counted[max(1, int(level * 40)) - 1] for level in LEVELS]
    found = [int((mask & null.others).sum()) / 40 for mask in fitted.found(null.scores)]
    assert found == [100, 30, 10, 3, 1, 0.3, 0.1]


def test_what_is_drawn_from_the_same_distribution_is_foretold() -> None:
    """Also where every question has a mean and a width of its own, which pooled scores know nothing of."""
    null, questions = null_of(scores_of(400, 2000, 0)), scores_of(400, 2000, 1)
    fitted = pooled(standardised)(null)
    assert ratios(fitted, questions) == pytest.approx([1] * len(LEVELS), rel=0.35)
    assert ratios(METHODS["normal tail"][1](null), questions) == pytest.approx([1] * len(LEVELS), rel=0.35)
    assert ratios(pooled(between_quantiles)(null), questions)[:5] == pytest.approx([1] * 5, rel=0.25)
    assert ratios(METHODS["any document so high"][1](null), questions)[3:] == pytest.approx([1] * 4, rel=0.5)


@pytest.mark.parametrize("name", ["exponential tail", "Pareto tail, highest 4 %", "Pareto tail, one shape"])
def test_tails_hold_where_scores_fall_exponentially(name: str) -> None:
    null, questions = null_of(scores_of(300, 4000, 0, tail=1.0)), scores_of(300, 4000, 1, tail=1.0)
    assert ratios(METHODS[name][1](null), questions) == pytest.approx([1] * len(LEVELS), rel=0.6)


def test_a_curve_is_held_to_documents_that_it_has_not_seen() -> None:
    null = null_of(scores_of(300, 4000, 0, tail=1.0))
    assert held_out(TAILS["exponential tail"], null) == pytest.approx(1, rel=0.5)
    assert held_out(TAILS["normal tail"], null)[-1] > 20  # far too few are foretold


def test_relevant_documents_and_the_source_do_not_count() -> None:
    scores = np.array([[0.9, 0.8, 0.1, 0.0], [0.75, 0.2, 0.3, 0.9]], np.float32)
    relevant = np.array([[1, 0, 0, 0], [0, 0, 1, 0]], bool)
    unrelated = np.array([[0, 0, 1, 0], [1, 0, 0, 0]], bool)
    fitted = Fitted(plain, np.full(len(LEVELS), 0.7))
    level = measure(fitted, Asked(scores, relevant, unrelated), "by hand")["levels"][4]
    assert level["foretold"] == 1
    assert level["found"] == level["ratio"] == 1.5  # 0.8 of the first, 0.75 and 0.9 of the second
    assert level["relevant_above"] == 0.5
    assert level["relevant_among"] == 0.25
    assert level["unrelated_ratio"] == 0.5 * 4  # half of the pairs, where one in four documents was foretold
    assert level["interval"][0] <= 1.5 <= level["interval"][1]


def test_foreign_questions_are_counted_by_question_and_by_answer() -> None:
    scores = np.array([[0.9, 0.8, *[0.0] * 18], [0.0] * 20], np.float32)
    assert foreign(Fitted(plain, np.full(len(LEVELS), 0.7)), scores) == {"questions": 0.5, "answers": 0.1}


def test_what_is_left_out_of_a_null() -> None:
    null = null_of(scores_of(30, 100, 0))
    kinship = null.kinship.copy()
    kinship[:, 50:55] = 0.85
    kinship[:, 60:65] = 0.5
    kin = Null(null.scores, null.others, kinship)
    assert (null.others & ~without_near_duplicates(kin).others).nonzero()[1].tolist() == [50, 51, 52, 53, 54] * 30
    nearest = without_nearest(kin).others
    assert not nearest[:, 50:55].any()
    assert not nearest[:, 60:65].any()
    assert nearest[:, 70:].all()
    crowded = null.scores.copy()
    crowded[:3, 40:48] = 0.9
    assert len(without_crowded(Null(crowded, null.others, kinship)).scores) == 22
    assert not (without_crowded(Null(crowded, null.others, kinship)).scores[:, 40:48] > 0.8).any()


def test_the_bounds_know_more_than_a_search() -> None:
    scores = scores_of(200, 2000, 0)
    relevant = np.zeros(scores.shape, bool)
    relevant[:, 0] = True
    scores[:, 0] = 0.9
    found = oracles(Asked(scores, relevant, ~relevant), "test")
    assert [round(level["ratio"], 2) for level in found[UNJUDGED]["levels"]][4:] == [0, 0, 0]  # relevant ones, all
    assert [level["ratio"] for level in found[HALF]["levels"]] == pytest.approx([1] * len(LEVELS), rel=0.9)


def test_chains_of_pairs_tie_sentences_into_families() -> None:
    found = families([("A man sings.", "a man is singing"), ("A man, singing", "a man sings"), ("Rain.", "It rains.")])
    assert found["a man sings"] == found["a man is singing"] == found["a man singing"]
    assert found["rain"] == found["it rains"] != found["a man sings"]


def test_sentence_pairs_become_a_judged_collection(tmp_path: Path) -> None:
    sts, folder = tmp_path / "pairs", tmp_path / "collection"
    sts.mkdir()
    lines = ["0.5\tone dog\ttwo cats", "4.8\tone dog\ta single dog", "3.0\tred wine\twhite wine"]
    (sts / "stsb.tsv").write_text("score\tsentence1\tsentence2\n" + "\n".join(lines) + "\n", encoding="utf-8")
    (sts / "sick.tsv").write_text("score\tsentence1\tsentence2\n1.0\tup\tdown\n5.0\tin\tin\n", encoding="utf-8")
    result = CliRunner().invoke(main, ["collection", str(sts), str(folder)])
    assert result.exit_code == 0, result.output
    judged, unrelated = read_judged(folder), read_judged(folder, "unrelated")
    texts = [json.loads(line) for line in (folder / "corpus.jsonl").read_text(encoding="utf-8").splitlines()]
    text_of = {found["_id"]: found["text"] for found in texts}
    named = {
        judged.queries[name]: {text_of[document] for document in found} for name, found in judged.judgements.items()
    }
    assert named["one dog"] == {"two cats", "a single dog"}
    assert named["up"] == {"down"}
    apart = {unrelated.queries[name]: set(map(text_of.get, found)) for name, found in unrelated.judgements.items()}
    assert apart == {"one dog": {"two cats"}, "up": {"down"}}  # SICK's scores start at 1
    assert CliRunner().invoke(main, ["collection", str(sts), str(folder), "--least", "3"]).exit_code == 0
    assert {judged.queries[name] for name in read_judged(folder).judgements} == {"one dog", "red wine", "in"}


@pytest.mark.check
def test_indexes_are_measured_and_drawn(toy: tuple[Path, Path], tmp_path: Path) -> None:
    index, folder = map(str, toy)
    output, picture = tmp_path / "result.json", tmp_path / "chance.svg"
    given = ["measure", "--of", index, folder, "--also", index, "--texts", "60", "-o", str(output)]
    result = CliRunner().invoke(main, given, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    rows = json.loads(output.read_text(encoding="utf-8"))["results"]
    of_toy = [row for row in rows if row["collection"] == "toy"]
    assert [row["method"] for row in of_toy] == [*METHODS, UNJUDGED, HALF]
    assert all(len(row["levels"]) == len(LEVELS) for row in of_toy)
    assert all(set(row["foreign"]) == {"toy"} for row in rows if row["collection"] == "index")
    assert CliRunner().invoke(main, ["draw", str(output), str(picture)], catch_exceptions=False).exit_code == 0
    assert picture.read_text(encoding="utf-8").count("<svg") == 1


@pytest.mark.parametrize("name", RESULTS)
def test_the_page_says_what_was_measured(name: str) -> None:
    result = json.loads((ROOT / "benchmarks" / "results" / name).read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "chance.md").read_text(encoding="utf-8")
    part = page.partition(f"## {result['encoder']}")[2].partition("\n## ")[0]
    shown = {tuple(cells[:2]): cells[2:9] for cells in map(_cells, re.findall(r"^\| .*\|$", part, re.MULTILINE))}
    measured = {
        (row["collection"], row["method"]): [f"{level['ratio']:.2f}" for level in row["levels"]]
        for row in result["results"]
        if "levels" in row
    }
    assert measured.items() <= shown.items()


def test_no_way_holds_everywhere() -> None:
    """Else the page would be wrong to leave the feature out."""
    files = [json.loads((ROOT / "benchmarks" / "results" / name).read_text(encoding="utf-8")) for name in RESULTS]
    rows = [row for result in files for row in result["results"] if "levels" in row]
    for method in METHODS:
        own = [row["within_factor_two"] for row in rows if row["method"] == method]
        assert len(own) == 6
        assert not all(own), method


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]
