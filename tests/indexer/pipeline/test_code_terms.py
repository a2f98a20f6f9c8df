"""`hybrid.terms = "auto"`: the words of names for indexes of source code."""

from dataclasses import replace
from pathlib import Path

import pytest

from indexer.corpus.corpus import Corpus
from indexer.corpus.sources import SourceFile
from indexer.pipeline.build import build_index, usual_hybrid
from indexer.pipeline.refit import refit_index
from indexer.recipe.config import BuildConfig
from indexer.recipe.corpus_config import CorpusConfig
from indexer.recipe.ranking import OF_CODE, OF_ROWS, HybridConfig
from indexer.store.manifest import load_manifest
from search.ranking.terms import terms_key

FILES = replace(CorpusConfig(), documents="files")


def corpus(*names: str, config: CorpusConfig = FILES) -> Corpus:
    files = [SourceFile(Path(name), name, name, "file") for name in names]
    return Corpus(files, [], config, "fail", None)


def test_a_folder_that_is_mostly_code_has_terms_of_code() -> None:
    assert usual_hybrid(corpus("a.py", "src/b.GO", "notes.md")) == OF_CODE
    assert usual_hybrid(corpus("a.py", "notes.md")) == OF_ROWS  # half is not most
    assert usual_hybrid(corpus("a.csv", "a.py", "b.py", config=CorpusConfig())) == OF_ROWS  # rows of tables
    assert usual_hybrid(["def f(): pass"]) == OF_ROWS


def test_the_index_stores_the_terms_that_were_chosen(tmp_path: Path, tiny_config: BuildConfig) -> None:
    index = tmp_path / "index"
    assert tiny_config.hybrid.terms == "auto"
    build_index(["a text", "another text"], index, tiny_config)
    assert load_manifest(index).config["hybrid"]["terms"] == "words"
    assert build_index(["a text", "another text"], index, tiny_config).up_to_date
    refit_index(index, ["hybrid.terms=code"])
    for assignments, recipe in ((["hybrid.terms=auto"], None), (["hybrid.weight=0.5"], tiny_config)):
        refit_index(index, assignments, recipe=recipe)
        assert load_manifest(index).config["hybrid"]["terms"] == "code"  # "auto" keeps it


def test_explicit_terms_stay_and_auto_without_a_build_means_words() -> None:
    assert HybridConfig(terms="code").resolved().terms == "code"
    assert terms_key(HybridConfig()) == terms_key(HybridConfig(terms="words"))


@pytest.mark.parametrize("terms", ["words", "auto"])
def test_a_recipe_of_rows_does_not_state_the_usual_terms(terms: str) -> None:
    assert "hybrid" not in BuildConfig().with_overrides([f"hybrid.terms={terms}"]).to_toml()
