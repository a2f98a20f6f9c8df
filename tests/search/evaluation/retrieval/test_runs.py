"""Runs of settings and indexes equal the answers of search, and their files."""

import os
import shutil
import stat
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from indexer import BuildConfig, Document, build_index
from indexer.errors import ConfigError
from search import SearchEngine
from search.evaluation.retrieval.beir import read_judged
from search.evaluation.retrieval.corpus import IndexedCorpus
from search.evaluation.retrieval.metrics import measure
from search.evaluation.retrieval.runs import Asked, run_of_index, runs_of_settings
from search.evaluation.sweep import Sweep
from search.evaluation.target import Target
from search.ranking.bm25 import BM25Index
from search.ranking.exact import id_order
from tests.search.evaluation.retrieval.tiny_collection import OWN, Cli, built, evaluated, ranking, row_of, values_of


def test_an_index_is_measured_by_what_search_answers(folder: Path, index: Path, tmp_path: Path) -> None:
    evaluated(folder, index, run=tmp_path / "a.run")
    queries = read_judged(folder).queries
    answers = SearchEngine(index).search_many(list(queries.values()), k=60)
    expected = [
        (query, hit.id, str(rank))
        for query, hits in zip(queries, answers, strict=True)
        for rank, hit in enumerate(hits, start=1)
    ]
    assert ranking(tmp_path / "a.run") == expected


@pytest.mark.parametrize("how", ["convex", "rrf"])
def test_words_alone_answer_what_the_encoder_knows_nothing_of(how: str, tmp_path: Path) -> None:
    """The index and exact search both agree with `isotrope query --hybrid`."""
    table, known, queries = tmp_path / "table.txt", ["whale", "sea", "sand", "bread"], ["sea", "zyzzyva", "bread"]
    table.write_text("".join(f"{word} {number} {number % 3} 1\n" for number, word in enumerate(known)))
    config = BuildConfig.from_dict({"encoder": {"kind": "static", "model": str(table)}})
    config = config.with_overrides(["hybrid.weight=0.9", f"hybrid.fusion={how}"])
    texts = [f"{one} {other}" for one in known for other in known] + ["whale sea zyzzyva"]
    build_index([Document(f"d{n:02}", text) for n, text in enumerate(texts)], tmp_path / "index", config)
    answers = SearchEngine(tmp_path / "index").rank(queries, 20, hybrid=True)
    expected = [[one.document for one in answer] for answer in answers]
    assert expected[1] == [16]
    target = Target.of_index(tmp_path / "index")
    assert target.index is not None
    index, source = target.index, target.states([target.own])
    states = source.encode(queries, "query")
    asked = Asked(queries, states, queries, 20, [config.hybrid], list(source.log.lengths))
    (collection := IndexedCorpus(target, index, source)).prepare(query_like=True)
    exact = runs_of_settings(collection, [target.own], asked, id_order(collection.ids), BM25Index(index))
    for run in (run_of_index(index, target.own, asked, ()), *exact):
        assert [numbers.tolist() for _, numbers in run.hybrids[0]] == expected


def test_documents_that_are_alike_stand_in_the_order_of_ids(folder: Path, index: Path, tmp_path: Path) -> None:
    """d50 to d59 repeat d0 to d9, so their scores tie; trec_eval would rank the larger id first."""
    evaluated(folder, index, run=tmp_path / "a.run")
    ranked: dict[str, list[str]] = {}
    for query, document, _ in ranking(tmp_path / "a.run"):
        ranked.setdefault(query, []).append(document)
    for documents in ranked.values():
        for number in range(10):
            pair = sorted([f"d{number}", f"d{number + 50}"])
            first = documents.index(pair[0])
            assert documents[first + 1] == pair[1]
    relevances = read_judged(folder).judgements
    assert values_of(evaluated(folder, index)["results"][0]) == pytest.approx(
        {name: values.mean() for name, values in measure(relevances, ranked, (3, 10)).items()}
    )


def test_an_approximate_index_is_measured_as_it_is_and_named(folder: Path, config: BuildConfig, tmp_path: Path) -> None:
    config = config.with_overrides(["index.type=HNSW8", "index.recall=0.1"])
    index = built(folder, config, tmp_path / "index")
    assert "the index is approximate (HNSW8)" in " ".join(evaluated(folder, index)["notes"])
    for result in (evaluated(folder, index, Sweep(strengths=(1.0,))), evaluated(folder, config)):
        assert "every vector was compared; the recipe's index (HNSW8)" in " ".join(result["notes"])


def test_each_cutoff_of_an_approximate_index_is_what_search_gives(
    folder: Path, config: BuildConfig, tmp_path: Path
) -> None:
    """A search for three hits probes one list of 16, a search for all probes more and has another first three."""
    config = config.with_overrides(["index.type=IVF16,Flat", "index.recall=0.01"])
    index = built(folder, config, tmp_path / "index")
    judged, engine, label = read_judged(folder), SearchEngine(index), OWN
    result = evaluated(folder, index, run=tmp_path / "deep.run", bm25=False)
    found = values_of(row_of(result, label))
    for k in (3, 10):
        answers = engine.search_many(list(judged.queries.values()), k)
        ranked = {query: [hit.id for hit in hits] for query, hits in zip(judged.queries, answers, strict=True)}
        expected = measure(judged.judgements, ranked, (k,))
        for name in (f"nDCG@{k}", f"R@{k}"):
            assert found[name] == pytest.approx(expected[name].mean())
    deep: dict[str, list[str]] = {}
    for query, document, _ in ranking(tmp_path / "deep.run"):
        deep.setdefault(query, []).append(document)
    of_run = {name: values.mean() for name, values in measure(judged.judgements, deep, (3, 10)).items()}
    assert (found["MAP"], found["MRR"]) == pytest.approx((of_run["MAP"], of_run["MRR"]))
    assert "MAP, MRR, run files and reranked rows are from a search for all hits" in " ".join(result["notes"])


def test_rankings_stream_into_a_pipe_and_replace_none(folder: Path, index: Path, tmp_path: Path) -> None:
    pipe, names = tmp_path / "pipe", ("run", "per_query")
    os.mkfifo(pipe)
    for name in names:
        into_pipe: dict[str, Any] = {name: pipe}
        into_file: dict[str, Any] = {name: tmp_path / name}
        with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE, text=True) as reader:
            evaluated(folder, index, **into_pipe)
            evaluated(folder, index, **into_file)
            assert reader.communicate()[0] == (tmp_path / name).read_text()
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    with pytest.raises(ConfigError, match="expected a folder for 2 settings"):
        evaluated(folder, index, Sweep(strengths=(0.0, 1.0)), run=pipe)


def test_runs_and_the_table_of_queries_are_written(cli: Cli, index: Path, tmp_path: Path) -> None:
    table = tmp_path / "queries.tsv"
    done = cli("--index", index, "--strength", "0", "--strength", "1", "--run", tmp_path / "runs", "--per-query", table)
    assert done.returncode == 0, done.stderr
    labels = ["mean -1 strength 0 role", "mean -1 strength 1 role", "BM25"]
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {
        f"{label.replace(' ', '_')}.run" for label in labels
    }
    rows = [line.split("\t") for line in table.read_text().splitlines()]
    assert rows[0] == ["query-id", "relevant", *(f"nDCG@10 {label}" for label in labels)]
    assert (len(rows), rows[1][:2]) == (12, ["q0", "3"])


def test_a_run_cannot_hold_ids_with_spaces(cli: Cli, folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    with (copy / "corpus.jsonl").open("a") as file:
        file.write('{"_id": "two words", "text": "whale"}\n')
    done = replace(cli, folder=copy)("--run", tmp_path / "a.run")
    assert done.returncode == 1
    assert 'the id "two words" is empty or contains white space' in done.stderr
