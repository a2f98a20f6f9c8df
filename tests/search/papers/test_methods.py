"""`evaluate methods`: every method compared with mean pooling, on the same pairs and resamples."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from indexer import BuildConfig
from indexer.encoders.load import load_encoder
from indexer.encoders.token_embeddings import TokenEmbeddings
from indexer.errors import ConfigError, CorpusError
from indexer.models.resolution import resolve_spec
from indexer.papers.flow import FlowConfig
from indexer.papers.latte_mix.settings import LatteMixConfig
from indexer.progress import NoProgress
from indexer.recipe.config import EncoderConfig
from search.evaluation.sts.data import Task, read_tasks
from search.evaluation.sts.sts import StsOptions, evaluate_sts
from search.evaluation.sweep import Sweep
from search.evaluation.target import Target
from search.papers.commands import _METHODS
from search.papers.method_settings import METHODS, MethodsOptions, methods_of, sbert_wk_layers
from search.papers.methods import NOT_RUN, evaluate_methods
from search.papers.mixtures import SentenceTokens, TrainingTokens
from tests.fitted import papers
from tests.sts_tasks import write_tasks

SMALL = LatteMixConfig(dims=4, classes=6, batch=8)
FLOW = FlowConfig(levels=2, depth=1, width=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write STS tasks, a corpus of their sentences, and a table of their words."""
    root = tmp_path_factory.mktemp("methods")
    write_tasks(root / "sts")
    texts = sentences(read_tasks(root / "sts"))
    (root / "train.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    words = sorted({word for text in texts for word in text.lower().replace(".", " ").split()})
    rows = np.random.default_rng(0).normal(size=(len(words), 12)).round(3)
    lines = [" ".join([word, *map(str, row)]) for word, row in zip(words, rows.tolist(), strict=True)]
    (root / "words.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return root


def sentences(tasks: Sequence[Task]) -> list[str]:
    found = [
        text for task in tasks for subset in task.subsets for side in (subset.first, subset.second) for text in side
    ]
    return list(dict.fromkeys(found))


@pytest.fixture(scope="module")
def config(folder: Path) -> BuildConfig:
    encoder = EncoderConfig(kind="static", model=str(folder / "words.txt"))
    return BuildConfig(encoder=encoder, papers=papers(latte_mix=SMALL, flow=FLOW))


@pytest.fixture(scope="module")
def result(folder: Path, config: BuildConfig) -> dict[str, Any]:
    plan = MethodsOptions(methods_of(["all"], False), ("mean", "all"), corpus=folder / "train.txt", seeds=2)
    return evaluate_methods(Target.of_recipe(config), read_tasks(folder / "sts"), plan).to_dict()


def average(result: dict[str, Any], setting: str, protocol: str = "mean") -> dict[str, Any]:
    (row,) = [
        row
        for row in result["results"]
        if (row["setting"], row["protocol"], row["task"]) == (setting, protocol, "average")
    ]
    return dict(row)


def test_a_table_has_every_method_but_those_of_layers(result: dict[str, Any]) -> None:
    assert {row["method"] for row in result["results"]} == set(METHODS) - {"cls", "layers", "sbert-wk"}
    settings = {row["setting"] for row in result["results"]}
    assert {f"latte-mix {similarity}" for similarity in ("cosine", "js", "l2")} <= settings
    assert {"latte-mix untrained js", "auto-encoder cosine", "normal-vae mixture l2", "sif 1 removed"} <= settings


def test_the_command_line_offers_what_the_library_has() -> None:
    assert ("all", *METHODS) == _METHODS


def test_settings_have_the_figures_of_the_plain_evaluation(
    folder: Path, config: BuildConfig, result: dict[str, Any]
) -> None:
    subject = Target.of_recipe(config)
    sweep = Sweep(poolings=("mean", "max"), strengths=("none", 0.5), centres=("common",))
    plain = evaluate_sts(subject, read_tasks(folder / "sts"), StsOptions(subject.settings(sweep), ("mean", "all")))
    shared = 0
    for row in plain["results"]:
        same = [
            other
            for other in result["results"]
            if all(other[name] == row[name] for name in ("setting", "protocol", "task"))
        ]
        for other in same:
            shared += 1
            assert {name: other[name] for name in ("spearman", "low", "high")} == {
                name: row[name] for name in ("spearman", "low", "high")
            }
    assert shared > 10


def test_seeds_are_averaged_with_their_spread_and_settings_have_none(result: dict[str, Any]) -> None:
    drawn, fixed = average(result, "latte-mix js"), average(result, "mean raw")
    assert drawn["seeds"] == [0, 1]
    assert drawn["spearman"] == pytest.approx(np.mean(drawn["by_seed"]))
    assert drawn["standard_deviation"] == pytest.approx(np.std(drawn["by_seed"], ddof=1))
    assert (fixed["seeds"], fixed["standard_deviation"], fixed["against_mean"]) == ([], None, None)
    assert drawn["against_mean"]["value"] == pytest.approx(drawn["spearman"] - fixed["spearman"])
    assert average(result, "mean flow common")["seeds"] == [0, 1]


def test_training_is_told_from_the_untrained_control(result: dict[str, Any]) -> None:
    trained, untrained = average(result, "latte-mix cosine"), average(result, "latte-mix untrained cosine")
    assert trained["by_seed"] != untrained["by_seed"]
    assert (untrained["trained_texts"], untrained["epochs"]) == (0, 0)
    assert trained["trained_texts"] > 0


def test_published_rows_say_what_cannot_be_run(result: dict[str, Any]) -> None:
    rows = {row["method"]: row for row in result["published"]}
    assert rows["IS-BERT-NLI"]["status"] == NOT_RUN == "not implemented: trains the encoder"
    assert rows["IS-BERT-NLI"]["figures"]["Avg"] == pytest.approx(0.6658)
    assert {row["status"] for name, row in rows.items() if not name.startswith("IS-BERT")} == {"published"}


def test_the_same_run_gives_the_same_figures(folder: Path, config: BuildConfig, result: dict[str, Any]) -> None:
    plan = MethodsOptions(("mean", "latte-mix"), corpus=folder / "train.txt", seeds=2)
    again = evaluate_methods(Target.of_recipe(config), read_tasks(folder / "sts"), plan, folder / "cache").to_dict()
    kept = evaluate_methods(Target.of_recipe(config), read_tasks(folder / "sts"), plan, folder / "cache").to_dict()
    assert again["results"] == kept["results"]
    assert average(again, "latte-mix l2")["by_seed"] == average(result, "latte-mix l2")["by_seed"]


def test_a_transformer_has_layers_too(folder: Path, tiny_config: BuildConfig) -> None:
    encoder = dataclasses.replace(tiny_config.encoder, max_length=24)
    config = dataclasses.replace(tiny_config, encoder=encoder, papers=papers(latte_mix=SMALL))
    methods = methods_of(["cls", "layers", "sbert-wk", "sif", "latte-mix"], True)
    plan = MethodsOptions(methods, corpus=folder / "train.txt", documents=20, seeds=1)
    found = evaluate_methods(Target.of_recipe(config), read_tasks(folder / "sts/stsb.tsv"), plan).to_dict()
    settings = {row["setting"] for row in found["results"]}
    assert {"cls -1 raw", "mean 1 raw", "mean 1,-1 raw", "sif -1 1 removed", "latte-mix 1 js"} <= settings
    assert {f"sbert-wk {','.join(map(str, layers))} raw" for layers in sbert_wk_layers(2)} <= settings
    row = average(found, "latte-mix -1 cosine")
    assert (row["seeds"], row["standard_deviation"], row["trained_texts"]) == ([0], None, 20)


def test_token_vectors_come_back_from_the_file_as_they_were_encoded(folder: Path, tiny_config: BuildConfig) -> None:
    outputs = TokenEmbeddings(resolve_spec(tiny_config.encoder))
    texts = sentences(read_tasks(folder / "sts"))[:30]
    training = TrainingTokens.write(outputs, texts, [2], folder, NoProgress())
    (expected, starts), (rows, there) = next(outputs(texts, [2])), next(training())
    np.testing.assert_array_equal(starts, there)
    np.testing.assert_allclose(rows, expected, atol=2e-3)


@pytest.mark.parametrize("special", [True, False])
def test_sentences_pool_to_what_the_encoder_gives(folder: Path, tiny_config: BuildConfig, special: bool) -> None:
    encoder, texts = load_encoder(tiny_config.encoder), sentences(read_tasks(folder / "sts"))[:20]
    tokens = SentenceTokens.of(TokenEmbeddings(encoder.spec, special=special), texts, [2])
    means = np.stack([tokens.tokens(number).mean(axis=0) for number in range(len(texts))])
    np.testing.assert_allclose(tokens.pooled(lambda rows: rows), means, atol=1e-5)
    if special:
        np.testing.assert_allclose(means, encoder.encode(texts, "document"), atol=1e-5)
    else:
        kept = [len(tokens.tokens(number)) for number in range(len(texts))]
        assert kept == (encoder.tokenize(texts, "document").cut_lengths - 2).tolist()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": ("latte-mix",)}, "add --corpus PATH"),
        ({"methods": ("mean",), "seeds": 0}, "--seeds is 0"),
        ({"methods": ("mean",), "documents": -1}, "--documents is -1"),
    ],
)
def test_plans_that_cannot_be_followed_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MethodsOptions(**changes)


def test_a_table_is_refused_methods_of_layers() -> None:
    with pytest.raises(ConfigError, match="sbert-wk: a static table has no layers"):
        methods_of(["sbert-wk"], False)
    assert methods_of(["flow"], True) == ("mean", "flow")


def test_a_corpus_without_text_is_refused(folder: Path, config: BuildConfig, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n\n")
    plan = MethodsOptions(("mean", "latte-mix"), corpus=tmp_path / "empty.txt", seeds=1)
    with pytest.raises(CorpusError, match="no documents to train on"):
        evaluate_methods(Target.of_recipe(config), read_tasks(folder / "sts"), plan)


def test_the_table_is_printed_with_mean_pooling_and_the_untrained_control(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = _runner()
    settings = ["encoder.kind=static", f"encoder.model={folder / 'words.txt'}"]
    settings += ["papers.latte_mix.dims=4", "papers.latte_mix.classes=6"]
    options = [part for setting in settings for part in ("--set", setting)]
    train = ["--corpus", str(folder / "train.txt"), "--seeds", "3"]
    run("evaluate", "methods", str(folder / "sts"), "--method", "latte-mix", *train, *options, "--quiet")
    shown = capsys.readouterr().out
    for said in (
        "mean raw",
        "latte-mix js",
        "latte-mix untrained js",
        "protocol mean, fit task",
        "3 seeds for random",
        NOT_RUN,
    ):
        assert said in shown


def test_every_method_is_named_once() -> None:
    from search.papers.method_settings import Method

    assert len(set(get_args(Method))) == len(METHODS)
    assert json.dumps(METHODS)


def _runner() -> Callable[..., Any]:
    from search.cli import cli

    return lambda *arguments: cli.main(list(arguments), standalone_mode=False)
