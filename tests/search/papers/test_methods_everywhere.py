"""Old commands with new kinds of encoder, pooling and transform: all run, and their output is true."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexer import BuildConfig, Document, build_index
from indexer.errors import ConfigError, EvaluationError
from indexer.papers.flow import FlowConfig
from indexer.papers.latte_mix.divergence import js_similarities
from indexer.papers.latte_mix.settings import LatteMixConfig
from indexer.recipe.config import EncoderConfig, WhiteningConfig
from indexer.recipe.corpus_config import ChunkConfig
from indexer.recipe.index_config import IndexConfig, StoreConfig
from indexer.store.manifest import load_manifest
from search import SearchEngine
from search.evaluation.sts.data import read_tasks
from search.evaluation.sweep import Sweep
from search.evaluation.target import Target
from search.papers.divergence import rank
from search.papers.method_settings import MethodsOptions
from search.papers.methods import evaluate_methods
from tests.documents import DOCUMENTS
from tests.fitted import fit_and_build, papers
from tests.indexer.papers.test_latte_mix import MANY
from tests.indexer.pipeline.test_static import WORDS, vectors
from tests.playground import lay_out
from tests.search.cli.test_cli import isotrope

SMALL = LatteMixConfig(dims=3, classes=4, batch=4)
FLOW = WhiteningConfig(kind="flow")
PAPERS = papers(latte_mix=SMALL, flow=FlowConfig(levels=1, depth=1, width=4))
NONE = WhiteningConfig(strength="none")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the playground, and a table of all its words."""
    root = tmp_path_factory.mktemp("everywhere")
    lay_out(root)
    rows = [json.loads(line) for line in (root / "docs.jsonl").read_text().splitlines()]
    texts = [f"{row['title']} {row['text']}" for row in rows]
    words = sorted({word for text in texts for word in text.lower().replace(".", "").split()} | set(WORDS))
    values = np.random.default_rng(5).normal(size=(len(words), 10)).round(3)
    lines = [" ".join([word, *map(str, row)]) for word, row in zip(words, values.tolist(), strict=True)]
    (root / "words.txt").write_text("\n".join(lines) + "\n")
    return root


def static(folder: Path, whitening: WhiteningConfig | None = None, **encoder: Any) -> BuildConfig:
    named = EncoderConfig(kind="static", model=str(folder / "words.txt"), **encoder)
    store = StoreConfig(part_documents=64)
    return BuildConfig(encoder=named, whitening=whitening or WhiteningConfig(), store=store, papers=PAPERS)


KINDS: dict[str, Callable[[Path], BuildConfig]] = {
    "mean": static,
    "sif": lambda folder: static(folder, NONE, pooling="sif"),
    "flow": lambda folder: static(folder, FLOW),
    "latte-mix": lambda folder: static(folder, WhiteningConfig(kind="hellinger"), pooling="latte-mix"),
}


@pytest.fixture(
    scope="module",
    params=["mean", "latte-mix", *(pytest.param(kind, marks=pytest.mark.check) for kind in ("sif", "flow"))],
)
def built(request: pytest.FixtureRequest, folder: Path) -> tuple[str, Path]:
    """An index of each kind."""
    recipe, index = folder / f"{request.param}.toml", folder / f"{request.param}-index"
    recipe.write_text(_toml(KINDS[request.param](folder)))
    done = isotrope("build", folder / "docs.jsonl", index, "--config", recipe, "--quiet")
    assert done.returncode == 0, done.stderr
    return request.param, index


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    from search.cli import cli

    def call(*arguments: Any) -> str:
        capsys.readouterr()
        cli.main([str(argument) for argument in arguments], standalone_mode=False)
        return capsys.readouterr().out

    return call


def _toml(config: BuildConfig) -> str:
    import tomli_w

    return tomli_w.dumps(config.to_dict())


def test_every_command_takes_every_kind(
    built: tuple[str, Path], folder: Path, run: Callable[..., str], tmp_path: Path
) -> None:
    kind, index = built
    assert "1,000,000,000" not in run("inspect", index)
    run("report", index, "-o", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "1,000,000,000" not in page
    assert ("have the same centre" in page) == (kind == "sif")
    run("evaluate", "retrieval", folder / "scifact", "--index", index, "--no-bm25", "--quiet")
    run("evaluate", "recall", index, "--sample", "20", "--quiet")
    run("evaluate", "sts", folder / "sts-folder", "--index", index, "--quiet")
    run("evaluate", "rte", folder / "RTE/dev.tsv", "--index", index, "--quiet")
    run("dedup", index, "--threshold", "0.99", "-o", tmp_path / "duplicates.parquet")
    run("export", index, "--to", "parquet", "-o", tmp_path / "vectors.parquet")
    run("verify", index)


def test_tuning_has_raw_embeddings_for_a_control_and_writes_a_recipe_that_builds(
    built: tuple[str, Path], folder: Path, run: Callable[..., str], tmp_path: Path
) -> None:
    kind, index = built
    run("tune", index, "--strength", "0.5", "--centre", "common", "-o", tmp_path / "tuned.toml")
    tuned = BuildConfig.load(tmp_path / "tuned.toml")
    assert tuned.encoder.layers == (-1,)
    assert tuned.whitening.kind == "whitening"
    if kind == "mean":
        build_index(iter(DOCUMENTS), tmp_path / "again", tuned)
    with pytest.raises(ConfigError, match="leave out --transform"):
        run("tune", index, "--transform", "flow")


@pytest.mark.parametrize("pooling", ["mean", "sif", "latte-mix"])
def test_long_documents_are_cut_before_what_the_pooling_needs_is_fitted(
    pooling: Any, folder: Path, tmp_path: Path
) -> None:
    config = static(folder, pooling=pooling)
    config = dataclasses.replace(config, chunk=ChunkConfig(tokens=8, overlap=2))
    text = " ".join(WORDS)
    fit_and_build([Document("long", text), *DOCUMENTS[:3]], tmp_path / "index", config)
    manifest = load_manifest(tmp_path / "index")
    assert manifest.rows > manifest.documents == 4


@pytest.fixture(scope="module")
def grouped(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return many documents in three groups of roots."""
    config = static(folder, WhiteningConfig(kind="hellinger"), pooling="latte-mix")
    documents = [
        dataclasses.replace(document, metadata={"group": number % 3 if number % 5 else 3})
        for number, document in enumerate(MANY)
    ]
    index = tmp_path_factory.mktemp("grouped") / "index"
    fit_and_build(documents, index, config)
    return index


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_exact_divergence_is_exact_for_groups_too(grouped: Path, k: int) -> None:
    engine = SearchEngine(grouped)
    rows = engine.index.embeddings(np.arange(len(engine)))
    groups = [document.metadata["group"] for document in engine.index.documents.all_documents()]
    for query in rows[:20]:
        scores = js_similarities(query[None], rows, SMALL.dims)[0]
        best: dict[int, float] = {}
        for group, score in zip(groups, scores.tolist(), strict=True):
            best[group] = max(score, best.get(group, -1))
        expected = sorted(best.values(), reverse=True)[:k]
        (hits,) = engine.search_vectors(query[None], k, similarity="js", exact=True, group_by="group")
        np.testing.assert_allclose([hit.score for hit in hits], expected, atol=1e-5)


def test_nothing_is_proved_where_not_every_row_was_compared(folder: Path, tmp_path: Path) -> None:
    config = static(folder, WhiteningConfig(kind="hellinger"), pooling="latte-mix")
    config = dataclasses.replace(config, index=IndexConfig(type="HNSW4", recall=0.1))
    fit_and_build(MANY, tmp_path / "index", config)
    index = SearchEngine(tmp_path / "index").index
    for query in index.embeddings(np.arange(10)):
        assert not rank(index, query[None], 20)[0].proven(3)
        assert rank(index, query[None], 100, exact=True)[0].proven(3)


def test_query_vectors_that_are_no_distributions_are_refused(grouped: Path) -> None:
    noise = np.random.default_rng(0).normal(size=(2, SMALL.width)).astype(np.float32)
    with pytest.raises(ConfigError, match="query vector 1 is not made of distributions"):
        SearchEngine(grouped).search_vectors(noise, similarity="js")


def test_the_mean_of_queries_is_measured_where_the_index_has_none(
    folder: Path, run: Callable[..., str], tmp_path: Path
) -> None:
    figures = []
    for number, whitening in enumerate((NONE, WhiteningConfig(strength=0.5))):
        recipe, index = tmp_path / f"{number}.toml", tmp_path / f"index{number}"
        recipe.write_text(_toml(static(folder, whitening, pooling="sif")))
        run("build", folder / "scifact/corpus.jsonl", index, "--config", recipe, "--quiet")
        asked = ("--strength", "0.5", "--centre", "role", "--no-bm25", "--json", "--quiet")
        result = json.loads(run("evaluate", "retrieval", folder / "scifact", "--index", index, *asked))
        figures.append(result["results"][0]["measure"]["nDCG@10"]["value"])
    assert figures[0] == pytest.approx(figures[1], abs=1e-6)


def test_a_picture_of_retrieval_draws_other_kinds_as_levels(
    folder: Path, run: Callable[..., str], tmp_path: Path
) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(_toml(static(folder, dataclasses.replace(FLOW, kind="whitening"))))
    kinds = ("--transform", "flow", "--transform", "whitening", "--strength", "0.5", "--strength", "1")
    plot = ("--no-bm25", "--plot", tmp_path / "plot.svg", "--quiet")
    run("evaluate", "retrieval", folder / "scifact", "--config", recipe, *kinds, *plot)
    assert "flow" in (tmp_path / "plot.svg").read_text()


def test_reports_show_the_figures_of_the_new_results(
    folder: Path, run: Callable[..., str], tmp_path: Path, grouped: Path
) -> None:
    table = ("--set", "encoder.kind=static", "--set", f"encoder.model={folder / 'glove.6B.300d.txt'}")
    words = json.loads(run("evaluate", "words", folder / "SimLex-999.txt", *table, "-o", tmp_path / "w.json", "--json"))
    run("evaluate", "recall", grouped, "--similarity", "js", "--sample", "9", "-o", tmp_path / "js.json", "--quiet")
    run("report", grouped, "-o", tmp_path / "page.html", "--results", tmp_path / "w.json", "--results",
        tmp_path / "js.json")  # fmt: skip
    page = (tmp_path / "page.html").read_text()
    assert f"{words['results'][0]['value']:.2f}" in page
    assert "Ranking by divergence" in page


def test_roots_are_refused_of_what_is_no_probability(folder: Path) -> None:
    with pytest.raises(ConfigError, match="square roots need probabilities"):
        Target.of_recipe(static(folder)).settings(Sweep(kinds=("hellinger",)))


def test_a_backend_that_was_asked_for_is_not_replaced(tiny_config: BuildConfig, run: Callable[..., str]) -> None:
    from indexer.recipe.run_options import RunOptions

    subject = Target.of_recipe(tiny_config, RunOptions(backend="numpy"))
    settings = subject.settings(Sweep(poolings=("sbert-wk",), layers=((0, 1, 2),)))
    with pytest.raises(ConfigError, match="numpy does not support"):
        subject.states(settings).encode(["whale"])


def test_methods_without_training_have_one_untrained_row(folder: Path) -> None:
    config = dataclasses.replace(static(folder), papers=papers(latte_mix=dataclasses.replace(SMALL, epochs=0)))
    plan = MethodsOptions(("mean", "latte-mix"), corpus=folder / "sentences.txt", seeds=2)
    rows = evaluate_methods(Target.of_recipe(config), read_tasks(folder / "sts-folder"), plan)["results"]
    drawn = [row for row in rows if row["method"] == "latte-mix"]
    assert {row["setting"].split()[1] for row in drawn} == {"untrained"}
    assert all(row["seeds"] == [0, 1] for row in drawn)


def test_methods_say_when_mean_pooling_has_no_correlation(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "same.tsv").write_text("score\tsentence1\tsentence2\n" + "".join(f"{n}\ta b\ta b\n" for n in range(5)))
    with pytest.raises(EvaluationError, match="mean pooling, the control of all methods, has no correlation"):
        evaluate_methods(Target.of_recipe(static(folder)), read_tasks(tmp_path / "same.tsv"), MethodsOptions(("mean",)))


def test_the_vectors_of_this_table_are_those_of_the_other_tests() -> None:
    assert len(vectors()) == len(WORDS)
