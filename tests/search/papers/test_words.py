"""`isotrope evaluate words`: results for a table and for a transformer, their coverage, and rejected plans."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexer import BuildConfig
from indexer.arrays import Float64Array as Array
from indexer.errors import ConfigError, EvaluationError
from indexer.progress import NoProgress
from indexer.recipe.run_options import RunOptions
from search.cli.evaluate import COMMANDS
from search.evaluation.target import Target
from search.papers.word_sets import Analogies, Categories, Similarity, WordSet
from search.papers.word_vectors import WordVectors, context_vectors
from search.papers.words import VectorSource, WordsOptions, choose_sources, evaluate_words, measure_words
from tests.search.cli.test_cli import Done, isotrope
from tests.search.papers.test_word_scores import PLANE, vectors_of
from tests.search.papers.test_word_vectors import power_iteration

SETS: list[WordSet] = [
    Similarity("pairs", ("man", "man", "king", "man"), ("woman", "stone", "queen", "lost"), np.array([3.0, 1, 2, 9])),
    Analogies("analogies", {"a": (("man", "woman", "king", "queen"),), "b": (("king", "queen", "boy", "girl"),)}),
    Categories("classes", {"man": "male", "king": "male", "woman": "female", "queen": "female"}),
]


def given_source(vectors: WordVectors) -> VectorSource:
    return VectorSource("given", None, lambda words: vectors)


def test_results_name_what_was_measured_and_on_how_much() -> None:
    rows, notes = measure_words([given_source(PLANE)], SETS)
    named = [(row["task"], row["section"], row["measure"], row["covered"], row["items"]) for row in rows]
    assert named == [
        ("pairs", "all", "spearman", 3, 4),
        ("analogies", "all", "accuracy", 2, 2),
        ("analogies", "a", "accuracy", 1, 1),
        ("analogies", "b", "accuracy", 1, 1),
        ("classes", "all", "purity", 4, 4),
    ]
    assert [row["candidates"] for row in rows] == [None, 7, 7, 7, None]
    assert rows[0]["unknown"] == ["lost"]
    assert notes == ["given: 1 of 8 words without a vector"]
    json.dumps(rows, allow_nan=False)


def test_a_set_without_a_figure_is_noted_and_no_figure_at_all_is_an_error() -> None:
    rows, notes = measure_words([given_source(vectors_of(man=(1, 0), woman=(0, 1), king=(1, 1)))], [SETS[0], SETS[2]])
    assert [row["value"] is None for row in rows] == [True, False]
    assert "given, pairs: no figure: a correlation needs two pairs, but there are 1" in notes
    with pytest.raises(EvaluationError, match=r"no set has a figure. given: 6 of 6 words without a vector"):
        measure_words([given_source(WordVectors(np.empty((0, 0)), {}))], SETS[:1])


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Write the words of `PLANE` as a file of word vectors, with many others."""
    path = tmp_path / "plane.txt"
    lines = [f"{word} {' '.join(map(str, PLANE.vectors[row].tolist()))}" for word, row in PLANE.rows.items()]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    texts = {
        "pairs.txt": "man woman 3\nman stone 1\nking queen 2\nman lost 9\n",
        "analogies.txt": ": a\nman woman king queen\n: b\nking queen boy girl\n",
        "classes.txt": "man male\nking male\nwoman female\nqueen female\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return [tmp_path / name for name in texts]


def words_command(*arguments: str | Path) -> Done:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(COMMANDS, "words", ("search.papers.commands:words", "Static word vectors."))
        return isotrope("evaluate", "words", *arguments, "--quiet")


def test_a_table_gives_the_figures_of_its_rows(table: Path, files: list[Path], tmp_path: Path) -> None:
    named = ["--set", "encoder.kind=static", "--set", f"encoder.model={table}"]
    done = words_command(*files, *named, "--candidates", "5", "-o", tmp_path / "out.json")
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "out.json").read_text())
    expected, _ = measure_words([given_source(PLANE)], SETS)
    for row, other in zip(result["results"], expected, strict=True):
        assert row["value"] == pytest.approx(other["value"])
        assert {key: row[key] for key in ("task", "section", "items", "covered")} == {
            key: other[key] for key in ("task", "section", "items", "covered")
        }
    assert result["provenance"]["vectors"] == {"table": {"from": "table", "candidates": 5, "rows": 7}}
    assert set(result["provenance"]["data"]) == {str(path) for path in files}
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["pairs", "spearman", "50.00", "3", "of", "4"] in [[*line[:3], *line[-3:]] for line in lines if line]
    assert ["a", "accuracy", "100.00", "[100.00,", "100.00]", "1", "of", "1"] in lines
    assert "note: table: 1 of 8 words without a vector" in done.stderr


TEXTS = ["the whale in the deep sea", "Whale songs", "data of a library", "a deep songs", "the library of the sea"]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n")
    return path


def occurrences(folder: Path, word: str, layer: int) -> Array:
    """Compute the mean of a word's pieces in each text that has it, with transformers only."""
    import torch
    import transformers

    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    model: Any = transformers.AutoModel.from_pretrained(folder)
    rows = []
    for text in TEXTS:
        encoded = tokenizer(text, return_offsets_mapping=True, return_tensors="pt")
        offsets = encoded.pop("offset_mapping")[0].tolist()
        start = text.lower().find(word)
        inside = [n for n, (a, b) in enumerate(offsets) if a < b and start <= a < start + len(word)]
        if start >= 0:
            with torch.inference_mode():
                state = model(**encoded, output_hidden_states=True).hidden_states[layer][0]
            rows.append(state[inside].double().mean(dim=0).numpy())
    return np.array(rows)


@pytest.mark.check
def test_a_transformer_gives_the_first_principal_component_of_each_layer(
    tiny_config: BuildConfig, corpus: Path
) -> None:
    folder = Path(tiny_config.encoder.model)
    sets: list[WordSet] = [
        Similarity("s", ("Whale", "sea", "deep"), ("songs", "library", "lost"), np.array([1.0, 2.0, 3.0])),
        Similarity("t", ("sea", "library", "songs"), ("data", "of", "deep"), np.array([1.0, 2.0, 3.0])),
    ]
    result = evaluate_words(Target.of_recipe(tiny_config), sets, WordsOptions(corpus, layers=((0,), (1,), (-1,))))
    assert [row["layers"] for row in result["results"]] == [[0], [0], [1], [1], [-1], [-1]]
    words = ("whale", "sea", "deep", "songs", "library", "data", "of")
    for number, (label, layer) in enumerate((("layers 0", 0), ("layers 1", 1), ("layers -1", 2))):
        contexts = [(word, occurrences(folder, word, layer)) for word in words]
        expected, _ = measure_words([given_source(context_vectors(contexts, ["Whale", *words]))], sets)
        found = result["results"][2 * number : 2 * number + 2]
        assert [row["value"] for row in found] == pytest.approx([row["value"] for row in expected])
        assert [row["vectors"] for row in found] == [label] * 2
        assert result["provenance"]["vectors"][label]["texts"] == len(TEXTS)
    assert "layers 0: 1 of 8 words without a vector" in result["notes"]


def test_word_vectors_are_those_of_the_transformer(tiny_config: BuildConfig, corpus: Path) -> None:
    plan, subject = WordsOptions(corpus, layers=((1, -1),), occurrences=2), Target.of_recipe(tiny_config)
    (source,), files = choose_sources(subject, plan, NoProgress())
    found = source.of(["Sea", "library", "songs"])
    for word, row in found.rows.items():
        places = [occurrences(Path(tiny_config.encoder.model), word.lower(), layer)[:2] for layer in (1, 2)]
        expected = power_iteration(np.mean(places, axis=0))
        np.testing.assert_allclose(found.vectors[row], expected, atol=1e-5)
    assert [Path(file).name for file in files] == ["texts.txt"]
    assert source.about["encoded"] == 5


def test_texts_that_are_cut_are_counted(tiny_config: BuildConfig, corpus: Path) -> None:
    config = tiny_config.with_overrides(["encoder.max_length=5"])
    (source,), _ = choose_sources(Target.of_recipe(config), WordsOptions(corpus), NoProgress())
    found = source.of(["whale", "deep"])
    assert found.rows.keys() == {"whale", "deep"}
    assert found.notes == (
        "2 texts were longer than encoder.max_length and cut there: words after the cut do not count",
    )


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (WordsOptions(), "add --corpus PATH"),
        (WordsOptions(Path("-")), "standard input cannot be hashed"),
        (WordsOptions(Path("x"), candidates=5), "--candidates is for a static table"),
    ],
)
def test_a_plan_that_does_not_suit_a_transformer_is_refused(
    tiny_config: BuildConfig, plan: WordsOptions, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        evaluate_words(Target.of_recipe(tiny_config), SETS, plan)


def test_other_backends_are_refused(tiny_config: BuildConfig, corpus: Path) -> None:
    with pytest.raises(ConfigError, match='--backend is "numpy"'):
        evaluate_words(Target.of_recipe(tiny_config, RunOptions(backend="numpy")), SETS, WordsOptions(corpus))


@pytest.mark.parametrize("numbers", [{"occurrences": 0}, {"candidates": -1}])
def test_numbers_out_of_range_are_refused(numbers: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="expected"):
        WordsOptions(**numbers)  # type: ignore[arg-type]


def test_what_a_table_has_no_use_for_is_refused(table: Path, files: list[Path]) -> None:
    done = words_command(*files, "--set", "encoder.kind=static", "--set", f"encoder.model={table}", "--layers", "1")
    assert done.returncode == 1
    assert "a static table contains word vectors. Fix: leave out --layers" in done.stderr
    assert "Traceback" not in done.stderr


def test_given_embeddings_have_no_word_vectors(files: list[Path]) -> None:
    done = words_command(*files, "--set", "encoder.kind=vectors")
    assert done.returncode == 1
    assert "Word vectors need a static table or a transformer" in done.stderr


def test_the_table_for_people_has_a_part_for_each_average_of_layers(
    tiny_config: BuildConfig, corpus: Path, tmp_path: Path
) -> None:
    (tmp_path / "s.txt").write_text("whale songs 1\nsea library 2\nsea data 3\n")
    named = ["--set", f"encoder.model={tiny_config.encoder.model}", "--set", "encoder.max_length=32"]
    done = words_command(tmp_path / "s.txt", *named, "--corpus", corpus, "--layers", "0", "--layers", "1,-1")
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if "Word vectors" in line] == [
        "Word vectors: layers 0",
        "Word vectors: layers 1,-1",
    ]
    assert done.stdout.count("3 of 3") == 2


def test_a_cache_of_texts_is_refused(files: list[Path], tmp_path: Path) -> None:
    done = words_command(*files, "--cache", tmp_path / "cache")
    assert done.returncode == 1
    assert "--cache keeps embeddings of texts, which this command does not compute" in done.stderr
