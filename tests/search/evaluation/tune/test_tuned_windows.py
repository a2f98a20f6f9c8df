"""Comparison of windows by drawn sentences."""

from collections.abc import Callable
from pathlib import Path

import pytest

from indexer import BuildConfig, Document
from indexer.errors import EvaluationError
from indexer.recipe.config import EncoderConfig
from search.evaluation.result import read_result, write_result
from search.evaluation.tune.chunks import draw_sentences, tune_chunks
from search.evaluation.tune.tune import TuneOptions
from tests.search.evaluation.tune.tuned_corpora import corpus, written

PAGES = [
    Document(one.id, f"# {one.title}\n\n{one.text}\n\n## Song\n\n{other.text}\n", one.title)
    for one, other in zip(corpus(70), reversed(corpus(140)), strict=False)
]


def test_a_question_is_cut_out_of_its_document_whose_lines_stay() -> None:
    drawn = draw_sentences(PAGES, 70, 70)
    assert len(drawn.documents) == 70
    originals = {document.id: document.text for document in PAGES}
    for query, answer in zip(drawn.queries, drawn.answers, strict=True):
        document = drawn.documents[answer]
        assert query in originals[document.id]
        assert query not in document.text
        assert document.text.count("\n") == originals[document.id].count("\n")
    assert draw_sentences(reversed(PAGES), 70, 70) == drawn


def test_texts_without_sentences_are_refused() -> None:
    with pytest.raises(EvaluationError, match=r"only 0 sentences of 3 documents"):
        draw_sentences([Document(f"d{n}", "x = 1") for n in range(3)], 100, 100)


def test_windows_are_compared_with_those_of_the_recipe(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    recipe = BuildConfig(encoder=EncoderConfig(model=str(tiny_model("bert")), max_length=24, precision="float32"))
    task = TuneOptions((str(written(PAGES, tmp_path / "corpus.jsonl")),), sample=70)
    result = tune_chunks(recipe, task, tmp_path / "cache")
    settings = [row["setting"] for row in result.results]
    assert settings[0] == "no windows"
    assert [setting.partition(", ")[2] for setting in settings[1:]] == [
        "by tokens",
        "by structure",
        "by structure with headings",
    ]
    assert result.results[0]["vectors"] == 70
    assert {row["against"] for row in result.comparisons or ()} == {"no windows"}
    assert [row["chosen"] for row in result.results].count("yes") == 1
    assert result["command"].startswith("isotrope build CORPUS INDEX --set chunk.by=")
    write_result(tmp_path / "result.json", result)
    assert read_result(tmp_path / "result.json")["command"] == result["command"]
