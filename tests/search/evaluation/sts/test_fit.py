"""Fits of an STS run: on the task, another corpus or an index; none for raw embeddings."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexer import BuildConfig, Document, build_index
from indexer.errors import ConfigError, CorpusError
from indexer.hashing import hash_id
from search.evaluation.sts import fit
from search.evaluation.sts.sts import StsOptions, evaluate_sts
from search.evaluation.sweep import Sweep
from search.evaluation.target import Target
from tests.oracles import whitening_projection
from tests.sts_tasks import STS12, STSB, TWO, WORDS, count_passes, expected_figures, figures, sentences


@pytest.fixture
def subject(tiny_config: BuildConfig) -> Target:
    return Target.of_recipe(tiny_config)


@pytest.fixture
def index(tiny_config: BuildConfig, tmp_path: Path) -> Target:
    """An index of more documents than dimensions, so that every direction is spanned."""
    random = np.random.default_rng(5)
    documents = [Document(f"d{number}", " ".join(random.choice(WORDS, 6))) for number in range(60)]
    build_index(documents, tmp_path / "index", tiny_config.with_overrides(["store.part_documents=25"]))
    return Target.of_index(tmp_path / "index")


@pytest.fixture
def never_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("fitted")

    monkeypatch.setattr(fit, "fit_setting", refuse)


def corpus(folder: Path) -> Path:
    """Documents of words, ten of them twice; one line is blank."""
    random = np.random.default_rng(9)
    rows = [{"_id": f"x{number}", "title": "", "text": " ".join(random.choice(WORDS, 5))} for number in range(80)]
    rows += [{**row, "_id": f"{row['_id']}-again"} for row in rows[:10]]
    path = folder / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("fit", ["task", "corpus:{corpus}", "index"])
@pytest.mark.usefixtures("never_fits")
def test_raw_embeddings_are_never_fitted_and_keep_the_name_of_the_fit(
    fit: str, index: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = fit.format(corpus=corpus(tmp_path))
    passed = count_passes(monkeypatch)
    result = evaluate_sts(index, [STSB], StsOptions(index.settings(Sweep(strengths=("none",))), fit=name))
    assert {row["fit"] for row in result["results"]} == {name}
    assert sum(passed) == len(set(sentences(STSB)))


@pytest.mark.parametrize(("sample", "fitted"), [('"all"', 90), ("40", 40)])
def test_a_corpus_is_fitted_on_the_documents_a_build_would_take(
    sample: str, fitted: int, tiny_config: BuildConfig, tmp_path: Path
) -> None:
    subject = Target.of_recipe(tiny_config.with_overrides([f"whitening.sample={sample}"]))
    path = corpus(tmp_path)
    settings = subject.settings(Sweep(strengths=(1.0,)))
    result = evaluate_sts(subject, TWO, StsOptions(settings, fit=f"corpus:{path}"))

    documents = [json.loads(line) for line in path.read_text().splitlines()]
    texts = [row["text"] for row in sorted(documents, key=lambda row: hash_id(row["_id"]))[:fitted]]
    rows = subject.states(settings).encode(texts).of(texts, settings[0].key).astype(np.float64)
    projection, mean = whitening_projection(rows, 1.0, 0), rows.mean(axis=0)
    encoded = subject.states(settings).encode(sentences(STS12)).of(sentences(STS12), settings[0].key)
    vectors = dict(zip(sentences(STS12), (encoded.astype(np.float64) - mean) @ projection, strict=True))
    assert figures(result)["STS12"] == pytest.approx(expected_figures(STS12, vectors)["mean"], abs=1e-6)

    assert result["provenance"]["fit"] == {"name": f"corpus:{path}", "documents": fitted}
    assert len(result["provenance"]["data"]["corpus.jsonl"]) == 64
    assert len({row["transform"] for row in result["results"]}) == 1  # equal for all tasks, so the average has it too


def test_a_corpus_in_pieces_is_the_same_corpus(
    subject: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = StsOptions(subject.settings(Sweep(strengths=(1.0,))), fit=f"corpus:{corpus(tmp_path)}")
    whole = evaluate_sts(subject, TWO, plan)
    monkeypatch.setattr(fit, "_CHUNK", 17)
    pieces = evaluate_sts(subject, TWO, plan)
    assert figures(whole) == pytest.approx(figures(pieces), abs=0.05)  # up to the rounding of other batches


def test_an_index_is_measured_as_it_ships(index: Target) -> None:
    """Its own setting uses the index's transform; others are fitted on its rows."""
    assert index.index is not None
    manifest = index.index.manifest
    settings = index.settings(Sweep(strengths=(0.25, 1.0)))
    result = evaluate_sts(index, TWO, StsOptions(settings))
    own, other = (row for row in result["results"] if row["task"] == "average")
    assert own["transform"] == manifest.files[manifest.transform["file"]].sha256 != other["transform"]
    assert {row["fit"] for row in result["results"]} == {"index"}
    assert own["encoder"] == manifest.fingerprint
    stored = json.loads((index.index.path / "manifests/00000001.json").read_text())
    assert result["provenance"]["fit"] == {"name": "index", "index": str(index.index.path)}
    assert result["provenance"]["index"] == {"generation": 1, "manifest": stored["checksum"]}
    assert result["provenance"]["recipe"] == index.config.to_dict()

    rows = np.concatenate([index.sample.embeddings(part) for part in range(3)]).astype(np.float64)
    projection, mean = whitening_projection(rows, 1.0, 0), rows.mean(axis=0)
    encoded = index.states([index.own]).encode(sentences(STSB)).of(sentences(STSB), index.own.key)
    vectors = dict(zip(sentences(STSB), (encoded.astype(np.float64) - mean) @ projection, strict=True))
    assert figures(result, strength=1.0)["STSB"] == pytest.approx(expected_figures(STSB, vectors)["mean"], abs=1e-6)


def test_an_index_can_be_measured_with_another_fit(index: Target) -> None:
    result = evaluate_sts(index, [STSB], StsOptions([index.own], fit="task"))
    assert result["results"][0]["fit"] == "task"
    assert index.index is not None
    manifest = index.index.manifest
    assert result["results"][0]["transform"] != manifest.files[manifest.transform["file"]].sha256


def test_an_index_has_only_its_own_pooling_and_layers(index: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    passed = count_passes(monkeypatch)
    for sweep in (Sweep(layers=((1,),)), Sweep(poolings=("cls",))):
        with pytest.raises(ConfigError, match=r'fit="index": "(mean 1|cls -1) strength.*only embeddings of mean -1'):
            evaluate_sts(index, TWO, StsOptions(index.settings(sweep)))
    assert passed == []
    same = index.settings(Sweep(layers=((2,),)))  # the last of two blocks
    assert evaluate_sts(index, [STSB], StsOptions(same))["results"]


@pytest.mark.parametrize(
    ("fit", "error", "message"),
    [
        ("index", ConfigError, 'fit="index" needs an index. Fix: measure an index'),
        ("tasks", ConfigError, r'"tasks" is unknown; expected task, index or corpus:PATH'),
        ("corpus:", ConfigError, "is unknown; expected task"),
        ("corpus:-", ConfigError, "write it to a file"),
        ("corpus:nowhere.jsonl", CorpusError, "nowhere.jsonl: no such file"),
    ],
)
def test_a_fit_that_cannot_be_is_refused_before_anything_is_encoded(
    fit: str, error: type[Exception], message: str, subject: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = count_passes(monkeypatch)
    with pytest.raises(error, match=message):
        evaluate_sts(subject, TWO, StsOptions([subject.own], fit=fit))
    assert passed == []


def test_an_empty_corpus_cannot_be_fitted_on(subject: Target, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(CorpusError, match="the corpus has no documents"):
        evaluate_sts(subject, TWO, StsOptions([subject.own], fit=f"corpus:{tmp_path / 'empty.jsonl'}"))


def test_an_index_is_no_corpus_to_fit_on(index: Target) -> None:
    assert index.index is not None
    path = index.index.path
    plan = StsOptions(index.settings(Sweep(strengths=(1.0,))), fit=f"corpus:{path}")
    with pytest.raises(ConfigError, match=rf"{path} is an index. Fix: measure this index with fit=.index."):
        evaluate_sts(index, [STSB], plan)
