"""Combinations of layers on STS, from single layers: the figures equal those of `evaluate sts` for each."""

import json
import math
import sys
from collections.abc import Callable, Sequence
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexer.encoders.load import load_encoder
from indexer.encoders.transformer import TransformerEncoder
from indexer.errors import ConfigError, EvaluationError, MachineError
from indexer.recipe.config import BuildConfig, PoolingMode
from search.evaluation.plots.drawing import check_plot
from search.evaluation.sts.data import Task, read_tasks
from search.evaluation.sts.sts import StsOptions, evaluate_sts
from search.evaluation.sweep import Sweep
from search.evaluation.target import Target
from search.papers import layers as layers_module
from search.papers.layers import AveragedLayers, LayersOptions, evaluate_layers
from search.papers.layers_plot import plot_layers
from search.papers.tables import layer_grid
from tests.search.cli.test_cli import isotrope

WORDS = ("whale", "song", "deep", "sea", "library", "data", "sing", "of", "the", "in")
ALL = [combination for count in (1, 2, 3) for combination in combinations(range(3), count)]  # of a model of 2 blocks


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return two tasks, one with two subsets of unequal size; scores follow the common words of two sentences."""
    folder, random = tmp_path_factory.mktemp("sts"), np.random.default_rng(0)
    for stem, count in (("stsb", 60), ("sts12.MSRpar", 50), ("sts12.OnWN", 30)):
        lines = ["score\tsentence1\tsentence2"]
        for _ in range(count):
            first, second = (list(random.choice(WORDS, 5)) for _ in range(2))
            score = len(set(first) & set(second)) + random.normal()
            lines.append(f"{score:.2f}\t{' '.join(first)}\t{' '.join(second)}")
        (folder / f"{stem}.tsv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def tasks(folder: Path) -> list[Task]:
    return read_tasks(folder)


@pytest.fixture
def subject(tiny_config: BuildConfig) -> Target:
    return Target.of_recipe(tiny_config)


@pytest.fixture
def result(subject: Target, tasks: list[Task]) -> dict[str, Any]:
    return evaluate_layers(subject, tasks, LayersOptions()).to_dict()


def test_averaged_pooled_layers_are_what_the_encoder_pools_from_averaged_layers(tiny_config: BuildConfig) -> None:
    texts = ["a whale sings in the deep sea", "a library of data", "deep"]
    encoder = load_encoder(BuildConfig(encoder=tiny_config.encoder).with_overrides(["encoder.layers=[0,1,-1]"]).encoder)
    poolings: list[PoolingMode] = ["mean", "cls"]
    states = encoder.states(texts, list(product([(0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)], poolings)))
    averaged = AveragedLayers({key: rows for key, rows in states.items() if len(key[0]) == 1})
    for key, expected in states.items():
        assert averaged[key].dtype == np.float32
        np.testing.assert_allclose(averaged[key], expected, atol=1e-6)
    assert sorted(averaged) == sorted(key for key in states if len(key[0]) == 1)


@pytest.mark.parametrize("strength", ["none", 1.0])
@pytest.mark.parametrize("protocol", ["mean", "wmean", "all"])
def test_every_figure_is_the_one_of_evaluate_sts(
    strength: Any, protocol: Any, subject: Target, tasks: list[Task]
) -> None:
    found = evaluate_layers(subject, tasks, LayersOptions(strength=strength, protocol=protocol))
    settings = subject.settings(Sweep(layers=tuple(ALL), strengths=(strength,)))
    expected = evaluate_sts(subject, tasks, StsOptions(settings, (protocol,), "task"))["results"]
    assert [tuple(row["layers"]) for row in found["results"]] == ALL
    for row in found["results"]:
        same = {other["task"]: other for other in expected if other["setting"] == row["setting"]}
        assert row["tasks"] == {name: pytest.approx(same[name]["spearman"], abs=0.0005) for name in ("STSB", "STS12")}
        for name in ("spearman", "low", "high"):
            assert row[name] == pytest.approx(same["average"][name], abs=0.0005)
        shared = ("pooling", "strength", "dim", "centre", "protocol", "fit", "task", "pairs", "encoder")
        assert {name: row[name] for name in shared} == {name: same["average"][name] for name in shared}


def test_only_single_layers_are_asked_of_the_encoder_and_each_sentence_once(
    subject: Target, tasks: list[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, list[tuple[int, ...]]]] = []
    states = TransformerEncoder.states

    def counting(self: TransformerEncoder, texts: Sequence[str], keys: Any, *rest: Any) -> Any:
        asked.append((len(texts), [layers for layers, _ in keys]))
        return states(self, texts, keys, *rest)

    monkeypatch.setattr(TransformerEncoder, "states", counting)
    evaluate_layers(subject, tasks, LayersOptions(strength=0.5))
    subsets = [subset for task in tasks for subset in task.subsets]
    distinct = {text for subset in subsets for text in (*subset.first, *subset.second)}
    assert asked == [(len(distinct), [(0,), (1,), (2,)])]


def test_the_best_of_each_size_is_the_largest_and_is_compared_with_the_papers(result: dict[str, Any]) -> None:
    rows = result["results"]
    for row, size in zip(result["best"], (1, 2, 3), strict=True):
        assert row["size"] == len(row["layers"]) == size
        assert row["spearman"] == max(other["spearman"] for other in rows if len(other["layers"]) == size)
    paper = result["paper"]
    assert paper["layers"] == [1, 2]
    others = [row for row in result["best"] if row["layers"] != [1, 2]]
    assert [row["setting"] for row in result["comparisons"]] == [row["setting"] for row in others]
    for row, other in zip(result["comparisons"], others, strict=True):
        assert row["against"] == paper["setting"]
        assert row["difference"] == pytest.approx(other["spearman"] - paper["spearman"])
        assert row["low"] <= row["difference"] <= row["high"]


def test_cls_leaves_out_the_layer_where_it_is_constant_and_says_so(subject: Target, tasks: list[Task]) -> None:
    result = evaluate_layers(subject, tasks, LayersOptions(pooling="cls"))
    assert result["layers"] == [1, 2]
    assert [row["layers"] for row in result["results"]] == [[1], [2], [1, 2]]
    assert any(note.startswith("layer 0 is left out") for note in result["notes"])


def test_max_pooling_is_refused(tiny_config: BuildConfig, tasks: list[Task]) -> None:
    subject = Target.of_recipe(tiny_config.with_overrides(["encoder.pooling=max"]))
    with pytest.raises(ConfigError, match="pooling max is not linear"):
        evaluate_layers(subject, tasks, LayersOptions())


@pytest.mark.parametrize("up_to", [-1, 1, 4])
def test_more_layers_than_there_are_or_no_pair_is_refused(up_to: int, subject: Target, tasks: list[Task]) -> None:
    with pytest.raises(ConfigError, match=f"up_to is {up_to}; expected 2 to 3"):
        evaluate_layers(subject, tasks, LayersOptions(up_to=up_to))


def test_large_models_are_tried_in_small_combinations_and_that_is_said(
    subject: Target, tasks: list[Task], result: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "all 7 combinations of the 3 layers were tried" in result["notes"]
    monkeypatch.setattr(layers_module, "_FEW_BLOCKS", 1)
    monkeypatch.setattr(layers_module, "_UP_TO", 2)
    fewer = evaluate_layers(subject, tasks, LayersOptions())
    assert [tuple(row["layers"]) for row in fewer["results"]] == ALL[:6]
    assert "6 combinations of up to 2 of the 3 layers were tried; up_to=3 tries all 7" in fewer["notes"]


def test_batches_change_nothing(
    subject: Target, tasks: list[Task], result: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers_module, "_BATCH", 2)
    assert evaluate_layers(subject, tasks, LayersOptions())["results"] == result["results"]


def test_the_result_says_how_it_was_made(result: dict[str, Any], tasks: list[Task]) -> None:
    provenance = result["provenance"]
    assert provenance["data"] == {name: sha256 for task in tasks for name, sha256 in task.files.items()}
    assert (provenance["protocol"], provenance["fit"]) == (["mean"], {"name": "task"})
    assert provenance["recipe"]["encoder"]["max_length"] == 32
    assert any("they were chosen on the measured pairs" in note for note in result["notes"])
    json.dumps(result, allow_nan=False)


def test_rows_name_the_transforms_of_the_tasks(subject: Target, tasks: list[Task], result: dict[str, Any]) -> None:
    assert {row["transform"] for row in result["results"]} == {None}
    rows = evaluate_layers(subject, tasks, LayersOptions(strength=1.0, up_to=2))["results"]
    plan = StsOptions(subject.settings(Sweep(layers=tuple(tuple(row["layers"]) for row in rows), strengths=(1.0,))))
    expected: dict[str, dict[str, str]] = {}
    for row in evaluate_sts(subject, tasks, plan)["results"]:
        if row["task"] != "average":
            expected.setdefault(row["setting"], {})[row["task"]] = row["transform"]
    single = [row for row in rows if len(row["layers"]) == 1]
    assert {row["setting"]: row["transform"] for row in single} == {
        row["setting"]: expected[row["setting"]] for row in single
    }
    assert all(set(row["transform"]) == {task.name for task in tasks} for row in rows)


def test_a_whitening_that_fits_noise_is_said(subject: Target, tasks: list[Task]) -> None:
    notes = evaluate_layers(subject, tasks, LayersOptions(strength=1.0, up_to=2))["notes"]
    assert any(note.startswith("STSB: fitted on 120 texts for 32 dimensions") for note in notes)


def test_no_task_is_nothing_to_measure(subject: Target) -> None:
    with pytest.raises(EvaluationError, match="nothing to measure"):
        evaluate_layers(subject, [], LayersOptions())


# --- the picture


def test_the_grid_is_symmetric_with_single_layers_on_the_diagonal(result: dict[str, Any]) -> None:
    grid, rows = layer_grid(result), {tuple(row["layers"]): row["spearman"] for row in result["results"]}
    for first in range(3):
        for second in range(first, 3):
            expected = rows[(first,) if first == second else (first, second)]
            assert grid[first, second] == grid[second, first] == expected


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("a.svg", b"<?xml"),
        pytest.param("a.png", b"\x89PNG", marks=pytest.mark.check),
        pytest.param("new/a.PDF", b"%PDF", marks=pytest.mark.check),
    ],
)
def test_a_picture_is_drawn_without_pyplot(
    name: str, start: bytes, result: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # importing it would fail
    plot_layers(result, tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)


@pytest.mark.check
def test_the_same_result_gives_the_same_picture_and_another_another(result: dict[str, Any], tmp_path: Path) -> None:
    other = result | {"paper": result["results"][0]}
    pictures = []
    for number, drawn in enumerate((result, result, other)):
        plot_layers(drawn, tmp_path / f"{number}.svg")
        pictures.append((tmp_path / f"{number}.svg").read_bytes())
    assert pictures[0] == pictures[1] != pictures[2]


def test_a_picture_can_lack_intervals_and_pairs(result: dict[str, Any], tmp_path: Path) -> None:
    bare = result["results"][1] | {"low": None, "high": None}
    small = result | {"results": [bare], "best": [{"size": 1} | bare], "paper": bare, "layers": [1]}
    plot_layers(small, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_another_format_is_refused_and_a_missing_package_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"expected a file name that ends in \.png, \.svg, \.pdf"):
        check_plot(Path("a.jpg"))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MachineError, match=r"pip install '.*isotrope\[plots\]"):
        check_plot(Path("a.png"))


# --- the command


def test_the_command_prints_the_grid_and_the_best(
    folder: Path, tmp_path: Path, tiny_model: Callable[[str], Path]
) -> None:
    model = ["--set", f"encoder.model={tiny_model('bert')}", "--set", "encoder.max_length=32"]
    done = isotrope(
        "evaluate", "layers", folder, "--strength", "1", "-o", tmp_path / "r.json", "--plot", tmp_path / "p.png", *model
    )
    assert done.returncode == 0, done.stderr
    result, lines = json.loads((tmp_path / "r.json").read_text()), done.stdout.splitlines()
    assert lines[0] == "Spearman x 100 of two layers averaged (mean, strength 1, fit task, protocol mean)"
    assert lines[1].split() == ["layer", "0", "1", "2"]
    grid = layer_grid(result)
    for layer, line in enumerate(lines[2:5]):
        assert line.split() == [str(layer), *(f"{100 * value:.2f}" for value in grid[layer, : layer + 1])]
    best = result["best"][-1]
    assert lines[-3].split()[:2] == ["0+1+2", f"{100 * best['spearman']:.2f}"]
    assert "note: all 7 combinations" in done.stderr
    assert (tmp_path / "p.png").is_file()
    assert not any(math.isnan(row["spearman"]) for row in result["results"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--plot", "a.gif"], 'error: --plot "a.gif": unknown format; expected a file name that ends in'),
        (["--strength", "much"], 'error: --strength "much" is not a number'),
        (["--strength", "2"], "error: whitening.strength is 2.0"),
        (["--up-to", "9"], "error: --up-to is 9; expected 2 to 3"),
        (["--set", "encoder.pooling=max"], "error: pooling max is not linear"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], message: str, folder: Path, tiny_model: Callable[[str], Path]
) -> None:
    model = ["--set", f"encoder.model={tiny_model('bert')}", "--set", "encoder.max_length=32"]
    done = isotrope("evaluate", "layers", folder, *model, *arguments)
    assert done.returncode == 1
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1
