"""Entailment by a cosine threshold: files, thresholds, and results."""

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.encoders.load import load_encoder
from indexer.encoders.transformer import TransformerEncoder
from indexer.errors import ConfigError, EvaluationError
from indexer.recipe.config import BuildConfig
from search.evaluation.sweep import Strength, Sweep
from search.evaluation.target import Target
from search.papers.rte import (
    EntailmentPairs,
    RteOptions,
    _Answers,
    best_threshold,
    evaluate_rte,
    read_rte,
    rte_sweep,
)
from tests.oracles import whitening_projection
from tests.search.cli.test_cli import isotrope

HEADER = "index\tsentence1\tsentence2\tlabel\n"
WORDS = ("whale", "song", "deep", "sea", "library", "data", "sing", "of", "the", "in")
Row = tuple[str, str, bool]


def made_up(count: int, seed: int = 0) -> list[Row]:
    """Return pairs of word strings; entailed pairs share their beginning."""
    random = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        first = list(random.choice(WORDS, 5))
        entailed = number % 3 > 0
        second = first[:3] if entailed else list(random.choice(WORDS, 4))
        rows.append((" ".join(first), " ".join(second), bool(entailed)))
    return rows


def label(entailed: bool) -> str:
    return "entailment" if entailed else "not_entailment"


def write_tsv(path: Path, rows: Sequence[Row]) -> Path:
    path.write_text(HEADER + "".join(f"{n}\t{a}\t{b}\t{label(e)}\n" for n, (a, b, e) in enumerate(rows)))
    return path


def write_jsonl(path: Path, rows: Sequence[Row]) -> Path:
    lines = [{"premise": a, "hypothesis": b, "label": label(e), "idx": n} for n, (a, b, e) in enumerate(rows)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


# --- files


def test_both_published_forms_give_the_same_pairs(tmp_path: Path) -> None:
    rows = [('a "cat', "an animal", True), ("one", "two", False)]
    glue, superglue = read_rte(write_tsv(tmp_path / "dev.tsv", rows)), read_rte(write_jsonl(tmp_path / "v.jsonl", rows))
    for found in (glue, superglue):
        assert (found.first, found.second, found.entailed.tolist()) == (
            ('a "cat', "one"), ("an animal", "two"), [True, False],
        )  # fmt: skip
    packed = tmp_path / "dev.tsv.gz"
    packed.write_bytes(gzip.compress((tmp_path / "dev.tsv").read_bytes()))
    assert read_rte(packed).first == glue.first


def test_the_majority_is_the_commoner_label(tmp_path: Path) -> None:
    rows = [("a", "b", False)] * 3 + [("c", "d", True)]
    assert read_rte(write_tsv(tmp_path / "x.tsv", rows)).majority == 0.75
    assert read_rte(write_tsv(tmp_path / "y.tsv", [(a, b, not e) for a, b, e in rows])).majority == 0.75


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.tsv", "", "no pair in this file"),
        ("x.tsv", HEADER, "no pair in this file"),
        ("x.tsv", "index\tsentence1\tsentence2\n0\ta\tb\n", r"x\.tsv:1: no label; .* dev\.tsv"),
        ("x.tsv", "sentence1\tlabel\na\tentailment\n", r"x\.tsv:1: the header has no column sentence2 or hypothesis"),
        ("x.tsv", HEADER + "0\ta\tb\n", r"x\.tsv:2: 3 columns; expected 4"),
        ("x.tsv", HEADER + "0\ta\tb\tentailment\n\n1\tc\td\tnot_entailment\n", r"x\.tsv:3: 1 column; expected 4"),
        ("x.tsv", HEADER + "0\ta\tb\tneutral\n", r"x\.tsv:2: the label is 'neutral'; expected \"entailment\" or"),
        ("x.tsv", HEADER + "0\ta\t \tentailment\n", r"x\.tsv:2: the second sentence is blank"),
        ("x.tsv", HEADER + "0\ta\tb\tentailment\n", r'its one pair is labelled "entailment"'),
        ("x.tsv", HEADER + "0\ta\tb\tnot_entailment\n" * 2, r'all 2 pairs are labelled "not_entailment"'),
        ("x.jsonl", '{"premise": "a", "hypothesis": "b"}\n', r"x\.jsonl:1: no label; .* val\.jsonl"),
        ("x.jsonl", '{"premise": "a", "label": "entailment"}\n', r"x\.jsonl:1: no sentence2 or hypothesis"),
        ("x.jsonl", '{"premise": 5, "hypothesis": "b", "label": "entailment"}\n', "the first sentence is not a text"),
        ("x.jsonl", '{"premise": "a", "hypothesis": "b", "label": 0}\n', "the label is 0"),
        ("x.jsonl", '{"premise": "a", "premise": "b"}\n', r'x\.jsonl:1: .*one object has the key "premise" twice'),
        ("x.jsonl", "[1]\n", r"x\.jsonl:1: not a JSON object"),
        ("x.jsonl", '{"premise": "a",\n', r"x\.jsonl:1: not a JSON object on one line"),
        ("x.csv", "a,b\n", "unknown type of file"),
    ],
)
def test_a_fault_in_a_file_is_told(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(EvaluationError, match=message):
        read_rte(tmp_path / name)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match=r"dev\.tsv: cannot be read: No such file"):
        read_rte(tmp_path / "dev.tsv")


# --- thresholds


@pytest.mark.parametrize(
    ("cosines", "entailed", "expected"),
    [
        ([0.2, 0.4, 0.6, 0.8], [0, 0, 1, 1], 0.5),
        ([0.2, 0.4, 0.6, 0.8], [0, 1, 0, 1], 0.3),  # as good as .7; the lower
        ([0.2, 0.4], [1, 1], 0.2),  # always entailment
        ([0.5, 0.5, 0.5], [1, 0, 1], 0.5),  # cosines that tie stand on one side
    ],
)
def test_the_best_threshold_by_hand(cosines: list[float], entailed: list[int], expected: float) -> None:
    assert best_threshold(np.array(cosines), np.array(entailed, bool)) == pytest.approx(expected, rel=1e-15)


def test_two_neighbouring_numbers_are_told_apart() -> None:
    low, high = 0.4, float(np.nextafter(0.4, 1))
    assert best_threshold(np.array([low, high]), np.array([False, True])) == high
    assert best_threshold(np.array([low]), np.array([False])) == high


def test_a_cosine_at_the_threshold_is_entailment_and_accuracy_is_from_0_to_1() -> None:
    cosines = np.array([0.4, 0.5, 0.6])
    assert _Answers.at(0.5, cosines, np.array([False, True, True]), "").right.tolist() == [1, 1, 1]
    found = _Answers.at(0.5, cosines, np.array([True, False, True]), "here")
    assert found.to_dict(3 * np.eye(3)) == {  # three resamples, each of one pair drawn three times
        "threshold": 0.5, "accuracy": pytest.approx(1 / 3), "low": 0, "high": pytest.approx(0.95), "chosen_on": "here",
    }  # fmt: skip


@given(st.lists(st.tuples(st.integers(-4, 4), st.booleans()), min_size=1, max_size=20))
def test_no_threshold_answers_more_pairs_rightly_than_the_best(pairs: list[tuple[int, bool]]) -> None:
    cosines, entailed = np.array([value / 4 for value, _ in pairs]), np.array([truth for _, truth in pairs])

    def right(threshold: float) -> int:
        return int(((cosines >= threshold) == entailed).sum())

    best = best_threshold(cosines, entailed)
    tried = [number / 8 for number in range(-9, 10)]
    assert right(best) == max(right(threshold) for threshold in tried)
    below = [threshold for threshold in tried if (cosines >= threshold).sum() > (cosines >= best).sum()]
    assert all(right(threshold) < right(best) for threshold in below)  # the lowest of those that answer as well


# --- the measurement


@pytest.fixture
def subject(tiny_config: BuildConfig) -> Target:
    return Target.of_recipe(tiny_config)


def pairs_of(rows: Sequence[Row], name: str = "dev.tsv") -> EntailmentPairs:
    first, second = tuple(row[0] for row in rows), tuple(row[1] for row in rows)
    return EntailmentPairs(Path(name), f"hash of {name}", first, second, np.array([row[2] for row in rows]))


def cosine_oracle(config: BuildConfig, rows: Sequence[Row], others: Sequence[Row], strength: str | float) -> Any:
    """Directly from the definition: embed, whiten on the sentences of both files, normalise, multiply."""
    encoder = load_encoder(config.encoder)
    a, b, c, d = (
        encoder.encode([(first, second)[side] for first, second, _ in part], "document").astype(float)
        for part in (rows, others)
        for side in (0, 1)
    )
    if strength != "none":
        everything = np.concatenate([part for part in (a, c, b, d) if len(part)])
        projection = whitening_projection(everything, float(strength), 0)
        a, b = ((side - everything.mean(axis=0)) @ projection for side in (a, b))
    return (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


def test_accuracies_are_those_of_the_definition(tiny_config: BuildConfig, subject: Target) -> None:
    rows, others = made_up(90), made_up(60, seed=1)
    settings = subject.settings(rte_sweep(Sweep()))
    assert [setting.whitening.strength for setting in settings] == ["none", 1.0]
    plan = RteOptions(settings, thresholds=(0.0, 0.4))
    result = evaluate_rte(subject, (pairs_of(rows), pairs_of(others, "train.tsv")), plan)
    truth, other_truth = (np.array([row[2] for row in part]) for part in (rows, others))
    strengths: list[str | float] = ["none", 1.0]
    for row, strength in zip(result["results"], strengths, strict=True):
        cosines = cosine_oracle(tiny_config, rows, others, strength)
        threshold = best_threshold(cosine_oracle(tiny_config, others, rows, strength), other_truth)
        assert row["train"]["threshold"] == pytest.approx(threshold, abs=1e-6)
        assert row["train"]["accuracy"] == pytest.approx(np.mean((cosines >= threshold) == truth))
        best = best_threshold(cosines, truth)
        assert row["best"]["threshold"] == pytest.approx(best, abs=1e-6)
        assert row["best"]["accuracy"] == pytest.approx(np.mean((cosines >= best) == truth))
        assert [entry["accuracy"] for entry in row["thresholds"]] == pytest.approx(
            [np.mean((cosines >= at) == truth) for at in (0.0, 0.4)]
        )
        assert row["majority"] == pytest.approx(60 / 90)
        assert row["best"]["accuracy"] >= max(row["majority"], row["train"]["accuracy"])
        for found in (row["best"], row["train"]):
            assert found["low"] < found["accuracy"] < found["high"]
        assert row["best"]["chosen_on"] == "the same pairs (optimistic)"
        assert row["train"]["chosen_on"] == "train.tsv"
    (compared,) = result["comparisons"]
    raw, whitened = (row["train"]["accuracy"] for row in result["results"])
    assert compared["difference"] == pytest.approx(whitened - raw)
    assert compared["low"] <= compared["difference"] <= compared["high"]


def test_every_distinct_sentence_is_encoded_once_for_all_settings(
    subject: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed: list[int] = []
    states = TransformerEncoder.states

    def counting(self: TransformerEncoder, texts: Sequence[str], *rest: Any) -> Any:
        passed.append(len(texts))
        return states(self, texts, *rest)

    monkeypatch.setattr(TransformerEncoder, "states", counting)
    rows, others = made_up(30), made_up(30, seed=1)
    sweep = Sweep(poolings=("mean", "cls"), layers=((1,), (1, -1)), strengths=("none", 0.0, 1.0))
    result = evaluate_rte(subject, (pairs_of(rows), pairs_of(others)), RteOptions(subject.settings(sweep)))
    distinct = {text for row in rows + others for text in row[:2]}
    assert passed == [len(distinct)]
    assert len(result["results"]) == 12


def test_the_result_says_how_it_was_made_and_is_the_same_again(subject: Target) -> None:
    data = pairs_of(made_up(30)), None
    plan = RteOptions(subject.settings(Sweep(strengths=("none", 1.0))))
    first, second = (evaluate_rte(subject, data, plan) for _ in range(2))
    assert first["results"] == second["results"]
    provenance = first["provenance"]
    assert (provenance["data"], provenance["fit"], provenance["train"]) == (
        {"dev.tsv": "hash of dev.tsv"}, {"name": "task"}, None,
    )  # fmt: skip
    assert {row["fit"] for row in first["results"]} == {"task"}
    assert [row["transform"] is None for row in first["results"]] == [True, False]
    assert any("are optimistic: they were chosen on the measured pairs" in note for note in first["notes"])
    json.dumps(first.to_dict(), allow_nan=False)


def test_a_threshold_that_no_cosine_has_is_refused(subject: Target) -> None:
    with pytest.raises(ConfigError, match="--threshold is 2; expected a cosine"):
        RteOptions(subject.settings(Sweep()), thresholds=(0.5, 2))


def test_embeddings_that_are_not_finite_are_refused(subject: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    states = TransformerEncoder.states

    def broken(self: TransformerEncoder, texts: Sequence[str], *rest: Any) -> Any:
        found = states(self, texts, *rest)
        for rows in found.values():
            rows[0] = np.nan
        return found

    monkeypatch.setattr(TransformerEncoder, "states", broken)
    strengths: list[Strength] = ["none", 1.0]
    for strength in strengths:
        plan = RteOptions(subject.settings(Sweep(strengths=(strength,))))
        with pytest.raises(EvaluationError, match=r"1 (of .* )?embeddings contain NaN or infinity"):
            evaluate_rte(subject, (pairs_of(made_up(9)), None), plan)


# --- the command


def tiny(tiny_model: Callable[[str], Path]) -> list[str]:
    return ["--set", f"encoder.model={tiny_model('bert')}", "--set", "encoder.max_length=32"]


def test_the_command_prints_tables_and_writes_the_result(tmp_path: Path, tiny_model: Callable[[str], Path]) -> None:
    dev, train = write_tsv(tmp_path / "dev.tsv", made_up(30)), write_jsonl(tmp_path / "t.jsonl", made_up(60, seed=1))
    out = tmp_path / "r.json"
    done = isotrope(
        "evaluate", "rte", dev, "--threshold-from", train, "--threshold", "0.5", "-o", out, *tiny(tiny_model)
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    lines = done.stdout.splitlines()
    assert lines[0].startswith("RTE accuracy x 100 [95 %], 30 pairs, fit task")
    assert (
        " ".join(lines[1].split())
        == "setting threshold chosen on other pairs threshold chosen on these pairs (optimistic)"
    )
    raw, whitened = result["results"]
    for line, row in zip(lines[2:4], (raw, whitened), strict=True):
        assert line.startswith(row["setting"])
        assert line.removeprefix(row["setting"]).split()[0] == f"{100 * row['train']['accuracy']:.2f}"
    assert lines[4] == "always the more common label: 66.67"
    assert " ".join(lines[-2].split()).startswith("mean -1 strength 1 role mean -1 raw ")
    assert result["provenance"]["train"] == str(train)
    assert result["provenance"]["recipe"]["encoder"]["max_length"] == 32
    assert "flatters" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dev.tsv", "--fit", "index"], "--fit index needs an index"),
        (["dev.tsv", "--fit", "own"], "is unknown; expected task"),
        (["dev.tsv", "--threshold", "7"], "expected a cosine"),
        (["dev.tsv", "--threshold-from", "missing.tsv"], "missing.tsv: cannot be read"),
        (["dev.tsv", "--layers", "9"], "encoder.layers has 9"),
        (["dev.tsv", "--dim", "33"], "whitening.dim is 33, but embeddings have 32 dimensions"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], message: str, tmp_path: Path, tiny_model: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    write_tsv(tmp_path / "dev.tsv", made_up(9))
    done = isotrope("evaluate", "rte", *arguments, *tiny(tiny_model), "--quiet")
    assert done.returncode == 1
    assert message in done.stderr
    assert done.stderr.count("error:") == 1


def test_a_threshold_is_not_chosen_on_the_pairs_that_are_measured(subject: Target) -> None:
    """The same pairs under another name or in another order are rejected; a few of them are counted."""
    rows, plan = made_up(20), RteOptions(subject.settings(rte_sweep(Sweep())))
    for same in (rows, rows[::-1], rows + made_up(20, seed=1)):
        with pytest.raises(
            ConfigError, match=r"--threshold-from copy\.tsv contains every pair of dev\.tsv.* --threshold-from out"
        ):
            evaluate_rte(subject, (pairs_of(rows), pairs_of(same, "copy.tsv")), plan)
    some = pairs_of(rows[:1] + made_up(20, seed=1), "train.tsv")
    notes = evaluate_rte(subject, (pairs_of(rows), some), plan)["notes"]
    assert "the threshold was also chosen on 1 measured pair" in notes
