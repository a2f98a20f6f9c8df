"""Settings picked without labels: the questions, their objective, the choice, and what the command writes."""

import dataclasses
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.config import BuildConfig, EncoderConfig, StoreConfig, WhiteningConfig
from indexer.corpus.document import Document
from indexer.encoders import load_encoder
from indexer.errors import ConfigError, CorpusError, CorruptIndexError, EvaluationError
from indexer.pipeline import build_index
from search.evaluation.settings import Setting, Sweep
from search.evaluation.target import Target
from search.evaluation.tune.choice import MeasuredSetting, choose
from search.evaluation.tune.tune import DEFAULT_CENTRES, TuneOptions, full_sweep, run_tune, tuned_recipe
from search.evaluation.tune.unlabelled import DrawnPair, draw_copies, draw_pairs, reciprocal_ranks
from tests.oracles import whitening_projection
from tests.search.cli.test_cli import isotrope

WORDS = ("whale", "song", "deep", "sea", "library", "data", "the", "of", "and", "in", "to", "for", "sing", "a")
COLUMNS = ("title", "text")


def corpus(size: int, titles: bool = True) -> list[Document]:
    """Documents of three sentences about two words of their own each."""
    found = []
    for number in range(size):
        chance = random.Random(number)
        own = chance.sample(WORDS, 3)
        sentences = [" ".join(chance.choices([*own, *own, *WORDS], k=9)).capitalize() + "." for _ in range(3)]
        found.append(Document(f"d{number}", " ".join(sentences), " ".join(own) if titles else None))
    return found


def written(documents: list[Document], path: Path) -> Path:
    rows = [{"id": one.id, "title": one.title, "text": one.text} for one in documents]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def judged(documents: list[Document], folder: Path) -> Path:
    """A BEIR folder whose queries are the titles of the first twenty documents."""
    (folder / "qrels").mkdir(parents=True)
    written(documents, folder / "corpus.jsonl")
    queries = [{"_id": f"q{n}", "text": documents[n].title} for n in range(20)]
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in queries))
    (folder / "qrels/test.tsv").write_text("".join(f"q{n}\td{n}\t1\n" for n in range(20)))
    return folder


# --- the questions ---------------------------------------------------------------------------------------------------


def test_a_question_and_its_document_are_all_of_the_document_and_share_no_place() -> None:
    documents = {one.id: one for one in corpus(80)}
    pairs = draw_pairs(documents.values(), COLUMNS, 80)
    assert {pair.kind for pair in pairs} == {"sentence"}
    for pair in pairs:
        assert f"{pair.query} {pair.document}" == documents[pair.id].text
        assert pair.query.count(".") == 1


def test_a_heading_or_a_very_long_sentence_asks_for_nothing() -> None:
    text = "Methods.\n" + "word " * 50 + "end. A whale sings in the deep sea. The library is shut."
    (pair,) = {pair for pair in draw_pairs([Document(f"d{n}", f"{text} {n} {n}.") for n in range(60)], COLUMNS, 60)
               if pair.id == "d7"}  # fmt: skip
    assert pair.query == "A whale sings in the deep sea."
    assert pair.document.startswith("Methods. word word")


def test_the_title_asks_for_a_text_of_one_sentence() -> None:
    documents = [
        Document(f"d{n}", f"Song {n} of the whale is in the deep sea library.", f"Song {n}") for n in range(60)
    ]
    for pair in draw_pairs(documents, COLUMNS, 60):
        assert pair.kind == "title"
        assert pair.document == f"{pair.query} of the whale is in the deep sea library."


def test_the_questions_are_the_same_in_any_order_of_the_corpus() -> None:
    documents = corpus(120)
    assert draw_pairs(documents, COLUMNS, 60) == draw_pairs(reversed(documents), COLUMNS, 60)
    assert draw_copies(documents, COLUMNS, 60) == draw_copies(reversed(documents), COLUMNS, 60)


def test_a_smaller_sample_is_part_of_a_larger_one() -> None:
    documents = corpus(120)
    larger = draw_pairs(documents, COLUMNS, 100)
    assert set(draw_pairs(documents, COLUMNS, 60)) <= set(larger)


def test_documents_without_titles_and_of_one_sentence_are_cut_in_a_window() -> None:
    documents = [Document(f"d{n}", f"{n} " + " ".join(random.Random(n).choices(WORDS, k=12))) for n in range(60)]
    assert {pair.kind for pair in draw_pairs(documents, COLUMNS, 60)} == {"window"}


def test_only_columns_that_are_encoded_are_asked_about() -> None:
    texts = [f"song {n} of the {n} whale is {n} in the deep {n} sea" for n in range(60)]
    documents = [Document(f"d{n}", text, f"title {n}") for n, text in enumerate(texts)]
    for pair in draw_pairs(documents, ("text",), 60):
        assert pair.kind == "window"
        assert "title" not in f"{pair.query} {pair.document}"


def test_scripts_without_spaces_are_cut_by_characters() -> None:
    texts = [
        f"\u9cb8\u9c7c{n}\u5728\u6df1\u6d77\u4e2d\u5531\u6b4c\u3002\u6ca1\u6709\u4eba\u542c\u89c1\u5b83\u7684\u6b4c\u58f0{n}\u3002"
        for n in range(60)
    ]
    documents = [Document(f"d{n}", text) for n, text in enumerate(texts)]
    for pair in draw_pairs(documents, COLUMNS, 60):
        assert pair.kind == "sentence"
        assert pair.query + pair.document == texts[int(pair.id[1:])]
    for pair in draw_copies(documents, COLUMNS, 60):
        assert set(pair.query) - set(" 0123456789") <= set(pair.whole)
    one_sentence = [Document(f"d{n}", text.replace("\u3002", "")) for n, text in enumerate(texts)]
    windows = draw_pairs(one_sentence, COLUMNS, 60)
    assert {pair.kind for pair in windows} == {"window"}
    assert not any(" " in pair.query for pair in windows if not any(map(str.isdigit, pair.query)))


def test_equal_documents_ask_once() -> None:
    documents = [*corpus(60), *(Document(f"copy{n}", "a " * 20) for n in range(200))]
    rests = [pair.document for pair in draw_pairs(documents, COLUMNS, 260)]
    assert len(rests) == len(set(rests))


def test_copies_are_two_picks_of_one_word_in_four() -> None:
    documents = [Document(f"d{n}", " ".join(f"{n}-{word}" for word in range(200))) for n in range(60)]
    for pair in draw_copies(documents, COLUMNS, 60):
        for side in (pair.query.split(), pair.document.split()):
            assert 25 <= len(side) <= 80
        assert pair.query != pair.document
        assert pair.fitted_on == pair.whole == " ".join(f"{pair.id[1:]}-{word}" for word in range(200))


def test_too_few_questions_are_an_error_with_the_way_out() -> None:
    documents = [*corpus(30), *(Document(f"s{n}", "too short") for n in range(100))]
    with pytest.raises(EvaluationError, match=r"(?s)only 30 of 130 documents .* expected 50.* \(--beir\)"):
        draw_pairs(documents, COLUMNS, 1500)


# --- the objective ---------------------------------------------------------------------------------------------------


@given(st.integers(1, 30), st.integers(0, 10_000))
def test_reciprocal_ranks_count_better_documents_and_half_of_the_ties(size: int, seed: int) -> None:
    chance = np.random.default_rng(seed)
    queries = chance.integers(-1, 2, (size, 3)).astype(np.float32)
    documents = chance.integers(-1, 2, (size, 3)).astype(np.float32)
    for row, value in enumerate(reciprocal_ranks(queries, documents)):
        scores = [float(queries[row] @ document) for document in documents]
        better = sum(score > scores[row] for score in scores)
        equal = sum(score == scores[row] for score in scores) - 1
        assert value == pytest.approx(1 / (1 + better + equal / 2))


# --- the choice ------------------------------------------------------------------------------------------------------


def candidate(
    score: float, strength: Any, centre: str = "role", noise: int = 0, layers: tuple[int, ...] = (-1,)
) -> Any:
    """A setting whose values are `score` on average; noise of its own unless 0."""
    spread = np.random.default_rng(noise).normal(0, 0.3, 400) if noise else np.zeros(400)
    values = score + spread - spread.mean()
    whitening = WhiteningConfig(strength=strength, centre=centre)  # type: ignore[arg-type]
    return MeasuredSetting(Setting("mean", layers, whitening), values, 384)


def test_raw_is_taken_when_nothing_can_be_told_from_it() -> None:
    raw, soft = candidate(0.500, "none", "none", 1), candidate(0.505, 0.25, noise=2)
    choice = choose([raw, soft])
    assert choice.best is soft
    assert choice.taken is raw
    assert "whitening earns nothing that shows" in choice.reason


def test_raw_that_scores_highest_is_taken_and_said_to_be_best() -> None:
    raw = candidate(0.6, "none", "none")
    choice = choose([raw, candidate(0.5, 0.25), candidate(0.4, 1.0)])
    assert choice.taken is choice.best is choice.raw is raw
    assert "raw embeddings scored highest" in choice.reason
    assert choice.gain.value == 0


def test_a_setting_that_is_clearly_best_is_taken() -> None:
    best = candidate(0.7, 1.0, "common")
    choice = choose([candidate(0.5, "none", "none"), candidate(0.6, 0.25), best])
    assert choice.taken is best
    assert choice.reason == "it scored highest"
    assert choice.gain.value == pytest.approx(0.2)
    assert choice.gain.decided
    assert best.bytes == 4 * 384  # of float32


def test_the_raw_embeddings_compared_with_are_the_best_of_several_layers() -> None:
    low, high = candidate(0.4, "none", "none", layers=(1,)), candidate(0.5, "none", "none", layers=(-1,))
    for raws in ([low, high], [high, low]):
        assert choose([*raws, candidate(0.7, 0.5)]).raw is high


def test_of_settings_that_cannot_be_told_apart_the_middle_strength_with_role_means_is_taken() -> None:
    raw, middle = candidate(0.5, "none", "none"), candidate(0.698, 0.375, noise=3)
    soft, hard = candidate(0.697, 0.25, noise=5), candidate(0.699, 0.5, noise=6)
    choice = choose([raw, candidate(0.7, 0.5, "none", noise=4), hard, soft, middle])
    assert choice.taken is middle
    assert "the middle of the plainest of 4 settings" in choice.reason
    assert choose([raw, candidate(0.7, 0.5, "none", noise=4), hard, soft]).taken is soft


def test_what_is_taken_is_told_from_raw_also_when_the_middle_is_not() -> None:
    """Role means are the plainest, but here they do no good."""
    raw, best = candidate(0.5, "none", "none"), candidate(0.52, 0.5, "common", noise=4)
    noisy = candidate(0.5, 0.25, noise=5)
    choice = choose([raw, best, noisy])
    assert any(one is noisy for one in choice.tied)
    assert choice.taken is best
    assert choice.gain.value > 0


@given(st.integers(0, 10_000))
@settings(max_examples=25)
def test_nothing_below_raw_is_ever_taken(seed: int) -> None:
    chance = np.random.default_rng(seed)
    kinds: list[Any] = [("none", "none"), *((s, c) for s in (0.0, 0.25, 0.5, 1.0) for c in DEFAULT_CENTRES)]
    measured = [
        MeasuredSetting(Setting("mean", (-1,), WhiteningConfig(strength=s, centre=c)), chance.random(60) ** 2, 8)
        for s, c in kinds
    ]
    choice = choose(measured)
    assert choice.taken.score >= choice.raw.score
    assert choice.taken is choice.raw or choice.told(choice.raw, choice.taken)


def test_layers_are_those_of_the_best() -> None:
    raw = candidate(0.3, "none", "none")
    best, other = candidate(0.7, 0.75, noise=4, layers=(1, -1)), candidate(0.699, 0.25, noise=5)
    assert choose([raw, best, other]).taken is best


def test_raw_and_strength_0_are_always_among_what_is_tried() -> None:
    own = Setting("mean", (-1,), WhiteningConfig())
    settings = full_sweep(Sweep(strengths=(0.75,), centres=("common",), shrinkages=(0.0,))).settings(own)
    assert [one.whitening.strength for one in settings] == ["none", 0.0, 0.75]
    assert {one.whitening.centre for one in full_sweep(Sweep()).settings(own) if not one.raw} == set(DEFAULT_CENTRES)


# --- from a corpus to a recipe ---------------------------------------------------------------------------------------


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
    """Mean reciprocal rank of every setting of `SMALL` and its controls, from the definitions, a text at a time."""
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
    """An index is fitted on its own embeddings, a corpus on what the questions ask for."""
    documents = corpus(130)
    draw = draw_pairs if objective == "retrieval" else draw_copies
    pairs = draw(documents, COLUMNS, 1500)
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
    assert "in at most 40 bytes" in result["choice"]["reason"]
    raw = result["choice"]["raw"]["value"]
    assert result["choice"]["gain"]["value"] == pytest.approx(taken["value"] - raw)


def test_dimensions_that_are_asked_for_are_chosen_from(config: BuildConfig, tmp_path: Path) -> None:
    source, subject = written(corpus(150), tmp_path / "docs.jsonl"), Target.of_recipe(config)
    sweep = Sweep(strengths=(0.5,), shrinkages=(0.0,), dims=(6, 12))
    result = run_tune(subject, TuneOptions((str(source),)), sweep, tmp_path)
    asked = {row["dimensions"]: row["value"] for row in result["results"] if row["dim"]}
    assert asked.keys() == {6, 12}
    assert result["recipe"]["whitening"]["dim"] == max(asked, key=lambda dim: asked[dim])
    with pytest.raises(ConfigError, match=r"--dim 5000; expected 0 \(all\) to"):
        run_tune(subject, TuneOptions((str(source),)), Sweep(strengths=(0.5,), dims=(5000,)), tmp_path)


def test_pooling_auto_stays_unless_another_is_taken(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    config = BuildConfig(encoder=EncoderConfig(model=str(tiny_model("bert")), max_length=64))
    auto = dataclasses.replace(config, encoder=dataclasses.replace(config.encoder, pooling="auto"))
    spec = Target.of_recipe(config).spec
    identity = dataclasses.replace(spec.identity, query_prefix="query: ", max_length=48)
    subject = Target(auto, dataclasses.replace(spec, identity=identity))
    own = tuned_recipe(Setting("mean", (1,), WhiteningConfig()), subject).encoder
    assert (own.pooling, own.query_prefix, own.layers) == ("auto", "", (1,))
    other = tuned_recipe(Setting("cls", (-1,), WhiteningConfig()), subject).encoder
    assert (other.pooling, other.query_prefix, other.max_length) == ("cls", "query: ", 48)


def test_an_index_is_judged_on_its_own_layers_only(config: BuildConfig, tmp_path: Path) -> None:
    documents = corpus(80)
    build_index(documents, tmp_path / "index", config)
    folder = judged(documents, tmp_path / "beir")
    task, subject = TuneOptions((str(tmp_path / "index"),), beir=folder), Target.of_index(tmp_path / "index")
    with pytest.raises(ConfigError, match="holds embeddings of layers -1 with mean pooling only"):
        run_tune(subject, task, Sweep(layers=((0,),), strengths=(0.5,)), tmp_path / "cache")
    run_tune(subject, task, SMALL, tmp_path / "cache")


def test_judgements_of_another_corpus_are_refused(config: BuildConfig, tmp_path: Path) -> None:
    folder = judged(corpus(80), tmp_path / "beir")
    other = written(corpus(60), tmp_path / "other.jsonl")
    with pytest.raises(ConfigError, match="judges that folder's own corpus; name the folder itself"):
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
    with pytest.raises(EvaluationError, match="1 embeddings hold NaN"):
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
    assert "taken: mean -1" in done.stdout
    assert "Frontier" in done.stdout
    text = (tmp_path / "tuned.toml").read_text()
    assert text.startswith("# Found by: isotrope tune")
    tuned = BuildConfig.load(tmp_path / "tuned.toml")
    assert tuned.encoder == config.encoder
    assert isotrope("build", source, tmp_path / "index", "--config", tmp_path / "tuned.toml").returncode == 0


def test_the_result_is_json_when_asked_for_by_name(config: BuildConfig, tmp_path: Path) -> None:
    source = written(corpus(120), tmp_path / "docs.jsonl")
    (tmp_path / "base.toml").write_text(config.to_toml())
    done = isotrope("tune", source, "--config", tmp_path / "base.toml", "--cache", tmp_path / "cache", "--json",
                    "--objective", "sts", "--strength", "0.5", "-o", tmp_path / "tuned.json")  # fmt: skip
    assert json.loads(done.stdout) == json.loads((tmp_path / "tuned.json").read_text())
    assert json.loads(done.stdout)["provenance"]["protocol"]["objective"] == "sts"


def test_an_index_has_one_pooling_and_average_of_layers(config: BuildConfig, tmp_path: Path) -> None:
    """Others are measured too, since only the pairs are encoded, but need an index of their own to be used."""
    build_index(corpus(80), tmp_path / "index", config)
    sweep = Sweep(layers=((-1,), (1, -1)), strengths=(0.5,), shrinkages=(0.0,))
    result = run_tune(Target.of_index(tmp_path / "index"), TuneOptions((str(tmp_path / "index"),)), sweep, tmp_path)
    assert {tuple(row["layers"]) for row in result["results"]} == {(-1,), (1, -1)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sample": 49}, "--sample is 49; expected at least 50"),
        ({"max_bytes": -4}, "--max-bytes is -4"),
        ({"objective": "sts", "beir": Path("x")}, "--beir judges retrieval"),
    ],
)
def test_tasks_that_make_no_sense_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TuneOptions(("docs.jsonl",), **arguments)


def test_a_budget_below_a_dimension_is_refused(config: BuildConfig, tmp_path: Path) -> None:
    source = written(corpus(60), tmp_path / "docs.jsonl")
    with pytest.raises(ConfigError, match="--max-bytes 3 leaves no dimension"):
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
        ([source, "--index", tmp_path / "index"], "isotrope tune INDEX. Leave out --index"),
        ([tmp_path / "index", source], "is an index; it is tuned alone"),
        ([tmp_path / "index", "--format", "jsonl"], "an index needs none"),
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


def test_pairs_are_plain_values() -> None:
    assert len({DrawnPair("a", "window", "q", "d"), DrawnPair("a", "window", "q", "d")}) == 1
