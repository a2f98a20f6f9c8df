"""Measurement of an index of windows: documents rank by their best window, recall and notes are of windows."""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer import BuildConfig, build_index, read_corpus
from indexer.arrays import Vectors
from indexer.recipe.config import EncoderConfig
from indexer.recipe.corpus_config import ChunkConfig
from indexer.recipe.index_config import StoreConfig
from search import SearchEngine
from search.evaluation.recall.recall import duplicates_of, evaluate_recall
from search.evaluation.report.page import write_report
from search.evaluation.retrieval.retrieval import RetrievalOptions, evaluate_retrieval
from search.evaluation.sweep import Sweep
from search.evaluation.target import Target
from search.evaluation.tune.tune import TuneOptions, run_tune
from search.evaluation.tune.unlabelled import reciprocal_ranks
from search.index import Index, LiveRows
from search.ranking.exact import exact_top_k, id_order
from tests.oracles import best_rows
from tests.search.dedup.spheres import sphere
from tests.search.evaluation.retrieval.tiny_collection import WORDS, ranking, write_lines

Result = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """70 documents of one to five windows, and ten queries of words from the end of a document."""
    path, draw = tmp_path_factory.mktemp("beir") / "long", random.Random(4)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(9, 40))) for _ in range(70)]
    rows = [{"_id": f"d{n}", "title": WORDS[n % 18], "text": text} for n, text in enumerate(texts)]
    write_lines(path / "corpus.jsonl", rows)
    asked = [" ".join(text.split()[-4:]) for text in texts[:10]]
    write_lines(path / "queries.jsonl", [{"_id": f"q{n}", "text": text} for n, text in enumerate(asked)])
    (path / "qrels").mkdir()
    lines = [f"q{n}\td{m}\t1\n" for n in range(10) for m in (n, n + 20)]
    (path / "qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
    return path


@pytest.fixture(scope="module")
def config(tiny_model: Callable[[str], Path]) -> BuildConfig:
    encoder = EncoderConfig(model=str(tiny_model("bert")), max_length=26, precision="float32")
    return BuildConfig(encoder=encoder, store=StoreConfig(part_documents=16), chunk=ChunkConfig(24, 8))


@pytest.fixture(scope="module")
def index(folder: Path, config: BuildConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("index") / "index"
    build_index(read_corpus(folder, config=config.corpus), path, config)
    return path


def evaluated(folder: Path, subject: Target, sweep: Sweep | None = None, **task: Any) -> Result:
    settings: dict[str, Any] = {"cutoffs": (3, 10), "bm25": False} | task
    return evaluate_retrieval(subject, RetrievalOptions(folder, **settings), sweep or Sweep()).to_dict()


@pytest.mark.parametrize("sample", ["all", 20])
def test_a_recipe_that_chunks_gives_the_figures_of_its_index(
    sample: Any, folder: Path, config: BuildConfig, tmp_path: Path
) -> None:
    config = replace(config, whitening=replace(config.whitening, sample=sample))
    build_index(read_corpus(folder, config=config.corpus), tmp_path / "index", config)
    from_recipe = evaluated(folder, Target.of_recipe(config), run=tmp_path / "recipe.run")
    from_index = evaluated(folder, Target.of_index(tmp_path / "index"), run=tmp_path / "index.run")
    (first,), (second,) = from_recipe["results"], from_index["results"]
    assert first["measure"] == second["measure"]
    assert ranking(tmp_path / "recipe.run") == ranking(tmp_path / "index.run")
    for result in (from_recipe, from_index):
        assert result["provenance"]["protocol"]["score"] == "of a document's best window"


def test_settings_of_an_index_are_ranked_by_best_windows(
    folder: Path, index: Path, config: BuildConfig, tmp_path: Path
) -> None:
    """A refit with its own setting gives the same ranking as the index."""
    sweep = Sweep(strengths=(0.25,))
    fitted = evaluated(folder, Target.of_index(index), sweep, run=tmp_path / "fitted.run")
    asked = evaluated(folder, Target.of_index(index), run=tmp_path / "asked.run")
    assert fitted["results"][0]["measure"] == asked["results"][0]["measure"]
    assert ranking(tmp_path / "fitted.run") == ranking(tmp_path / "asked.run")


def test_an_index_is_measured_by_what_search_answers(folder: Path, index: Path, tmp_path: Path) -> None:
    evaluated(folder, Target.of_index(index), run=tmp_path / "a.run")
    with open(folder / "queries.jsonl", encoding="utf-8") as file:
        queries = [json.loads(line) for line in file]
    answers = SearchEngine(index).search_many([query["text"] for query in queries], k=70)
    assert all(len({hit.id for hit in hits}) == 70 for hits in answers)
    assert ranking(tmp_path / "a.run") == [
        (query["_id"], hit.id, str(rank))
        for query, hits in zip(queries, answers, strict=True)
        for rank, hit in enumerate(hits, start=1)
    ]


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=12),
    block=st.integers(1, 7),
    depth=st.integers(1, 13),
    seed=st.integers(0, 9),
)
def test_rankings_by_best_windows_equal_the_oracle_in_any_blocks(
    sizes: list[int], block: int, depth: int, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    vectors = draw.choice(np.array([-1, 0, 0.5, 1], np.float32), (sum(sizes), 3))
    queries = draw.choice(np.array([-1, 0, 0.5, 1], np.float32), (3, 3))
    ids = [f"d{number:02d}" for number in draw.permutation(len(sizes))]
    document_of = np.repeat(np.arange(len(sizes)), sizes)
    found = exact_top_k(queries, cut(vectors, block), id_order(ids), depth, document_of)
    for query, (scores, documents) in zip(queries, found, strict=True):
        best: dict[str, float] = {}
        for name, score in best_rows(vectors, query, [ids[number] for number in document_of], len(vectors)):
            best.setdefault(name, score)
        expected = sorted(best.items(), key=lambda item: (-item[1], item[0]))[:depth]
        assert [(ids[number], score) for number, score in zip(documents, scores.tolist(), strict=True)] == expected


def cut(vectors: Vectors, size: int) -> Iterator[Vectors]:
    return (vectors[start : start + size] for start in range(0, len(vectors), size))


def test_a_query_passes_over_all_windows_of_its_own_document(index: Path) -> None:
    opened = Index.open(index)
    stored, numbering = LiveRows(opened), opened.numbering
    long = int(np.argmax(np.bincount(numbering.documents_of(np.arange(numbering.rows)))))
    (found, none) = duplicates_of(stored, np.array([long, -1]))
    own = numbering.rows_of(np.array([long]))
    assert len(own) > 2
    assert set(own.tolist()) <= set(found.tolist())
    vectors, hashes = opened.vectors(np.arange(numbering.rows)), stored.text_hashes(np.arange(numbering.rows))
    for row in range(numbering.rows):
        same = (hashes[row] == hashes[own]).all(axis=1).any() or (vectors[own] @ vectors[row]).max() > 1 - 1e-6
        assert (row in found.tolist()) == bool(same)
    assert not len(none)


def test_recall_is_of_windows_and_says_so(index: Path) -> None:
    result = evaluate_recall(SearchEngine(index), 5, sample=20)
    (row,) = result["results"]
    assert row["recall"] == 1
    assert row["rows"] > 70
    assert any("answers are windows" in note for note in result["notes"])


def test_reciprocal_ranks_are_of_documents_by_their_best_rows() -> None:
    sizes = [1, 3, 2, 4, 1]
    starts = np.cumsum([0, *sizes[:-1]])
    queries, rows = sphere(5, 6), sphere(11, 6, seed=1)
    best = np.stack([(queries @ part.T).max(axis=1) for part in np.split(rows, starts[1:])], axis=1)
    expected = [1 / (1 + (best[number] > best[number, number]).sum()) for number in range(5)]
    np.testing.assert_allclose(reciprocal_ranks(queries, rows, starts), expected)


@pytest.mark.parametrize("of_index", [True, False])
def test_tuning_asks_for_windows_so_that_nothing_is_cut(
    folder: Path, index: Path, config: BuildConfig, of_index: bool, tmp_path: Path
) -> None:
    subject = Target.of_index(index) if of_index else Target.of_recipe(config)
    result = tuned(index if of_index else folder / "corpus.jsonl", subject, tmp_path)
    assert result["recipe"]["chunk"] == {"tokens": 24, "overlap": 8, "by": "tokens", "headings": True}
    assert not any("were cut" in note for note in result["notes"])


def test_tuning_whole_documents_says_that_they_are_cut(folder: Path, config: BuildConfig, tmp_path: Path) -> None:
    result = tuned(folder / "corpus.jsonl", Target.of_recipe(replace(config, chunk=ChunkConfig())), tmp_path)
    assert any(" truncated at 26 tokens" in note for note in result["notes"])


def tuned(source: Path, subject: Target, cache: Path) -> Result:
    sweep = Sweep(strengths=(0.25, 0.5), centres=("role",), shrinkages=(0.0,))
    return run_tune(subject, TuneOptions((str(source),), sample=60), sweep, cache).to_dict()


def test_a_report_counts_windows(index: Path, tmp_path: Path) -> None:
    write_report(SearchEngine(index), tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    rows = Index.open(index).manifest.rows
    assert f"<b>{rows:,}</b><span>windows</span>" in page
    assert "Tokens per window before truncation" in page
    assert "at most 24 tokens, with an overlap of 8" in page
    assert "No window is longer than the encoder&#39;s limit of 26 tokens" in page
