"""Settings and their sweeps, states and their cache, fits, targets, and provenance."""

import hashlib
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save as save_tensors

from indexer import BuildConfig, build_index
from indexer.encoders.load import load_encoder, open_encoder
from indexer.errors import ConfigError, CorpusError, EvaluationError, MachineError, NotAnIndexError
from indexer.hashing import hash_id
from indexer.lazy_imports import install_line, require_extra
from indexer.models.encoder_spec import EncoderSpec
from indexer.moments import Moments
from indexer.recipe.config import WhiteningConfig
from indexer.recipe.run_options import RunOptions
from indexer.system.output_files import check_output
from indexer.transforms import Normalisation, Whitening, fit_whitening
from search.evaluation import embeddings as states_module
from search.evaluation.plots.drawing import write_plot
from search.evaluation.result import Clock, how_built, write_result
from search.evaluation.sweep import (
    Setting,
    Sweep,
    check_dimensions,
    fit_setting,
    parse_layers,
    parse_strength,
    shortest,
    state_keys,
    transform_hash,
    union_of_layers,
)
from search.evaluation.target import Target
from search.result_files import check_cache, file_hash
from tests.documents import DOCUMENTS
from tests.search.cli.test_cli import isotrope

OWN = Setting("mean", (-1,), WhiteningConfig())
TEXTS = ["the whale", "a song of the deep sea", "data", "the whale"]


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[EncoderSpec]:
    """The encoders that were loaded."""
    loaded: list[EncoderSpec] = []

    def counting(spec: EncoderSpec, options: RunOptions) -> Any:
        loaded.append(spec)
        return open_encoder(spec, options)

    monkeypatch.setattr(states_module, "open_encoder", counting)
    return loaded


@pytest.fixture
def index(tiny_config: BuildConfig, tmp_path: Path) -> Path:
    build_index(DOCUMENTS, tmp_path / "index", tiny_config)
    return tmp_path / "index"


# Settings


def test_a_sweep_is_the_product_in_the_order_given() -> None:
    sweep = Sweep(poolings=("cls", "mean"), layers=((1,), (1, -1)), strengths=(0.0, 1.0))
    found = [(s.pooling, s.layers, s.whitening.strength) for s in sweep.settings(OWN)]
    assert found[:4] == [("cls", (1,), 0.0), ("cls", (1,), 1.0), ("cls", (1, -1), 0.0), ("cls", (1, -1), 1.0)]
    assert len(found) == len(set(found)) == 8


def test_an_empty_sweep_is_the_recipes_own_setting() -> None:
    assert Sweep().is_empty
    assert Sweep().settings(OWN) == [OWN]
    assert not Sweep(dims=(0,)).is_empty


def test_no_transform_appears_once_whatever_else_is_swept() -> None:
    sweep = Sweep(strengths=("none", 1.0), dims=(4, 8), shrinkages=(0.0, 0.5), centres=("common", "none"))
    settings = sweep.settings(OWN)
    assert [setting.raw for setting in settings] == [True] + [False] * 8


@given(
    st.lists(st.sampled_from(["mean", "cls", "max"]), max_size=3),
    st.lists(st.sampled_from([(1,), (-1,), (1, -1)]), max_size=3),
    st.lists(st.sampled_from(["none", 0.0, 0.5, 1.0]), max_size=4),
    st.lists(st.integers(0, 3), max_size=3),
)
def test_a_sweep_never_repeats_a_setting(poolings: Any, layers: Any, strengths: Any, dims: Any) -> None:
    settings = Sweep(tuple(poolings), tuple(layers), tuple(strengths), tuple(dims)).settings(OWN)
    assert len(settings) == len(set(settings)) > 0


def test_a_swept_value_is_checked_as_in_a_recipe() -> None:
    with pytest.raises(ConfigError, match=r"whitening.strength is 1.5"):
        Sweep(strengths=(1.5,)).settings(OWN)
    with pytest.raises(ConfigError, match=r"whitening.dim is -1"):
        Sweep(dims=(-1,)).settings(OWN)


def test_a_setting_as_json_and_in_words() -> None:
    whitening = WhiteningConfig(strength=0.5, dim=8, shrinkage=0.1, centre="common")
    setting = Setting("cls", (1, -1), whitening)
    assert setting.label == "cls 1,-1 strength 0.5 dim 8 shrinkage 0.1 common"
    assert setting.to_dict() == {
        "pooling": "cls",
        "layers": [1, -1],
        "strength": 0.5,
        "dim": 8,
        "shrinkage": 0.1,
        "centre": "common",
    }
    (raw,) = Sweep(strengths=("none",)).settings(setting)
    assert raw.label == "cls 1,-1 raw"
    assert raw.to_dict() == setting.to_dict() | {"strength": "none", "dim": None, "shrinkage": 0.0, "centre": None}


@pytest.mark.parametrize(
    ("value", "text"), [(0.25, "0.25"), (1.0, "1"), (0.0, "0"), (0.1234567, "0.1234567"), (1e-7, "1e-07")]
)
def test_numbers_are_written_as_short_as_they_can_be_told_apart(value: float, text: str) -> None:
    assert shortest(value) == text
    assert f"strength {text} role" in Setting("mean", (-1,), WhiteningConfig(strength=value)).label


@given(st.floats(0, 1), st.floats(0, 1))
def test_settings_that_differ_have_labels_that_differ(first: float, second: float) -> None:
    labels = {Setting("mean", (-1,), WhiteningConfig(strength=value, shrinkage=0.1)).label for value in (first, second)}
    assert len(labels) == len({first, second})


def test_settings_of_one_sweep_have_labels_that_tell_them_apart() -> None:
    sweep = Sweep(("cls", "mean"), ((1,), (1, -1)), ("none", 0.0, 0.25), (0, 4), (0.0, 0.5), ("role", "common"))
    settings = sweep.settings(OWN)
    assert len({setting.label for setting in settings}) == len(settings)


@pytest.mark.parametrize(("text", "layers"), [("-1", (-1,)), ("1,-1", (1, -1)), (" 0, 3", (0, 3))])
def test_layers_are_numbers_with_commas(text: str, layers: tuple[int, ...]) -> None:
    assert parse_layers(text) == layers


@pytest.mark.parametrize("text", ["", "last", "1,", "1.5", "1;2"])
def test_other_layers_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a list of layers; expected for example -1 or 1,-1"):
        parse_layers(text)


def test_a_strength_is_a_number_or_none() -> None:
    assert (parse_strength("0.25"), parse_strength(" None "), parse_strength("1")) == (0.25, "none", 1.0)
    with pytest.raises(ConfigError, match='"soft" is not a number'):
        parse_strength("soft")


def test_states_are_asked_for_once() -> None:
    settings = Sweep(layers=((1,), (1, -1), (2, 1)), strengths=("none", 0.5)).settings(OWN)
    assert union_of_layers(settings) == (1, -1, 2)
    assert state_keys(settings) == [((1,), "mean"), ((1, -1), "mean"), ((2, 1), "mean")]


# States


def test_states_are_what_an_encoder_of_each_setting_gives(tiny_config: BuildConfig) -> None:
    sweep = Sweep(poolings=("mean", "cls"), layers=((1,), (1, -1)))
    subject = Target.of_recipe(tiny_config)
    states = subject.states(subject.settings(sweep)).encode(TEXTS)
    for layers, pooling in states.rows:
        config = replace(tiny_config.encoder, layers=layers, pooling=pooling)
        expected = load_encoder(config).encode(TEXTS, "document")
        np.testing.assert_allclose(states.of(TEXTS, (layers, pooling)), expected, atol=1e-5)


def test_a_text_that_repeats_is_encoded_once(tiny_config: BuildConfig, loads: list[EncoderSpec]) -> None:
    source = Target.of_recipe(tiny_config).states([OWN])
    assert loads == []
    states = source.encode(TEXTS)
    assert len(source.log.lengths) == len(states.positions) == 3
    rows = states.of(TEXTS, OWN.key)
    assert np.array_equal(rows[0], rows[3])
    source.encode(["something else"])
    assert len(loads) == 1


def test_a_fingerprint_is_that_of_an_index_of_the_setting(tiny_config: BuildConfig, index: Path) -> None:
    settings = Sweep(layers=((-1,), (2,), (1,))).settings(OWN)  # a model of two blocks
    source = Target.of_recipe(tiny_config).states(settings)
    last, second, first = (source.fingerprint(setting.key) for setting in settings)
    assert last == second == Target.of_index(index).spec.fingerprint != first
    assert source.blocks == 2


def test_the_cache_gives_the_same_rows_and_counts_without_an_encoder(
    tiny_config: BuildConfig, tmp_path: Path, loads: list[EncoderSpec]
) -> None:
    config = tiny_config.with_overrides(["encoder.max_length=5"])  # "a song of the deep sea" is cut
    subject = Target.of_recipe(config)
    settings = subject.settings(Sweep(poolings=("mean", "cls"), layers=((1,), (1, -1))))
    first, again = (subject.states(settings, tmp_path / "cache") for _ in range(2))
    made, kept = first.encode(TEXTS), again.encode(TEXTS)
    assert len(loads) == 1
    assert made.positions == kept.positions
    for key, rows in made.rows.items():
        assert np.array_equal(rows, kept.rows[key])
    assert first.log.lengths == again.log.lengths
    assert first.log.truncated == again.log.truncated == 1


@pytest.mark.parametrize("change", ["texts", "role", "settings", "encoder"])
def test_the_cache_answers_for_nothing_else(
    change: str, tiny_config: BuildConfig, tmp_path: Path, loads: list[EncoderSpec]
) -> None:
    Target.of_recipe(tiny_config).states([OWN], tmp_path).encode(TEXTS)
    texts = [*TEXTS[:2], "other"] if change == "texts" else TEXTS
    settings = Sweep(layers=((1,),)).settings(OWN) if change == "settings" else [OWN]
    config = tiny_config.with_overrides(["encoder.max_length=9"]) if change == "encoder" else tiny_config
    Target.of_recipe(config).states(settings, tmp_path).encode(texts, "query" if change == "role" else "document")
    assert len(loads) == 2
    assert len(list(tmp_path.iterdir())) == 2


def digested(data: bytes) -> bytes:
    return data + hashlib.sha256(data).digest()


@pytest.mark.parametrize("damage", ["flipped", "short", "empty", "junk", "other rows", "other lengths"])
def test_a_damaged_cache_is_made_again(
    damage: str, tiny_config: BuildConfig, tmp_path: Path, loads: list[EncoderSpec]
) -> None:
    subject = Target.of_recipe(tiny_config)
    made = subject.states([OWN], tmp_path).encode(TEXTS)
    (path,) = tmp_path.iterdir()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    lengths = np.ones(len(TEXTS), np.int64)
    damaged = {
        "flipped": bytes(data),
        "short": bytes(data[:20]),
        "empty": b"",
        "junk": digested(b"[" * 100_000),
        "other rows": digested(save_tensors({"0": np.ones((1, 2), np.float32), "lengths": lengths})),
        "other lengths": digested(
            save_tensors({"0": np.ones((len(TEXTS), 2), np.float32), "lengths": lengths[:, None]})
        ),
    }
    path.write_bytes(damaged[damage])
    again = subject.states([OWN], tmp_path).encode(TEXTS)
    assert len(loads) == 2
    assert np.array_equal(made.rows[OWN.key], again.rows[OWN.key])
    subject.states([OWN], tmp_path).encode(TEXTS)
    assert len(loads) == 2


def test_no_texts_can_be_kept_too(tiny_config: BuildConfig, tmp_path: Path) -> None:
    subject = Target.of_recipe(tiny_config)
    source = subject.states([OWN], tmp_path)
    source.encode(TEXTS)
    source.encode([])
    again = subject.states([OWN], tmp_path)
    assert again.encode([]).rows[OWN.key].shape == (0, 32)
    assert again.log.lengths == []


@pytest.mark.parametrize("cached", [False, True])
def test_text_that_is_not_unicode_is_refused(cached: bool, tiny_config: BuildConfig, tmp_path: Path) -> None:
    source = Target.of_recipe(tiny_config).states([OWN], tmp_path if cached else None)
    with pytest.raises(CorpusError, match="lone surrogate"):
        source.encode(["\ud800"])


def test_a_layer_the_model_does_not_have_is_refused_before_anything_is_loaded(
    tiny_config: BuildConfig, loads: list[EncoderSpec]
) -> None:
    with pytest.raises(ConfigError, match=r"encoder\.layers has 7"):
        Target.of_recipe(tiny_config).states(Sweep(layers=((7,),)).settings(OWN))
    assert loads == []


# Fits


def rows_of(seed: int, count: int = 200) -> Any:
    random = np.random.default_rng(seed)
    return random.normal(size=(count, 6)) * np.arange(1, 7) + seed


def test_a_setting_is_fitted_as_a_build_fits_it() -> None:
    moments = Moments.of(rows_of(1))
    setting = Setting("mean", (-1,), WhiteningConfig(strength=0.5, dim=4, centre="common"))
    found, expected = fit_setting(setting, moments), fit_whitening(moments, setting.whitening)
    assert transform_hash(found) == transform_hash(expected)
    assert found.dim == 4


@pytest.mark.parametrize(("centre", "moved"), [("role", True), ("common", False), ("none", False)])
def test_only_role_centring_gives_queries_their_own_mean(centre: Any, moved: bool) -> None:
    documents, queries = Moments.of(rows_of(1)), Moments.of(rows_of(2))
    found = fit_setting(Setting("mean", (-1,), WhiteningConfig(centre=centre)), documents, queries)
    assert isinstance(found, Whitening)
    assert np.array_equal(found.query_mean, queries.mean if moved else found.mean)
    alone = fit_setting(Setting("mean", (-1,), WhiteningConfig(centre=centre)), documents)
    assert isinstance(alone, Whitening)
    assert np.array_equal(alone.query_mean, alone.mean)


def test_nothing_is_fitted_for_raw_embeddings() -> None:
    (raw,) = Sweep(strengths=("none",)).settings(OWN)
    assert fit_setting(raw, Moments.of(rows_of(1)), Moments.of(rows_of(2))) == Normalisation(6)


# Subjects


def test_an_indexs_own_setting_and_moments_give_its_own_transform(index: Path) -> None:
    subject = Target.of_index(index)
    assert subject.index is not None
    stored = subject.index.transform
    fitted = fit_setting(subject.own, subject.moments)
    assert isinstance(stored, Whitening)
    assert isinstance(fitted, Whitening)
    assert np.array_equal(fitted.projection, stored.projection)
    assert np.array_equal(fitted.mean, stored.mean)
    assert subject.settings(Sweep()) == [subject.own]


def test_the_hash_of_a_transform_is_that_of_its_file(index: Path) -> None:
    opened = Target.of_index(index).index
    assert opened is not None
    assert transform_hash(opened.transform) == opened.manifest.files[opened.manifest.transform["file"]].sha256


def test_the_sample_is_the_documents_of_smallest_id_hash(tiny_config: BuildConfig, tmp_path: Path) -> None:
    build_index(DOCUMENTS, tmp_path / "index", tiny_config.with_overrides(["whitening.sample=5"]))
    subject = Target.of_index(tmp_path / "index")
    chosen = sorted(sorted(range(9), key=lambda row: hash_id(DOCUMENTS[row].id))[:5])
    of_parts = zip(subject.sample.chosen or (), subject.sample.firsts, strict=False)
    assert [row + first for rows, first in of_parts for row in rows.tolist()] == chosen
    assert subject.moments.count == 5
    texts = [f"{DOCUMENTS[row].title} {DOCUMENTS[row].text}" for row in chosen]
    rows = subject.states([subject.own]).encode(texts).rows[subject.own.key]
    np.testing.assert_allclose(subject.moments.mean, rows.mean(axis=0), atol=1e-5)


def test_a_recipes_pooling_is_resolved(tiny_config: BuildConfig) -> None:
    subject = Target.of_recipe(tiny_config.with_overrides(["encoder.pooling=cls", "encoder.layers=[1, -1]"]))
    assert (subject.own.pooling, subject.own.layers) == ("cls", (1, -1))
    assert subject.index is None


def test_what_is_no_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotAnIndexError, match="no such index"):
        Target.of_index(tmp_path / "nowhere")


# Provenance


def test_provenance_says_what_with_what_and_how(tiny_config: BuildConfig) -> None:
    spec = Target.of_recipe(tiny_config).spec
    found = Clock().provenance(spec, {"b.tsv": "22", "a.tsv": "11"}, "isotrope evaluate sts x", protocol=["mean"])
    assert found["encoder"] == {"model": spec.model, "identity": spec.identity.to_dict()}
    assert list(found["data"].items()) == [("a.tsv", "11"), ("b.tsv", "22")]
    assert (found["command"], found["protocol"]) == ("isotrope evaluate sts x", ["mean"])
    assert {"isotrope", "python", "numpy", "torch", "scipy"} <= set(found["versions"])
    again = Clock().provenance(spec, {"b.tsv": "22", "a.tsv": "11"}, "isotrope evaluate sts x", protocol=["mean"])
    assert {key for key in found if found[key] != again[key]} <= {"created", "seconds"}
    assert "encoder" not in Clock().provenance(None, {})


def test_provenance_names_the_recipe_and_the_index(tiny_config: BuildConfig, index: Path) -> None:
    opened = Target.of_index(index).index
    assert opened is not None
    manifest = json.loads((index / "manifests/00000001.json").read_text())
    assert how_built(tiny_config) == {"recipe": tiny_config.to_dict()}
    assert how_built(tiny_config, opened)["index"] == {"generation": 1, "manifest": manifest["checksum"]}


def test_places_that_can_be_written_are_left_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "old.json").touch()
    check_output(tmp_path / "old.json", force=True)
    check_output(tmp_path / "new" / "r.json")
    check_cache(tmp_path)
    check_cache(tmp_path / "new" / "cache")
    assert os.listdir(tmp_path) == ["old.json"]


def test_places_that_cannot_be_written_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ConfigError, match=rf"path {tmp_path} is a folder; expected a file"):
        check_output(tmp_path)
    with pytest.raises(ConfigError, match=rf"path {file}/deep/r.json cannot be created: {file} is a file"):
        check_output(file / "deep" / "r.json")
    with pytest.raises(ConfigError, match=rf"cache {file} is a file"):
        check_cache(file)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    for check in (check_output, check_cache):
        with pytest.raises(ConfigError, match=r"cannot be written: .*Read-only file system"):
            check(tmp_path / "new")


def test_a_link_stays_and_its_target_is_written(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/old.json").write_text("old")
    for name, target in (("old.json", "folder/old.json"), ("new.json", "folder/deep/new.json")):
        (tmp_path / name).symlink_to(target)
        write_result(tmp_path / name, {"a": 1}, force=True)
        assert (tmp_path / name).is_symlink()
        assert json.loads((tmp_path / target).read_text()) == {"a": 1}
    write_plot(tmp_path / "p.svg", (1.0, 1.0), lambda figure: None)
    (tmp_path / "q.svg").symlink_to("p.svg")
    write_plot(tmp_path / "q.svg", (2.0, 1.0), lambda figure: None, force=True)
    assert (tmp_path / "q.svg").is_symlink()
    assert "144pt" in (tmp_path / "p.svg").read_text()


@pytest.mark.parametrize(
    "command",
    [
        ("sts", "stsb.tsv"),
        ("layers", "stsb.tsv"),
        ("rte", "dev.tsv"),
        ("retrieval", "folder"),
        ("recall", "index"),
        ("report", "index"),
    ],
    ids=lambda command: command[0],
)
def test_commands_refuse_a_place_before_they_read_or_encode(command: tuple[str, str], index: Path) -> None:
    """Before any other file is read."""
    name, source = command
    words: list[str | Path] = [*(["evaluate"] if name != "report" else []), name, index.parent / source]
    done = isotrope(*words, "-o", index.parent)
    assert (done.returncode, done.stderr) == (1, f"error: -o {index.parent} is a folder; expected a file.\n")
    if name not in ("recall", "report"):
        (index.parent / "file").touch()
        done = isotrope(*words, "--cache", index.parent / "file" / "cache")
        assert "is a file; expected a path in a folder that exists or can be created" in done.stderr


def test_more_directions_than_the_encoder_gives_are_refused_unless_nothing_is_fitted(tiny_config: BuildConfig) -> None:
    spec = Target.of_recipe(tiny_config).spec
    sweep = Sweep(strengths=(0.5,), dims=(32,))
    check_dimensions([*sweep.settings(OWN), *Sweep(strengths=("none",), dims=(33,)).settings(OWN)], spec)
    with pytest.raises(ConfigError, match=r"whitening\.dim is 33, but embeddings have 32 dimensions"):
        check_dimensions(Sweep(dims=(33,)).settings(OWN), spec)


def test_a_file_is_hashed_or_said_to_be_unreadable(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert file_hash(tmp_path / "a") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    with pytest.raises(EvaluationError, match=r"gone: cannot be read: No such file"):
        file_hash(tmp_path / "gone")


def test_a_result_is_written_whole_as_strict_json(tmp_path: Path) -> None:
    path = tmp_path / "new" / "r.json"
    write_result(path, {"spearman": 1.5, "name": "é"})
    assert json.loads(path.read_text(encoding="utf-8")) == {"spearman": 1.5, "name": "é"}
    write_result(path, {"spearman": float("nan")}, force=True)
    assert json.loads(path.read_text(encoding="utf-8")) == {"spearman": None}
    assert os.listdir(path.parent) == ["r.json"]


def test_a_missing_package_names_the_line_that_installs_it() -> None:
    with pytest.raises(MachineError, match=r"package no_such_package.*pip install '.*isotrope\[eval\]"):
        require_extra("no_such_package.stats", "eval")
    assert re.fullmatch(
        r"pip install 'jinja2\S*' 'matplotlib\S*' \(the extra isotrope\[plots\]\)", install_line("plots")
    )
    assert "'mcp>" in install_line("mcp")
    assert "'fastapi>" in install_line("mcp")  # from the included extra
