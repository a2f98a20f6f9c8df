"""Tuning on a corpus, without labels or by judgements: scores, size limits, and the written recipe."""

import dataclasses
import json
import shlex
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexer.corpus.document import Document
from indexer.encoders.load import load_encoder
from indexer.errors import ConfigError, CorpusError, CorruptIndexError, EvaluationError
from indexer.pipeline.build import build_index
from indexer.recipe.config import BuildConfig, EncoderConfig, WhiteningConfig, without_auto
from indexer.recipe.index_config import StoreConfig
from indexer.store.manifest import load_manifest
from search.evaluation.result import Result
from search.evaluation.sweep import Setting, Sweep
from search.evaluation.tables import tables_of
from search.evaluation.target import Target
from search.evaluation.tune.tune import (
    DEFAULT_CENTRES,
    TuneOptions,
    _options,
    full_sweep,
    run_tune,
    tuned_recipe,
    write_recipe,
)
from search.evaluation.tune.unlabelled import DrawnPair, draw_pairs
from tests.oracles import whitening_projection
from tests.search.cli.test_cli import isotrope
from tests.search.evaluation.tune.tuned_corpora import COLUMNS, corpus, judged, written


def test_raw_and_strength_0_are_always_among_what_is_tried() -> None:
    own = Setting("mean", (-1,), WhiteningConfig())
    settings = full_sweep(Sweep(strengths=(0.75,), centres=("common",), shrinkages=(0.0,))).settings(own)
    assert [one.whitening.strength for one in settings] == ["none", 0.0, 0.75]
    assert {one.whitening.centre for one in full_sweep(Sweep()).settings(own) if not one.raw} == set(DEFAULT_CENTRES)


@pytest.fixture
def config(tiny_model: Callable[[str], Path]) -> BuildConfig:
    return BuildConfig(
        encoder=EncoderConfig(model=str(tiny_model("bert")), max_length=64), store=StoreConfig(part_documents=50)
    )


SMALL = Sweep(strengths=(0.5,), shrinkages=(0.0,))


def test_a_corpus_is_tuned_with_one_encode_of_the_pairs_and_the_second_run_needs_none(
    config: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from indexer.encoders.transformer import TransformerEncoder

    encoded, states = [], TransformerEncoder.states

    def counting(self: TransformerEncoder, texts: Any, *rest: Any) -> Any:
        encoded.append(len(texts))
        return states(self, texts, *rest)

    monkeypatch.setattr(TransformerEncoder, "states", counting)
    source = written(corpus(150), tmp_path / "docs.jsonl")
    task, subject = TuneOptions((str(source),), sample=60), Target.of_recipe(config)
    sweep = Sweep(layers=((-1,), (1, -1)), strengths=(0.5,), shrinkages=(0.0,))
    first = run_tune(subject, task, sweep, tmp_path / "cache")
    assert sum(encoded) == 120
    second = run_tune(subject, task, sweep, tmp_path / "cache")
    assert sum(encoded) == 120
    assert first["results"] == second["results"]
    assert {tuple(row["layers"]) for row in first["results"]} == {(-1,), (1, -1)}


def slow_scores(config: BuildConfig, pairs: list[DrawnPair], fitted_on: list[str], role: Any) -> dict[Any, float]:
    """Mean reciprocal rank of every setting of `SMALL` and its controls, by the definitions, one text at a time."""
    encoder = load_encoder(config.encoder)
    asked = np.stack([encoder.encode([pair.query], role)[0] for pair in pairs]).astype(np.float64)
    rests = np.stack([encoder.encode([pair.document], "document")[0] for pair in pairs]).astype(np.float64)
    fit = np.stack([encoder.encode([text], "document")[0] for text in fitted_on]).astype(np.float64)
    found = {}
    for strength in ("none", 0.0, 0.5):
        for centre in ("none",) if strength == "none" else DEFAULT_CENTRES:
            project: Any = np.eye(fit.shape[1])
            if strength != "none":
                project = whitening_projection(fit, float(strength), 0)
            mean = np.zeros(fit.shape[1]) if centre == "none" or strength == "none" else fit.mean(axis=0)
            query_mean = asked.mean(axis=0) if centre == "role" and role == "query" else mean
            queries, documents = (asked - query_mean) @ project, (rests - mean) @ project
            queries /= np.linalg.norm(queries, axis=1, keepdims=True)
            documents /= np.linalg.norm(documents, axis=1, keepdims=True)
            cosines = queries @ documents.T
            ranks = [1 + (row > row[own] + 1e-6).sum() for own, row in enumerate(cosines)]
            found[strength, centre] = float(np.mean([1 / rank for rank in ranks]))
    return found


@pytest.mark.parametrize(
    ("objective", "indexed"),
    [
        ("retrieval", True),
        ("sts", False),
        pytest.param("retrieval", False, marks=pytest.mark.check),
        pytest.param("sts", True, marks=pytest.mark.check),
    ],
)
def test_scores_are_those_of_the_definitions(
    objective: Any, indexed: bool, config: BuildConfig, tmp_path: Path
) -> None:
    """An index is fitted on its own embeddings, a corpus on the answers."""
    documents = corpus(130)
    pairs = draw_pairs(documents, COLUMNS, 1500, objective)
    source = written(documents, tmp_path / "docs.jsonl")
    subject = Target.of_recipe(config)
    if indexed:
        build_index(documents, tmp_path / "index", config)
        subject = Target.of_index(tmp_path / "index")
    texts = [f"{one.title} {one.text}" for one in documents] if indexed else [pair.fitted_on for pair in pairs]
    expected = slow_scores(config, pairs, texts, "query" if objective == "retrieval" else "document")
    result = run_tune(subject, TuneOptions((str(source),), objective=objective), SMALL, tmp_path / "cache")
    found = {(row["strength"], row["centre"] or "none"): row["value"] for row in result["results"] if not row["dim"]}
    assert found == pytest.approx(expected, abs=2e-3)
    assert len({round(value, 3) for value in expected.values()}) >= 3
    assert result["provenance"]["data"].keys() == (set() if indexed else {"docs.jsonl"})
    assert ("index" in result["provenance"]) == indexed


def test_the_frontier_gets_better_with_every_byte(config: BuildConfig, tmp_path: Path) -> None:
    source = written(corpus(150), tmp_path / "docs.jsonl")
    found = run_tune(Target.of_recipe(config), TuneOptions((str(source),)), SMALL, tmp_path)["frontier"]
    assert len(found) > 1
    assert [row["bytes"] for row in found] == sorted({row["bytes"] for row in found})
    assert [row["value"] for row in found] == sorted({row["value"] for row in found})


def test_a_budget_of_bytes_is_kept(config: BuildConfig, tmp_path: Path) -> None:
    source = written(corpus(150), tmp_path / "docs.jsonl")
    result = run_tune(Target.of_recipe(config), TuneOptions((str(source),), max_bytes=40), SMALL, tmp_path)
    (taken,) = (row for row in result["results"] if row["taken"])
    fitting = [row for row in result["results"] if row["bytes"] <= 40]
    assert taken["value"] == max(row["value"] for row in fitting)
    assert result["recipe"]["whitening"]["dim"] == taken["dimensions"]
    assert "within 40 bytes" in result["choice"]["reason"]
    raw = result["choice"]["raw"]["value"]
    assert result["choice"]["gain"]["value"] == pytest.approx(taken["value"] - raw)


def test_dimensions_that_are_asked_for_are_chosen_from(config: BuildConfig, tmp_path: Path) -> None:
    source, subject = written(corpus(150), tmp_path / "docs.jsonl"), Target.of_recipe(config)
    sweep = Sweep(strengths=(0.5,), shrinkages=(0.0,), dims=(6, 12))
    result = run_tune(subject, TuneOptions((str(source),)), sweep, tmp_path)
    asked = {row["dimensions"]: row["value"] for row in result["results"] if row["dim"]}
    assert asked.keys() == {6, 12}
    assert result["recipe"]["whitening"]["dim"] == max(asked, key=lambda dim: asked[dim])
    with pytest.raises(ConfigError, match=r"dims is 5000; expected 0 \(all\) to"):
        run_tune(subject, TuneOptions((str(source),)), Sweep(strengths=(0.5,), dims=(5000,)), tmp_path)


def test_pooling_auto_stays_unless_another_is_taken(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    config = BuildConfig(encoder=EncoderConfig(model=str(tiny_model("bert")), max_length=64))
    auto = dataclasses.replace(config, encoder=dataclasses.replace(config.encoder, pooling="auto"))
    subject = Target(auto, Target.of_recipe(config).spec)
    own = tuned_recipe(Setting("mean", (1,), WhiteningConfig()), subject).encoder
    assert (own.pooling, own.query_prompt, own.layers) == ("auto", "auto", (1,))
    other = tuned_recipe(Setting("cls", (-1,), WhiteningConfig()), subject).encoder
    assert (other.pooling, other.query_prompt, other.max_length) == ("cls", "auto", 64)


def test_an_index_is_judged_on_its_own_layers_only(config: BuildConfig, tmp_path: Path) -> None:
    documents = corpus(80)
    build_index(documents, tmp_path / "index", config)
    folder = judged(documents, tmp_path / "beir")
    task, subject = TuneOptions((str(tmp_path / "index"),), beir=folder), Target.of_index(tmp_path / "index")
    with pytest.raises(ConfigError, match="contains only embeddings of layers -1 with mean pooling"):
        run_tune(subject, task, Sweep(layers=((0,),), strengths=(0.5,)), tmp_path / "cache")
    run_tune(subject, task, SMALL, tmp_path / "cache")


def test_judgements_of_another_corpus_are_refused(config: BuildConfig, tmp_path: Path) -> None:
    folder = judged(corpus(80), tmp_path / "beir")
    other = written(corpus(60), tmp_path / "other.jsonl")
    with pytest.raises(ConfigError, match="contains judgements of its own corpus"):
        run_tune(Target.of_recipe(config), TuneOptions((str(other),), beir=folder), SMALL, tmp_path)


def test_a_damaged_index_is_an_error_and_not_another_figure(config: BuildConfig, tmp_path: Path) -> None:
    build_index(corpus(80), tmp_path / "index", config)
    for name in ("moments.npz", "embeddings.npy"):
        path = next((tmp_path / "index/parts").rglob(name))
        whole = path.read_bytes()
        path.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
        with pytest.raises(CorruptIndexError, match=name):
            run_tune(Target.of_index(tmp_path / "index"), TuneOptions(("index",)), SMALL, tmp_path / "cache")
        path.write_bytes(whole)


def test_a_model_that_gives_nan_is_refused(
    config: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from indexer.encoders.transformer import TransformerEncoder

    states = TransformerEncoder.states

    def damaged(self: TransformerEncoder, *rest: Any) -> Any:
        found = states(self, *rest)
        next(iter(found.values()))[3] = np.nan
        return found

    monkeypatch.setattr(TransformerEncoder, "states", damaged)
    source = written(corpus(80), tmp_path / "docs.jsonl")
    with pytest.raises(EvaluationError, match="1 embeddings contain NaN"):
        run_tune(Target.of_recipe(config), TuneOptions((str(source),)), SMALL, tmp_path / "cache")


def test_a_file_of_queries_that_is_gone_is_refused_before_anything_is_encoded(
    config: BuildConfig, tmp_path: Path
) -> None:
    source = written(corpus(80), tmp_path / "docs.jsonl")
    subject = Target.of_recipe(config.with_overrides([f"whitening.query_sample={tmp_path}/gone.txt"]))
    with pytest.raises(ConfigError, match=r"gone\.txt cannot be read"):
        run_tune(subject, TuneOptions((str(source),)), SMALL, tmp_path)


def test_judgements_decide_where_they_are_given(config: BuildConfig, tmp_path: Path) -> None:
    folder = judged(corpus(80), tmp_path / "beir")
    result = run_tune(Target.of_recipe(config), TuneOptions((str(folder),), beir=folder), SMALL, tmp_path / "cache")
    assert result["provenance"]["protocol"]["measure"] == "nDCG@10"
    assert result["provenance"]["protocol"]["questions"] == 20

    from search.evaluation.retrieval.retrieval import RetrievalOptions, evaluate_retrieval

    task = RetrievalOptions(folder, bm25=False)
    sweep = Sweep(strengths=("none", 0.0, 0.5), centres=("role", "common", "none"))
    expected = evaluate_retrieval(Target.of_recipe(config), task, sweep)["results"]
    for row in expected:
        same = [one for one in result["results"] if all(one[key] == row[key] for key in ("strength", "centre", "dim"))]
        assert [one["value"] for one in same] == [pytest.approx(row["measure"]["nDCG@10"]["value"])]


def test_the_command_writes_a_recipe_that_builds(config: BuildConfig, tmp_path: Path) -> None:
    source = written(corpus(120), tmp_path / "docs.jsonl")
    (tmp_path / "base.toml").write_text(config.to_toml())
    done = isotrope("tune", source, "--config", tmp_path / "base.toml", "--cache", tmp_path / "cache", "-o",
                    tmp_path / "tuned.toml")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "chosen: mean -1" in done.stdout
    assert "Frontier" in done.stdout
    text = (tmp_path / "tuned.toml").read_text()
    assert text.startswith("# Found by: isotrope tune")
    tuned = BuildConfig.load(tmp_path / "tuned.toml")
    assert tuned.encoder == config.encoder
    assert isotrope("build", source, tmp_path / "index", "--config", tmp_path / "tuned.toml").returncode == 0
    written_to, _, use = done.stdout.splitlines()[-3:]
    assert use == f"use it: isotrope build CORPUS INDEX --config {tmp_path / 'tuned.toml'}"
    assert written_to.split()[:2] == ["written", f"{tmp_path / 'tuned.toml'},"]


def test_the_recipes_own_setting_is_tried_and_marked_unless_it_is_ruled_out(
    config: BuildConfig, tmp_path: Path
) -> None:
    config = config.with_overrides(["whitening.strength=0.3"])
    build_index(corpus(80), tmp_path / "index", config)
    subject = Target.of_index(tmp_path / "index")
    task = TuneOptions((str(tmp_path / "index"),))
    result = run_tune(subject, task, Sweep(), tmp_path / "cache")
    (own,) = (row for row in result["results"] if row["present"])
    assert (own["strength"], own["centre"], own["dim"]) == (0.3, "role", None)
    taken = next(row for row in result["results"] if row["taken"])
    assert result["choice"]["over_present"]["value"] == pytest.approx(taken["value"] - own["value"])
    for sweep in (Sweep(strengths=(0.5,)), Sweep(centres=("common",)), Sweep(shrinkages=(0.5,))):
        ruled_out = run_tune(subject, task, sweep, tmp_path / "cache")
        assert not any(row["strength"] == 0.3 and row["centre"] == "role" and not row["shrinkage"]
                       for row in ruled_out["results"] if not sweep.centres)  # fmt: skip


def test_the_first_words_compare_the_model_as_it_is_with_the_recipe(config: BuildConfig, tmp_path: Path) -> None:
    config = config.with_overrides(["whitening.strength=0.3"])
    source = written(corpus(120), tmp_path / "docs.jsonl")
    task = TuneOptions((str(source),))
    result = run_tune(Target.of_recipe(config), task, Sweep(), tmp_path / "cache")
    (raw,) = (row for row in result["results"] if row["strength"] == "none")
    (own,) = (row for row in result["results"] if row["present"])
    compared, difference = result["as_is"], result["as_is"]["difference"]
    assert [compared[side]["setting"] for side in ("raw", "recipe")] == ["mean -1 raw", "mean -1 strength 0.3 role"]
    for side, row in (("raw", raw), ("recipe", own)):
        assert [compared[side][key] for key in ("value", "low", "high")] == [
            row[key] for key in ("value", "low", "high")
        ]
    assert difference["value"] == pytest.approx(compared["recipe"]["value"] - compared["raw"]["value"])
    assert difference["decided"] == (difference["low"] > 0 or difference["high"] < 0)
    first = tables_of(result)[0]
    assert first.rows[0][0] == "mean -1 raw"
    (tmp_path / "base.toml").write_text(config.to_toml())
    done = isotrope("tune", source, "--config", tmp_path / "base.toml", "--cache", tmp_path / "cache")
    assert done.stdout.startswith(f"{first.caption}\n"), done.stderr
    for own in (["whitening.strength=none"], ["whitening.kind=flow"]):  # raw itself, and another kind of transform
        other = run_tune(Target.of_recipe(config.with_overrides(own)), task, Sweep(), tmp_path / "cache")
        assert other["as_is"] is None
        assert "as it is" not in tables_of(other)[0].caption


@pytest.mark.parametrize(
    ("value", "low", "high", "said"),
    [
        (0.02, 0.01, 0.03, "is better than the model as it is: MRR +2.00 [+1.00, +3.00], decided"),
        (0.02, -0.01, 0.03, "scores higher than the model as it is: MRR +2.00 [-1.00, +3.00], not decided"),
        (-0.02, -0.03, 0.01, "scores lower than the model as it is: MRR -2.00 [-3.00, +1.00], not decided"),
        (-0.02, -0.03, -0.01, "is worse than the model as it is: MRR -2.00 [-3.00, -1.00], decided"),
        (0.0, -0.01, 0.01, "scores the same as the model as it is: MRR +0.00 [-1.00, +1.00], not decided"),
    ],
)
def test_the_comparison_says_which_is_better_and_whether_that_is_decided(
    value: float, low: float, high: float, said: str
) -> None:
    sides = {side: {"setting": side, "value": 0.5, "low": 0.4, "high": 0.6} for side in ("raw", "recipe")}
    difference = {"value": value, "low": low, "high": high, "decided": low > 0 or high < 0}
    choice = {"setting": "raw", "reason": "it scored highest"}
    added = {"as_is": {**sides, "difference": difference}, "frontier": [], "choice": choice}
    table = tables_of(Result("tune", {"protocol": {"measure": "MRR"}}, [], None, [], added))[0]
    assert table.caption == f"The recipe's whitening {said}"
    assert table.rows == [["raw", "50.00 [40.00, 60.00]"], ["recipe", "50.00 [40.00, 60.00]"]]


def test_the_file_states_the_whitening_though_it_is_the_default(config: BuildConfig, tmp_path: Path) -> None:
    """So that a build with it knows that the strength was chosen."""
    source = written(corpus(80), tmp_path / "docs.jsonl")
    result = run_tune(Target.of_recipe(config), TuneOptions((str(source),)), SMALL, tmp_path / "cache")
    write_recipe(tmp_path / "tuned.toml", dict(result) | {"recipe": config.to_dict()})
    stated = tomllib.loads((tmp_path / "tuned.toml").read_text())
    assert stated["whitening"] == config.to_dict()["whitening"]
    assert BuildConfig.load(tmp_path / "tuned.toml") == config


def test_the_command_that_uses_it_works_though_the_model_is_elsewhere(
    config: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path of a moved model is not a change for a refit."""
    shutil.copytree(config.encoder.model, tmp_path / "model")
    build_index(corpus(80), tmp_path / "index", config.with_overrides([f"encoder.model={tmp_path / 'model'}"]))
    (tmp_path / "model").rename(tmp_path / "moved")
    done = isotrope("tune", tmp_path / "index", "--model", tmp_path / "moved", "--cache", tmp_path / "cache")
    use = done.stdout.splitlines()[-1].removeprefix("use it: isotrope ")
    assert use.startswith(f"refit {tmp_path / 'index'} --set whitening.strength="), done.stderr
    assert isotrope(*shlex.split(use)).returncode == 0
    done = isotrope("tune", tmp_path / "index", "--model", tmp_path / "moved", "--cache", tmp_path / "cache",
                    "-o", tmp_path / "tuned.toml")  # fmt: skip
    use = done.stdout.splitlines()[-1].removeprefix("use it: isotrope ")
    assert use == f"refit {tmp_path / 'index'} --config {tmp_path / 'tuned.toml'}", done.stderr
    assert isotrope(*shlex.split(use)).returncode == 0
    tuned, stored = (
        without_auto(BuildConfig.load(tmp_path / "tuned.toml")),
        load_manifest(tmp_path / "index").config,
    )
    assert (stored["whitening"], stored["hybrid"]) == (tuned.to_dict()["whitening"], tuned.to_dict()["hybrid"])


def test_other_layers_of_an_index_take_a_build(config: BuildConfig, tmp_path: Path) -> None:
    build_index(corpus(80), tmp_path / "index", config)
    sweep = Sweep(layers=((1,),), strengths=(0.5,), shrinkages=(0.0,))
    result = run_tune(Target.of_index(tmp_path / "index"), TuneOptions((str(tmp_path / "index"),)), sweep, tmp_path)
    assert result["choice"]["command"].startswith("isotrope build CORPUS NEW_INDEX --set ")
    assert "encoder.layers=" in result["choice"]["command"]


def test_the_result_is_json_when_asked_for_by_name(config: BuildConfig, tmp_path: Path) -> None:
    source = written(corpus(120), tmp_path / "docs.jsonl")
    (tmp_path / "base.toml").write_text(config.to_toml())
    done = isotrope("tune", source, "--config", tmp_path / "base.toml", "--cache", tmp_path / "cache", "--json",
                    "--objective", "sts", "--strength", "0.5", "-o", tmp_path / "tuned.json")  # fmt: skip
    assert json.loads(done.stdout) == json.loads((tmp_path / "tuned.json").read_text())
    assert json.loads(done.stdout)["provenance"]["protocol"]["objective"] == "sts"


def test_an_index_has_one_pooling_and_average_of_layers(config: BuildConfig, tmp_path: Path) -> None:
    """Other layers are measured too, because only the pairs are encoded, but need a new index."""
    build_index(corpus(80), tmp_path / "index", config)
    sweep = Sweep(layers=((-1,), (1, -1)), strengths=(0.5,), shrinkages=(0.0,))
    result = run_tune(Target.of_index(tmp_path / "index"), TuneOptions((str(tmp_path / "index"),)), sweep, tmp_path)
    assert {tuple(row["layers"]) for row in result["results"]} == {(-1,), (1, -1)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sample": 49}, "sample is 49; expected at least 50"),
        ({"max_bytes": -4}, "max_bytes is -4"),
        ({"objective": "sts", "beir": Path("x")}, "beir measures retrieval"),
    ],
)
def test_tasks_that_make_no_sense_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TuneOptions(("docs.jsonl",), **arguments)


def test_a_budget_below_a_dimension_is_refused(config: BuildConfig, tmp_path: Path) -> None:
    source = written(corpus(60), tmp_path / "docs.jsonl")
    with pytest.raises(ConfigError, match="max_bytes=3 leaves no dimension"):
        run_tune(Target.of_recipe(config), TuneOptions((str(source),), max_bytes=3), SMALL, tmp_path)


def test_a_recipe_written_out_reads_back(config: BuildConfig, tmp_path: Path) -> None:
    changed = config.with_overrides(["whitening.strength=none", "encoder.layers=[1, -1]"]).with_columns(
        {"text_column": 'a "quoted" column'}, ["year:int"], ["left out"]
    )
    (tmp_path / "recipe.toml").write_text(changed.to_toml(["one", "two\nthree"]))
    assert BuildConfig.load(tmp_path / "recipe.toml") == changed
    assert (tmp_path / "recipe.toml").read_text().startswith("# one\n# two\n# three\n\n[corpus]")


def test_an_index_is_named_as_the_source_alone(config: BuildConfig, tmp_path: Path) -> None:
    build_index(corpus(60), tmp_path / "index", config)
    source = written(corpus(60), tmp_path / "docs.jsonl")
    for arguments, message in (
        ([source, "--index", tmp_path / "index"], "--index does not apply here. Fix: isotrope tune INDEX"),
        ([tmp_path / "index", source], "an index is tuned alone"),
        ([tmp_path / "index", "--format", "jsonl"], "--format is for a corpus, not for an index"),
    ):
        done = isotrope("tune", *arguments)
        assert (done.returncode, message in done.stderr) == (1, True), done.stderr


def test_bad_rows_are_left_out_when_asked(config: BuildConfig, tmp_path: Path) -> None:
    source = written([*corpus(60), Document("blank", "  ")], tmp_path / "docs.jsonl")
    with pytest.raises(CorpusError):
        run_tune(Target.of_recipe(config), TuneOptions((str(source),)), SMALL, tmp_path / "cache")
    run_tune(Target.of_recipe(config), TuneOptions((str(source),), on_error="skip"), SMALL, tmp_path / "cache")


def test_a_cache_that_nobody_asked_for_and_cannot_be_written_is_done_without(
    config: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    source = written(corpus(80), tmp_path / "docs.jsonl")
    assert run_tune(Target.of_recipe(config), TuneOptions((str(source),)), SMALL)["results"]


def test_the_recipe_of_a_moved_model_names_where_it_is_now(config: BuildConfig, tmp_path: Path) -> None:
    shutil.copytree(config.encoder.model, tmp_path / "before")
    build_index(corpus(60), tmp_path / "index", config.with_overrides([f"encoder.model={tmp_path}/before"]))
    (tmp_path / "before").rename(tmp_path / "after")
    subject = Target.of_index(tmp_path / "index", tmp_path / "after")
    result = run_tune(subject, TuneOptions((str(tmp_path / "index"),)), SMALL, tmp_path / "cache")
    assert result["recipe"]["encoder"]["model"] == str(tmp_path / "after")


def test_the_options_of_a_recipe_include_the_settings_of_papers() -> None:
    recipe = BuildConfig().with_overrides(["encoder.pooling=sif", "papers.sif.a=0.01"])
    words = shlex.split(" ".join(_options(recipe, BuildConfig())))
    assert BuildConfig().with_overrides([word for word in words if word != "--set"]) == recipe
