"""`tune --rerank`: advised only if significantly better, at the smallest depth that the best does not beat."""

import dataclasses
import json
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexer import BuildConfig, Document, build_index, refit_index
from indexer.arrays import Float64Array
from indexer.encoders.protocol import EncodeStats
from indexer.errors import ConfigError
from indexer.models.cross_encoder_spec import resolve_cross_encoder
from indexer.recipe.config import EncoderConfig
from indexer.recipe.corpus_config import ChunkConfig
from indexer.recipe.index_config import StoreConfig
from indexer.recipe.ranking import RerankConfig
from indexer.store.manifest import load_manifest
from search.evaluation.bootstrap import draw_counts
from search.evaluation.result import read_result, write_result
from search.evaluation.sweep import Sweep
from search.evaluation.tables import tables_of
from search.evaluation.target import Target
from search.evaluation.tune import rerank_depth
from search.evaluation.tune.rerank_depth import DEPTHS, choose_depth
from search.evaluation.tune.tune import TuneOptions, run_tune
from tests.rerankers import Constant, SharedWords
from tests.search.cli.test_cli import isotrope
from tests.search.evaluation.tune.tuned_corpora import judged, written
from tests.tiny_models import make_tiny_cross_encoder

SMALL = Sweep(strengths=(0.5,), shrinkages=(0.0,))


class Reversed(SharedWords):
    """A reranker that prefers texts with few shared words."""

    def scores(self, queries: Sequence[str], texts: Sequence[str], log: EncodeStats | None = None) -> Float64Array:
        return -super().scores(queries, texts, log)


def own_words(size: int) -> list[Document]:
    """Documents that differ in made-up words only: shared words identify them, a random encoder does not."""
    found = []
    for number in range(size):
        name = f"w{number * 7919 % 1000:03}"
        first = f"{name} is the name of what {name}a and {name}b are."
        found.append(
            Document(f"d{number}", f"{first} There {name} goes with {name}a. Of {name}b nothing is known.", name)
        )
    return found


@pytest.fixture
def config(tiny_model: Callable[[str], Path]) -> BuildConfig:
    encoder = EncoderConfig(model=str(tiny_model("bert")), max_length=64, precision="float32")
    return BuildConfig(encoder=encoder, store=StoreConfig(part_documents=50))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_cross_encoder(tmp_path_factory.mktemp("models") / "cross-encoder")


def tuned(subject: Target, source: Path, tmp_path: Path, **task: Any) -> Any:
    return run_tune(subject, TuneOptions((str(source),), sample=100, **task), SMALL, tmp_path / "cache")


@pytest.mark.parametrize("labelled", [False, True])
def test_what_knows_the_answers_is_advised_and_what_does_not_is_not(
    labelled: bool, config: BuildConfig, tmp_path: Path
) -> None:
    documents = own_words(120)
    folder = judged(documents, tmp_path / "beir")
    source = folder if labelled else written(documents, tmp_path / "docs.jsonl")
    for reranker, expected in ((SharedWords(), True), (Reversed(), False)):
        task: dict[str, Any] = {"rerank": reranker, **({"beir": folder} if labelled else {})}
        result = tuned(Target.of_recipe(config), source, tmp_path, **task)
        found = result["rerank"]
        assert [row["depth"] for row in found["depths"]] == [0, *DEPTHS]
        assert bool(found["depth"]) == expected
        assert found["advice"].startswith("on" if expected else "off")
        assert found["measure"] == ("nDCG@10" if labelled else "MRR")
        assert sum(row["taken"] for row in found["depths"]) == 1
        if expected:
            none, *deeper = (row["value"] for row in found["depths"])
            assert deeper == sorted(deeper)  # a perfect reranker gains with depth
            assert deeper[-1] > none + 0.1
        assert result["recipe"]["rerank"] == dataclasses.asdict(config.rerank)  # it has no name


def test_equal_scores_order_by_id_alone(config: BuildConfig, tmp_path: Path) -> None:
    """A constant reranker is not significantly better than none."""
    source = written(own_words(120), tmp_path / "docs.jsonl")
    found = tuned(Target.of_recipe(config), source, tmp_path, rerank=Constant())["rerank"]
    assert found["depth"] == 0
    assert found["depths"][0]["taken"]


def test_windows_are_read_where_documents_are_chunked(config: BuildConfig, tmp_path: Path) -> None:
    words = SharedWords()
    chunked = dataclasses.replace(config, chunk=ChunkConfig(tokens=16, overlap=4))
    source = written(own_words(120), tmp_path / "docs.jsonl")
    tuned(Target.of_recipe(chunked), source, tmp_path, rerank=words)
    whole = SharedWords()
    tuned(Target.of_recipe(config), source, tmp_path, rerank=whole)
    assert max(len(text) for _, text in words.asked) < max(len(text) for _, text in whole.asked)


VALUES = np.array([0.1, 0.3, 0.5, 0.7, 0.9] * 20)


def advised(*gains: float | Float64Array) -> int:
    values = {0: VALUES} | {depth: VALUES + gain for depth, gain in zip(DEPTHS, gains, strict=True)}
    return choose_depth(values, draw_counts(len(VALUES), "tune"))[0]


def test_the_fewest_hits_that_cannot_be_told_from_the_best_are_taken() -> None:
    noise = np.random.default_rng(0).normal(0, 0.2, len(VALUES))
    assert advised(0.1, 0.1, 0.1, 0.1) == 10
    assert advised(0.01, 0.1, 0.1, 0.1) == 20  # 10 is significantly worse than the best
    assert advised(0.0, 0.0, 0.05, 0.1) == 100
    assert advised(0.0, 0.0, 0.1 + noise - noise.mean(), 0.1 + 1e-3) == 50
    assert advised(0.0, 0.0, 0.0, 0.0) == 0
    assert advised(-0.1, -0.1, -0.1, -0.1) == 0
    assert advised(*[noise - noise.mean() + 1e-4] * 4) == 0  # better, but not significantly


@pytest.mark.check
def test_the_recipe_names_the_model_its_hash_and_the_depth(
    config: BuildConfig, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random scores are not advised; a recipe with advice works for a refit."""
    index = tmp_path / "index"
    build_index(own_words(120), index, config)
    off = tuned(Target.of_index(index), index, tmp_path, rerank=model)
    assert off["rerank"]["depth"] == 0
    assert off["recipe"]["rerank"]["model"] == ""
    assert off["rerank"]["by"]["sha256"] == resolve_cross_encoder(RerankConfig(model=str(model))).fingerprint
    monkeypatch.setattr(rerank_depth, "choose_depth", lambda *_: (20, 20, [20]))
    on = tuned(Target.of_index(index), index, tmp_path, rerank=str(model))
    expected = RerankConfig(str(model.resolve()), 20, sha256=off["rerank"]["by"]["sha256"])
    assert on["recipe"]["rerank"] == dataclasses.asdict(expected)
    words = shlex.split(on["choice"]["command"])
    refit_index(index, [word for word in words if word.startswith("rerank.")])
    assert load_manifest(index).config["rerank"] == on["recipe"]["rerank"]
    monkeypatch.setattr(rerank_depth, "choose_depth", lambda *_: (0, 20, [20]))
    own = tuned(Target.of_index(index), index, tmp_path, rerank=str(model))
    assert own["recipe"]["rerank"]["model"] == ""
    other = make_tiny_cross_encoder(tmp_path / "other", architecture="distilbert")
    another = tuned(Target.of_index(index), index, tmp_path, rerank=str(other))  # advised against
    assert another["recipe"]["rerank"] == on["recipe"]["rerank"]
    assert not any(row["tied"] for row in another["rerank"]["depths"])


def test_the_command_prints_milliseconds_and_a_result_shows_the_same_table(
    config: BuildConfig, model: Path, tmp_path: Path
) -> None:
    index = tmp_path / "index"
    build_index(own_words(80), index, config)
    arguments = ("tune", index, "--sample", "60", "--strength", "0.5", "--quiet", "--rerank", model)
    file = tmp_path / "result.json"
    done = isotrope(*arguments, "--cache", tmp_path / "cache", "-o", file)
    assert done.returncode == 0, done.stderr
    assert "ms per query" in done.stdout
    assert "advised: " in done.stdout
    (table,) = [table for table in tables_of(read_result(file)) if table.caption.startswith("Reranking")]
    assert [row[0] for row in table.rows] == ["none", *map(str, DEPTHS)]
    assert json.loads(file.read_text())["rerank"]["by"]["cut"] >= 0
    write_result(tmp_path / "again.json", read_result(file))
    assert tables_of(read_result(tmp_path / "again.json")) == tables_of(read_result(file))


def test_what_cannot_be_reranked_is_refused(config: BuildConfig, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"leave out objective=.sts."):
        TuneOptions(objective="sts", rerank="model")
    source = written(own_words(60), tmp_path / "docs.jsonl")
    with pytest.raises(ConfigError, match="the name of the cross-encoder is blank"):
        tuned(Target.of_recipe(config), source, tmp_path, rerank=" ")
