"""Pooling "latte-mix" in an index: trained for it or before, searched by cosine and by divergence."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from indexer import BuildConfig, Document
from indexer.encoders.fitted_state import load_fitted_state
from indexer.encoders.load import load_encoder
from indexer.encoders.token_embeddings import TokenEmbeddings
from indexer.errors import ConfigError, ExistsError, MismatchError, ModelError
from indexer.models.resolution import resolve_spec
from indexer.papers.latte_mix.hellinger import Hellinger
from indexer.papers.latte_mix.model import load_latte_mix
from indexer.papers.latte_mix.settings import LatteMixConfig
from indexer.pipeline.add import add_documents
from indexer.pipeline.refit import refit_index
from indexer.pipeline.train import train_encoder
from indexer.recipe.config import EncoderConfig, WhiteningConfig
from indexer.recipe.index_config import IndexConfig, StoreConfig
from indexer.recipe.run_options import RunOptions
from indexer.store.manifest import load_manifest
from search import SearchEngine, verify_index
from search.evaluation.recall.drawn_queries import draw_queries
from search.index import LiveRows
from search.papers import divergence
from search.papers.divergence import first_reach, rank
from search.papers.divergence_recall import evaluate_divergence
from search.ranking.options import SearchOptions
from tests.directories import snapshot
from tests.documents import DOCUMENTS
from tests.fitted import fit_and_build, papers
from tests.indexer.pipeline.test_static import WORDS, write_table

Rows = npt.NDArray[np.floating]
SMALL = LatteMixConfig(dims=3, classes=4, batch=2, epochs=2)
HELLINGER = WhiteningConfig(kind="hellinger")
MANY = [
    Document(f"m{number}", " ".join(np.random.default_rng(number).choice(WORDS, 6)), metadata={"even": number % 2 == 0})
    for number in range(160)
]


@pytest.fixture
def static(tmp_path: Path) -> BuildConfig:
    path = write_table(tmp_path / "words.txt")
    encoder = EncoderConfig(kind="static", model=str(path), pooling="latte-mix")
    return BuildConfig(
        encoder=encoder, papers=papers(latte_mix=SMALL), whitening=HELLINGER, store=StoreConfig(part_documents=64)
    )


@pytest.fixture
def transformer(tiny_config: BuildConfig) -> BuildConfig:
    encoder = dataclasses.replace(tiny_config.encoder, pooling="latte-mix", layers=(1,))
    return dataclasses.replace(tiny_config, encoder=encoder, papers=papers(latte_mix=SMALL))


def stored(index: Path) -> Rows:
    return np.concatenate([np.load(index / part.name / "embeddings.npy") for part in load_manifest(index).parts])


def js(p: Rows, q: Rows, dims: int) -> float:
    """Return 1 - JS / ln 2 by its definition, averaged over the dimensions."""
    total = 0.0
    for one, other in zip(np.split(p.astype(float), dims), np.split(q.astype(float), dims), strict=True):
        middle = (one + other) / 2
        for side in (one, other):
            total += sum(0.5 * a * np.log(a / m) for a, m in zip(side, middle, strict=True) if a > 0)
    return float(1 - total / dims / np.log(2))


def test_an_embedding_is_the_mean_of_its_tokens_posteriors(transformer: BuildConfig, tmp_path: Path) -> None:
    fit_and_build(DOCUMENTS, tmp_path / "index", transformer)
    latte = load_latte_mix(next((tmp_path / "index/encoder").iterdir()))
    plain = dataclasses.replace(transformer.encoder, pooling="mean")
    texts = [f"{document.title} {document.text}" for document in DOCUMENTS]
    found = stored(tmp_path / "index")
    for row, (states, starts) in zip(
        found, (next(TokenEmbeddings(resolve_spec(plain))([text])) for text in texts), strict=True
    ):
        assert starts.tolist() == [0, len(states)]
        np.testing.assert_allclose(row, latte.posterior(states).mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(found.reshape(len(found), SMALL.dims, -1).sum(axis=2), 1, atol=1e-5)


@pytest.mark.parametrize("kind", ["static", "transformer"])
def test_an_index_trains_it_once_and_keeps_it(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    config: BuildConfig = request.getfixturevalue(kind)
    index = tmp_path / "index"
    fit_and_build(DOCUMENTS, index, config)
    before = load_manifest(index)
    assert before.encoder["dim"] == SMALL.width
    assert fit_and_build(DOCUMENTS, index, config).up_to_date
    add_documents([Document("new", "bees dance on steel cables")], index)
    assert load_manifest(index).fingerprint == before.fingerprint
    assert SearchEngine(index).search("Glass Glass is made of molten sand.", 1)[0].id == "d7"
    verify_index(index)


@pytest.mark.check
def test_workers_do_not_change_a_byte(static: BuildConfig, tmp_path: Path) -> None:
    fit_and_build(MANY, tmp_path / "one", static)
    fit_and_build(MANY, tmp_path / "two", static, RunOptions(workers=2))
    assert snapshot(tmp_path / "one") == snapshot(tmp_path / "two")


@pytest.mark.parametrize("exact", [False, True])
def test_divergence_ranks_as_brute_force_does(static: BuildConfig, tmp_path: Path, exact: bool) -> None:
    fit_and_build(MANY, tmp_path / "index", static)
    engine, rows = SearchEngine(tmp_path / "index"), stored(tmp_path / "index")
    assert isinstance(engine.index.transform, Hellinger)
    for number, query in enumerate(engine.encoder.encode([document.text for document in MANY[:12]], "query")):
        scores = [js(query, row, SMALL.dims) for row in rows]
        best = sorted(range(len(MANY)), key=lambda row: (-np.float32(scores[row]), MANY[row].id))[:5]
        hits = engine.search(MANY[number].text, 5, similarity="js", exact=exact)
        np.testing.assert_allclose([hit.score for hit in hits], [scores[row] for row in best], atol=1e-5)
        if exact:
            assert {hit.id for hit in hits} <= {MANY[row].id for row in best} | {
                MANY[row].id for row in range(len(MANY)) if abs(scores[row] - scores[best[-1]]) < 1e-6
            }


def test_a_proof_holds_and_candidates_are_widened_until_there_is_one(
    static: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(divergence, "CANDIDATES", 4)
    monkeypatch.setattr(divergence, "FEWEST", 12)
    fit_and_build(MANY, tmp_path / "index", static)
    engine, rows = SearchEngine(tmp_path / "index"), stored(tmp_path / "index")
    proven = 0
    for query in rows[:30]:
        (narrow,) = rank(engine.index, query[None], 12)
        (wide,) = engine.search_vectors(query[None], 3, similarity="js", exact=True)
        best = sorted((js(query, row, SMALL.dims) for row in rows), reverse=True)[:3]
        np.testing.assert_allclose([hit.score for hit in wide], best, atol=1e-5)
        if narrow.proven(3):
            proven += 1
            np.testing.assert_allclose(narrow.scores[:3], best, atol=1e-5)
    assert 0 < proven < 30


def test_divergence_minds_filters_groups_and_lowest_scores(static: BuildConfig, tmp_path: Path) -> None:
    fit_and_build(MANY, tmp_path / "index", static)
    engine = SearchEngine(tmp_path / "index")
    hits = engine.search("bees dance", 4, similarity="js", where="even", min_score=0.5)
    assert all(hit.metadata["even"] and hit.score >= 0.5 for hit in hits)
    grouped = engine.search("bees dance", 4, similarity="js", group_by="even")
    assert [hit.metadata["even"] for hit in grouped] in ([True, False], [False, True])
    like = engine.neighbours("m3", 2, similarity="js")
    assert "m3" not in {hit.id for hit in like}
    assert len(engine.search_vectors(stored(tmp_path / "index")[:2], 3, similarity="js")) == 2


def test_divergence_needs_distributions(tiny_config: BuildConfig, tmp_path: Path) -> None:
    fit_and_build(DOCUMENTS, tmp_path / "index", tiny_config)
    with pytest.raises(ConfigError, match='similarity "js" compares categorical distributions'):
        SearchEngine(tmp_path / "index").search("whales", similarity="js")
    with pytest.raises(ConfigError, match="hybrid cannot be combined"):
        SearchOptions(hybrid=True, similarity="js")
    with pytest.raises(ConfigError, match="which needs probabilities"):
        dataclasses.replace(tiny_config, whitening=HELLINGER)


def test_a_refit_goes_from_roots_to_whitening_and_back_without_encoding(static: BuildConfig, tmp_path: Path) -> None:
    index = tmp_path / "index"
    fit_and_build(MANY, index, static)
    before = SearchEngine(index).search("bees dance", 5, similarity="js")
    refit_index(index, ["whitening.kind=whitening", "whitening.strength=0.5"])
    whitened = SearchEngine(index)
    assert whitened.index.transform.kind == "whitening"
    (most,) = rank(whitened.index, stored(index)[:1], len(MANY) - 1, exact=True)
    (whole,) = rank(whitened.index, stored(index)[:1], len(MANY), exact=True)
    assert (most.proven(3), whole.proven(3), len(whole.rows)) == (False, True, len(MANY))
    refit_index(index, ["whitening.kind=hellinger"])
    assert SearchEngine(index).search("bees dance", 5, similarity="js") == before


def test_roots_are_unit_vectors_of_probabilities(static: BuildConfig, tmp_path: Path) -> None:
    fit_and_build(MANY, tmp_path / "index", static)
    rows, engine = stored(tmp_path / "index"), SearchEngine(tmp_path / "index")
    found = engine.index.vectors(np.arange(len(MANY)))
    np.testing.assert_allclose(found, np.sqrt(rows / SMALL.dims), atol=1e-6)


@pytest.fixture
def trained(static: BuildConfig, tmp_path: Path) -> Path:
    train_encoder(MANY, tmp_path / "mix", static)
    return tmp_path / "mix"


def test_what_was_trained_beforehand_is_taken_over_and_not_needed_again(
    static: BuildConfig, trained: Path, tmp_path: Path
) -> None:
    config = BuildConfig.load(trained / "recipe.toml")
    assert config.paper("latte_mix") == SMALL
    fit_and_build(DOCUMENTS, tmp_path / "index", config)
    weights = next((tmp_path / "index/encoder").glob("*/latte-mix.safetensors")).read_bytes()
    assert weights == (trained / "latte-mix.safetensors").read_bytes()
    spec = load_fitted_state(resolve_spec(config))
    assert load_manifest(tmp_path / "index").fingerprint == spec.fingerprint
    trained.rename(tmp_path / "elsewhere")
    engine = SearchEngine(tmp_path / "index")
    add_documents(MANY[:3], tmp_path / "index")
    assert engine.search("bees dance", 1)
    fit_and_build(DOCUMENTS, tmp_path / "own", static)
    assert load_manifest(tmp_path / "own").fingerprint != spec.fingerprint


def test_an_encoder_is_loaded_from_what_was_trained(trained: Path) -> None:
    config = BuildConfig.load(trained / "recipe.toml")
    rows = load_encoder(config).encode(["bees dance"], "document")
    np.testing.assert_allclose(rows.reshape(SMALL.dims, -1).sum(axis=1), 1, atol=1e-5)


def test_what_was_trained_for_another_encoder_or_otherwise_is_refused(
    static: BuildConfig, trained: Path, tmp_path: Path, transformer: BuildConfig
) -> None:
    other = dataclasses.replace(transformer.encoder, fitted=str(trained))
    with pytest.raises(MismatchError, match="token vectors of another encoder"):
        fit_and_build(DOCUMENTS, tmp_path / "index", dataclasses.replace(transformer, encoder=other))
    named = dataclasses.replace(static.encoder, fitted=str(trained))
    changed = papers(latte_mix=dataclasses.replace(SMALL, seed=5))
    with pytest.raises(MismatchError, match=r"seed is 0 there and 5 here.*recipe\.toml"):
        load_encoder(dataclasses.replace(static, encoder=named, papers=changed))
    gone = dataclasses.replace(static.encoder, fitted=str(tmp_path / "nothing"))
    with pytest.raises(ModelError, match="no such folder"):
        load_encoder(gone)
    with pytest.raises(ConfigError, match="which is not trained"):
        EncoderConfig(pooling="mean", fitted=str(trained))
    with pytest.raises(ExistsError, match="already exists"):
        train_encoder(MANY, trained, static)


def test_an_index_with_another_auto_encoder_is_not_mixed(static: BuildConfig, trained: Path, tmp_path: Path) -> None:
    config = BuildConfig.load(trained / "recipe.toml")
    fit_and_build(DOCUMENTS, tmp_path / "index", config)
    train_encoder(DOCUMENTS, tmp_path / "second", static)
    again = BuildConfig.load(tmp_path / "second/recipe.toml")
    with pytest.raises(ConfigError, match="contains embeddings of another fitted encoder"):
        fit_and_build(DOCUMENTS, tmp_path / "index", again, RunOptions(overwrite=True))


def test_an_approximate_index_of_roots_answers_too(static: BuildConfig, tmp_path: Path) -> None:
    config = dataclasses.replace(static, index=IndexConfig(type="HNSW8", recall=0.5))
    fit_and_build(MANY, tmp_path / "index", config)
    exact = SearchEngine(tmp_path / "index").search("bees dance", 3, similarity="js", exact=True)
    near = SearchEngine(tmp_path / "index").search("bees dance", 3, similarity="js")
    assert near[0].score == exact[0].score


def test_the_command_line_trains_builds_and_asks(
    static: BuildConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = _runner()
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps({"id": d.id, "text": d.text}) + "\n" for d in MANY))
    small = [f"--set=papers.latte_mix.{name}={value}" for name, value in (("dims", 3), ("classes", 4), ("batch", 8))]
    table = ["--set=encoder.kind=static", f"--set=encoder.model={static.encoder.model}"]
    docs, mix, index = (str(tmp_path / name) for name in ("docs.jsonl", "mix", "index"))
    run("train", "latte-mix", docs, "-o", mix, *table, *small, "--documents", "50", "--quiet")
    shown = capsys.readouterr().out
    assert "reconstruction" in shown
    assert json.loads((tmp_path / "mix/latte-mix.json").read_text())["about"]["texts"] == 50
    run("build", docs, index, "--config", f"{mix}/recipe.toml", "--set=whitening.kind=hellinger", "--quiet")
    capsys.readouterr()
    run("query", index, "bees dance", "-k", "2", "--similarity", "js", "--json")
    hits = json.loads(capsys.readouterr().out)["hits"]
    assert len(hits) == 2
    assert 0 <= hits[1]["score"] <= hits[0]["score"] <= 1


def _runner() -> Callable[..., Any]:
    from search.cli import cli

    return lambda *arguments: cli.main(list(arguments), standalone_mode=False)


@pytest.mark.parametrize("kind", ["hellinger", "whitening"])
def test_the_exactness_of_the_ranking_is_measured(static: BuildConfig, tmp_path: Path, kind: Any) -> None:
    config = dataclasses.replace(static, whitening=WhiteningConfig(kind=kind))
    fit_and_build(MANY, tmp_path / "index", config)
    rows, engine = stored(tmp_path / "index"), SearchEngine(tmp_path / "index")
    (found,) = evaluate_divergence(engine, 3, sample=20, origin="halves")["results"]
    assert (found["queries"], found["rows"], found["candidates"]) == (20, len(MANY), 100)
    assert (found["proven"] > 0) == (kind == "hellinger")
    shares = []
    for query in engine.encoder.encode(_halves(engine, 20), "query"):
        scores = np.array([js(query, row, SMALL.dims) for row in rows])
        (ranked,) = rank(engine.index, query[None], first_reach(3))
        shares.append(np.mean(ranked.scores[:3] >= np.sort(scores)[-3] - 1e-6))
    assert found["recall"] == pytest.approx(np.mean(shares))


def _halves(engine: SearchEngine, count: int) -> tuple[str, ...]:
    return draw_queries(LiveRows(engine.index), "halves", count).texts
