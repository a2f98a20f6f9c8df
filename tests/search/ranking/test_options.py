"""Search options: every field is checked before the search, and no empty value means "all"."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexer import BuildConfig, build_index, delete_documents
from indexer.errors import ConfigError
from indexer.recipe.config import EncoderConfig
from search import SearchEngine
from search.filters.filters import delete_where
from search.ranking.options import SearchOptions
from tests.documents import DOCUMENTS
from tests.search.cli.test_cli import isotrope


@pytest.fixture(scope="module")
def index(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("options") / "index"
    build_index(DOCUMENTS, folder, BuildConfig(encoder=EncoderConfig(model=str(tiny_model("bert")), max_length=32)))
    return folder


@pytest.fixture(scope="module")
def engine(index: Path) -> Iterator[SearchEngine]:
    with SearchEngine(index) as opened:
        yield opened


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"k": 0}, "k is 0; expected a whole number, at least 1"),
    ({"k": True}, "k is True; expected a whole number"),
    ({"k": 2.5}, r"k is 2\.5; expected a whole number"),
    ({"k": "3"}, "k is '3'; expected a whole number"),
    ({"k": None}, "k is None; expected a whole number"),
    ({"where": ""}, "where is blank; expected a condition .* leave it out"),
    ({"where": " \t\n"}, "where is blank"),
    ({"where": 5}, "where is 5; expected a condition"),
    ({"where": ["year > 2019"]}, "where is .*; expected a condition"),
    ({"group_by": ""}, "group_by is blank; expected the name of a metadata column"),
    ({"group_by": "\u3000"}, "group_by is blank"),
    ({"group_by": True}, "group_by is True"),
    ({"min_score": float("nan")}, "min_score is nan; expected a finite number"),
    ({"min_score": float("-inf")}, "min_score is -inf; expected a finite number"),
    ({"min_score": np.float32("nan")}, "min_score is .*nan.*; expected a finite number"),
    ({"min_score": "0.5"}, r"min_score is '0\.5'; expected a finite number"),
    ({"min_score": True}, "min_score is True; expected a finite number"),
    ({"fold": 0}, "fold is 0; expected a number, more than 0 and at most 1"),
    ({"fold": 1.0001}, r"fold is 1\.0001; expected a number, more than 0 and at most 1"),
    ({"fold": float("nan")}, "fold is nan; expected a number"),
    ({"fold": float("inf")}, "fold is inf; expected a number"),
    ({"fold": "0.9"}, r"fold is '0\.9'; expected a number"),
    ({"fold": True}, "fold is True; expected a number"),
    ({"exact": "no"}, "exact is 'no'; expected True or False"),
    ({"hybrid": 1}, "hybrid is 1; expected True or False"),
    ({"similarity": "zzz"}, 'similarity is \'zzz\'; expected "cosine" or "js"'),
    ({"similarity": ""}, "similarity is ''; expected"),
    ({"similarity": None}, "similarity is None; expected"),
]


@pytest.mark.parametrize(("asked", "message"), WRONG)
def test_a_field_that_cannot_be_meant_is_refused(asked: dict[str, Any], message: str, engine: SearchEngine) -> None:
    vectors = np.ones((1, int(engine.index.manifest.encoder["dim"])), np.float32)
    calls: list[Callable[[], object]] = [
        lambda: SearchOptions(**asked),
        lambda: engine.search("whales", **asked),
        lambda: engine.search_many(["whales"], **asked),
        lambda: engine.search_vectors(vectors, **asked),
        lambda: engine.neighbours("d1", **asked),
        lambda: engine.check(**asked),
    ]
    for call in calls:
        with pytest.raises(ConfigError, match=message):
            call()


def test_a_number_of_hits_that_is_given_twice_is_refused(engine: SearchEngine) -> None:
    for call in (engine.search, engine.neighbours):
        with pytest.raises(ConfigError, match="k is given twice: 5 and k=3; expected one number of hits"):
            call("d1", 5, k=3)
    assert len(engine.search("whales", SearchOptions(5), k=3)) == 3


def test_a_wrong_name_is_an_error_of_the_type_checker_too(engine: SearchEngine) -> None:
    """mypy runs over the tests in strict mode, where an ignored error that does not occur is an error itself."""
    with pytest.raises(ConfigError, match='a search has no option "wher"; did you mean "where"'):
        engine.search("whales", wher="a")  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="exact is 3; expected True or False"):
        engine.search("whales", exact=3)  # type: ignore[arg-type]


def test_numbers_of_numpy_are_numbers(engine: SearchEngine) -> None:
    expected = engine.search("whales", k=3)
    for kind in (np.int64, np.uint8, np.int32):
        assert engine.search("whales", k=kind(3)) == expected  # type: ignore[arg-type]
    assert type(SearchOptions(np.uint8(200)).k) is int  # type: ignore[arg-type]
    for lowest in (np.float32(-2), np.int64(-2), -2, -2.0):
        assert engine.search("whales", k=3, min_score=lowest) == expected  # type: ignore[arg-type]


def test_more_is_asked_for_than_any_index_holds(engine: SearchEngine) -> None:
    assert len(engine.search("whales", k=10**30)) == len(engine)
    assert len(engine.neighbours("d1", k=10**30)) == len(engine) - 1


def test_one_string_is_no_list_of_questions(engine: SearchEngine) -> None:
    with pytest.raises(ConfigError, match=r"queries is one string; expected a list of text\. Fix: pass it in a list"):
        engine.search_many("cat")
    with pytest.raises(ConfigError, match="texts is one string; expected a list of text"):
        engine.embed("cat")
    for call in (engine.search_many, engine.embed):
        with pytest.raises(ConfigError, match="number 2 is 5; expected text"):
            call(["cat", 5])  # type: ignore[list-item]
        with pytest.raises(ConfigError, match="number 1 is b'cat'; expected text"):
            call([b"cat"])  # type: ignore[list-item]
        with pytest.raises(ConfigError, match="is None; expected a list of text"):
            call(None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"query is of type list; expected text\. Fix: for several queries, call se"):
        engine.search(["cat", "dog"])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"query is of type ndarray; .* for embeddings, SearchEngine\.search_vect"):
        engine.search(np.ones(3))  # type: ignore[arg-type]
    for array in (np.ones(3), np.ones((2, 3))):
        with pytest.raises(ConfigError, match=r"expected text\. Fix: for embeddings, call SearchEngine\.search_v"):
            engine.search_many(array)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="identity is 5; expected text"):
        engine.neighbours(5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r'role is .*; expected "document" or "query"'):
        engine.embed(["cat"], "question")  # type: ignore[arg-type]
    assert engine.search_many(iter(["cat"])) == [engine.search("cat")]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--where", ""], "--where is blank"),
        (["--where", "  "], "--where is blank"),
        (["--group-by", ""], "--group-by is blank"),
        (["--min-score", "nan"], "--min-score is nan; expected a finite number"),
        (["--min-score", "-inf"], "--min-score is -inf; expected a finite number"),
        (["-k", "0"], "-k is 0"),
        (["--fold", "nan"], "--fold is nan; expected a number, more than 0"),
    ],
)
def test_an_unset_variable_does_not_search_everything(option: list[str], message: str, index: Path) -> None:
    for asked in (["whales"], ["--like", "d1"]):
        done = isotrope("query", index, *asked, *option)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert f"error: {message}" in done.stderr


def test_the_neighbours_of_no_document_are_none(index: Path) -> None:
    for name in ("", " "):
        done = isotrope("query", index, "--like", name)
        assert (done.returncode, done.stdout) == (1, "")
        assert f'contains no document with id "{name}"' in done.stderr


@pytest.mark.parametrize("where", ["", " \n"])
def test_an_empty_condition_deletes_nothing(where: str, index: Path) -> None:
    with pytest.raises(ConfigError, match="where is blank; expected a condition on the documents to delete"):
        delete_where(index, where)
    done = isotrope("delete", index, "--where", where)
    assert (done.returncode, done.stdout) == (1, "")
    assert "where is blank" in done.stderr
    done = isotrope("delete", index, "d1", "--where", where)  # before, the ids went and the condition was not there
    assert (done.returncode, done.stdout) == (2, "")
    with pytest.raises(ConfigError, match="ids is one string; expected a list of text"):
        delete_documents(index, "d1", ignore_missing=True)
    assert json.loads(isotrope("inspect", index, "--json").stdout)["documents"] == len(DOCUMENTS)
