"""WhiteningBERT's Table 1 with our own figures below the published figures."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file

from indexer import BuildConfig
from indexer.recipe.config import EncoderConfig
from search.evaluation.sts.data import TASKS, read_tasks
from search.evaluation.sts.sts import StsOptions, evaluate_sts
from search.evaluation.target import Target
from search.papers.whiteningbert import SETTINGS, published_tables
from tests.search.cli.test_cli import isotrope
from tests.sts_tasks import STSB, write, write_tasks


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The two tasks as TSV files."""
    return write_tasks(tmp_path / "sts")


@pytest.fixture
def recipe(tiny_model: Callable[[str], Path]) -> list[str]:
    return ["--set", f"encoder.model={tiny_model('bert')}", "--set", "encoder.max_length=32"]


@pytest.fixture
def named_as_published(tiny_model: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny model of twelve blocks in a folder called bert-base-uncased; no hub, no cache, an empty current folder."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    folder = Path(shutil.copytree(tiny_model("bert"), tmp_path / "bert-base-uncased"))
    config = transformers.BertConfig.from_pretrained(folder, num_hidden_layers=12, initializer_range=0.2)
    torch.manual_seed(0)
    weights = transformers.BertModel(config).state_dict()
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "model.safetensors")
    config.save_pretrained(folder)
    return folder


def test_the_published_figures_are_whole() -> None:
    tables = published_tables()
    assert "WhiteningBERT: An Easy Unsupervised Sentence Embedding Approach" in tables["source"]
    assert tables["columns"] == [*TASKS, "Avg"]
    assert len(tables["encoders"]) == 4
    for entry in tables["encoders"]:
        assert [(row["pooling"], "+" in row["layers"], row["whitening"]) for row in entry["rows"]] == [
            ("CLS" if setting.pooling == "cls" else "AVG", len(setting.layers) > 1, not setting.raw)
            for setting in SETTINGS
        ]
        for row in entry["rows"]:
            *tasks, average = row["figures"]
            assert average == pytest.approx(np.mean(tasks), abs=0.011)
    for row in tables["baselines"]:
        *tasks, average = row["figures"]
        assert average == pytest.approx(np.mean([figure for figure in tasks if figure is not None]), abs=0.011)


def test_the_published_figures_are_those_of_the_paper(shared: Path) -> None:
    paper = json.loads((shared / "reference/paper_tables.json").read_text())
    tables = published_tables()
    found = [
        {"encoder": entry["model"], **{key: row[key] for key in ("pooling", "layers", "whitening")}}
        | dict(zip(tables["columns"], row["figures"], strict=True))
        for entry in tables["encoders"]
        for row in entry["rows"]
    ]
    assert found == paper["table1"]
    baselines = [
        {"method": row["method"]}
        | {c: f for c, f in zip(tables["columns"], row["figures"], strict=True) if f is not None}
        for row in tables["baselines"]
    ]
    assert baselines == paper["table1_baselines"]


def test_the_table_has_our_figures_below_the_published_ones(folder: Path, named_as_published: Path) -> None:
    model = ["--set", f"encoder.model={named_as_published}", "--set", "encoder.max_length=64"]
    done = isotrope("evaluate", "whiteningbert", folder, *model, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    rows = result["table"]["rows"]
    assert [row["status"] for row in rows] == ["measured"] * 5 + ["not run: weights not found"] * 15
    for row in rows[:5]:
        assert row["model"] == "bert-base-uncased"
        assert row["published"]["STSB"] + row["difference"]["STSB"] == pytest.approx(row["ours"]["STSB"])
        assert row["ours"]["SICK"] is row["difference"]["SICK"] is None
        assert row["ours"]["Avg"] is row["difference"]["Avg"] is None  # over two tasks, not over seven
    for row in rows[5:]:
        assert row["ours"] is row["difference"] is None
        assert row["published"]["Avg"] > 0
    assert {(row["protocol"], row["fit"]) for row in result["results"]} == {("mean", "task")}
    assert any("not run" in note and "roberta-base" in note and "encoder.model=" in note for note in result["notes"])
    assert any("our average is left out" in note for note in result["notes"])


def test_our_rows_are_those_of_an_ordinary_run(folder: Path, named_as_published: Path) -> None:
    encoder = EncoderConfig(model=str(named_as_published), max_length=64, precision="float32")
    subject = Target.of_recipe(BuildConfig(encoder=encoder))
    ordinary = evaluate_sts(subject, read_tasks(folder), StsOptions(SETTINGS, fit="task"))
    model = ["--set", f"encoder.model={named_as_published}", "--set", "encoder.max_length=64"]
    done = isotrope("evaluate", "whiteningbert", folder, *model, "--json")
    result = json.loads(done.stdout)
    assert [row["ours"]["STS12"] for row in result["table"]["rows"][:5]] == [
        row["spearman"] for row in ordinary["results"] if row["task"] == "STS12"
    ]
    assert [row["spearman"] for row in result["results"]] == [row["spearman"] for row in ordinary["results"]]


def test_a_model_without_published_rows_comes_last(
    folder: Path, named_as_published: Path, recipe: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(named_as_published.parent)  # where the folder is found by its name
    done = isotrope("evaluate", "whiteningbert", folder, *recipe, "--json")
    rows = json.loads(done.stdout)["table"]["rows"]
    assert [row["status"] for row in rows] == [
        *["measured"] * 5, *["not run: weights not found"] * 15, *["measured"] * 5,
    ]  # fmt: skip
    assert rows[0]["model"] == "bert-base-uncased"
    assert [row["layers"] for row in rows[20:]] == ["L2", "L2", "L1", "L1+L2", "L1+L2"]
    assert rows[24]["published"] is None
    assert rows[24]["whitening"] is True


@pytest.mark.parametrize("relative", [False, True])
def test_a_model_that_only_goes_by_a_published_name_is_another_one(
    relative: bool,
    folder: Path,
    named_as_published: Path,
    tiny_model: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its two blocks are not printed as our figures for L12."""
    shutil.rmtree(named_as_published)
    shutil.copytree(tiny_model("bert"), named_as_published)
    if relative:
        monkeypatch.chdir(named_as_published.parent)
    name = named_as_published.name if relative else named_as_published
    model = ["--set", f"encoder.model={name}", "--set", "encoder.max_length=64"]
    result = json.loads(isotrope("evaluate", "whiteningbert", folder, *model, "--json").stdout)
    rows = result["table"]["rows"]
    assert [row["status"] for row in rows] == ["not run: weights not found"] * 20 + ["measured"] * 5
    assert [row["layers"] for row in rows[20:]] == ["L2", "L2", "L1", "L1+L2", "L1+L2"]
    assert any("has 2 blocks; the published bert-base-uncased has 12" in note for note in result["notes"])


def test_the_table_for_people(folder: Path, named_as_published: Path) -> None:
    model = ["--set", f"encoder.model={named_as_published}", "--set", "encoder.max_length=64"]
    lines = isotrope("evaluate", "whiteningbert", folder, *model).stdout.splitlines()
    assert "protocol mean, fit task" in lines[0]
    assert lines[1].split() == ["method", *TASKS, "Avg"]
    words = [" ".join(line.split()) for line in lines]
    assert "Avg. GloVe 58.02 53.76 55.14 70.66 59.73 68.25 63.66 61.32" in words
    place = words.index("AVG L1+L12 whitened, published 68.68 60.28 61.94 68.47 67.31 74.82 72.82 67.76")
    assert words[place + 1].startswith("AVG L1+L12 whitened, ours ")
    assert words[place + 2].startswith("difference ")
    assert words.count("not run: weights not found") == 15


def test_a_recipe_is_measured_in_float32_whatever_it_names(folder: Path, named_as_published: Path) -> None:
    model = ["--set", f"encoder.model={named_as_published}", "--set", "encoder.max_length=64"]
    done = isotrope("evaluate", "whiteningbert", folder, *model, "--json")
    encoders = json.loads(done.stdout)["provenance"]["encoders"]
    assert {identity["precision"] for identity in encoders.values()} == {"float32"}


def test_tasks_that_the_paper_does_not_have_are_left_out_and_said(folder: Path, named_as_published: Path) -> None:
    write(folder / "mine.tsv", STSB.subsets[0])
    model = ["--set", f"encoder.model={named_as_published}", "--set", "encoder.max_length=64"]
    done = isotrope("evaluate", "whiteningbert", folder, *model, "--json")
    assert "left out: mine" in done.stderr.lower()
    (folder / "stsb.tsv").unlink()
    for path in folder.glob("sts12*"):
        path.unlink()
    done = isotrope("evaluate", "whiteningbert", folder, *model)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert "the paper's table has none of these tasks" in done.stderr
