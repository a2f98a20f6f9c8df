"""Measurement and reports of indexes of embeddings from the corpus, in Python and on the command line."""

import dataclasses
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from indexer import BuildConfig, Document, build_index, read_corpus
from indexer.errors import ConfigError, EvaluationError
from indexer.recipe.config import EncoderConfig, WhiteningConfig
from indexer.recipe.index_config import StoreConfig
from search import SearchEngine
from search.dedup import deduplicate_index, write_kept
from search.evaluation.recall.recall import evaluate_recall
from search.evaluation.report.page import ReportOptions, write_report
from search.evaluation.retrieval.retrieval import RetrievalOptions, evaluate_retrieval
from search.evaluation.sweep import Sweep
from search.evaluation.tables import recall_tables
from search.evaluation.target import Target
from search.evaluation.tune.tune import TuneOptions, run_tune
from search.index import Index
from tests.docs.pages import block, examples, page
from tests.oracles import held_out_recall
from tests.playground import lay_out
from tests.search.cli.test_cli import isotrope

WORDS = ["whale", "song", "deep", "sea", "bridge", "steel", "bread", "dough", "star", "river", "clock", "glass"]
COMMON = WhiteningConfig(strength=0.25, centre="common")
Result = Mapping[str, Any]


@dataclass(frozen=True)
class Setup:
    """A BEIR folder, its index by a transformer, an index of the same embeddings, and embeddings of the queries."""

    folder: Path
    encoded: Path
    given: Path
    queries: Path  # q.npy, with the ids in q.ids.txt


@pytest.fixture(scope="module")
def setup(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Setup:
    root, draw = tmp_path_factory.mktemp("given"), random.Random(3)
    rows = [{"_id": f"d{n}", "title": f"t{n}", "text": " ".join(draw.choices(WORDS, k=8))} for n in range(60)]
    write_lines(root / "beir/corpus.jsonl", rows)
    asked = [{"_id": f"q{n}", "text": " ".join(draw.choices(WORDS, k=3))} for n in range(12)]
    write_lines(root / "beir/queries.jsonl", asked)
    (root / "beir/qrels").mkdir()
    lines = [f"q{n}\td{m}\t1\n" for n in range(11) for m in (n, n + 20)]
    (root / "beir/qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
    encoder = EncoderConfig(model=str(tiny_model("bert")), max_length=40, precision="float32")
    config = BuildConfig(encoder=encoder, whitening=COMMON, store=StoreConfig(part_documents=16))
    build_index(read_corpus(root / "beir", config=config.corpus), root / "encoded", config)
    with SearchEngine(root / "encoded") as engine:
        embeddings = engine.index.embeddings(np.arange(60))
        documents = [
            dataclasses.replace(document, vector=row)
            for document, row in zip(engine.index.documents.all_documents(), embeddings, strict=True)
        ]
        np.save(root / "q.npy", engine.encoder.encode([row["text"] for row in asked], "query"))
    (root / "q.ids.txt").write_text("".join(f"{row['_id']}\n" for row in asked))
    build_index(documents, root / "given", given(config))
    return Setup(root / "beir", root / "encoded", root / "given", root / "q.npy")


def given(config: BuildConfig) -> BuildConfig:
    return dataclasses.replace(config, encoder=EncoderConfig(kind="vectors"))


def write_lines(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def without_text(count: int = 40, dim: int = 5) -> list[Document]:
    rows = np.random.default_rng(0).normal(size=(count, dim)).astype(np.float32)
    return [Document(f"d{number}", "", vector=row) for number, row in enumerate(rows)]


def measures(result: Result) -> dict[str, dict[str, float]]:
    """Figures by setting without layers and poolings in the names, which differ for given embeddings."""
    return {
        row["setting"].replace("mean -1", "given"): {name: found["value"] for name, found in row["measure"].items()}
        for row in result["results"]
    }


# --- retrieval


@pytest.mark.parametrize(
    "sweep", [Sweep(), Sweep(strengths=("none", 0.5, 1.0)), Sweep(strengths=(0.5,), centres=("common", "none"))]
)
def test_given_queries_are_ranked_as_encoded_ones(setup: Setup, sweep: Sweep) -> None:
    task = RetrievalOptions(setup.folder, query_vectors=setup.queries)
    ours = evaluate_retrieval(Target.of_index(setup.given), task, sweep)
    theirs = evaluate_retrieval(Target.of_index(setup.encoded), dataclasses.replace(task, query_vectors=None), sweep)
    assert measures(ours) == measures(theirs)
    assert len(ours["results"]) == len(sweep.strengths or (0,)) * len(sweep.centres or (0,)) + 1
    assert "q.npy" in ours["provenance"]["data"]
    mixed = evaluate_retrieval(Target.of_index(setup.encoded), task, sweep)
    assert measures(mixed) == measures(theirs)


def test_vectors_of_queries_may_come_in_any_order_and_format(setup: Setup, tmp_path: Path) -> None:
    rows = [{"id": f"q{n}", "vector": row.tolist()} for n, row in enumerate(np.load(setup.queries))]
    write_lines(tmp_path / "queries.jsonl", list(reversed(rows)))
    subject = Target.of_index(setup.given)
    one, other = (
        evaluate_retrieval(subject, RetrievalOptions(setup.folder, bm25=False, query_vectors=file))
        for file in (setup.queries, tmp_path / "queries.jsonl")
    )
    assert measures(one) == measures(other)


def test_queries_that_cannot_be_asked_are_refused(setup: Setup, tmp_path: Path) -> None:
    task, subject = RetrievalOptions(setup.folder, query_vectors=setup.queries), Target.of_index(setup.given)
    with pytest.raises(ConfigError, match=r"Fix: name the embeddings of the queries: query_vectors=FILE\.npy"):
        evaluate_retrieval(subject, RetrievalOptions(setup.folder))
    with pytest.raises(ConfigError, match=r"Fix: leave out layers and poolings"):
        evaluate_retrieval(subject, task, Sweep(layers=((1,),)))
    with pytest.raises(ConfigError, match=r"measured on an index\. Fix: build it"):
        evaluate_retrieval(Target.of_recipe(given(BuildConfig())), task)
    few = tmp_path / "few.npy"
    np.save(few, np.load(setup.queries)[:9])
    (tmp_path / "few.ids.txt").write_text("".join(f"q{n}\n" for n in range(9)))
    with pytest.raises(EvaluationError, match=r'has no vector for 2 of 11 judged queries \("q9", "q10"\)'):
        evaluate_retrieval(subject, dataclasses.replace(task, query_vectors=few))
    np.save(few, np.load(setup.queries)[:9, :3])
    one = RetrievalOptions(only(setup.folder, tmp_path / "one", "q0"), query_vectors=few, bm25=False)
    with pytest.raises(EvaluationError, match="the vectors have 3 numbers, the embeddings of the index"):
        evaluate_retrieval(subject, one)


def only(folder: Path, copy: Path, query: str) -> Path:
    """The folder with judgements of one query."""
    (copy / "qrels").mkdir(parents=True)
    (copy / "queries.jsonl").write_bytes((folder / "queries.jsonl").read_bytes())
    (copy / "qrels/test.tsv").write_text(f"{query}\td0\t1\n")
    return copy


# --- recall


def test_documents_are_the_queries_of_recall(tmp_path: Path) -> None:
    """Their own rows and duplicates do not count, and they have the role of documents."""
    documents = without_text()
    documents += [dataclasses.replace(document, id=f"copy-{document.id}") for document in documents[:5]]
    config = dataclasses.replace(given(BuildConfig()), whitening=COMMON)
    build_index(documents, tmp_path / "index", config)
    with SearchEngine(tmp_path / "index") as engine:
        result = evaluate_recall(engine, k=5)
        vectors = engine.index.vectors(np.arange(len(documents)))
        oracle = held_out_recall(
            vectors, [document.id for document in documents], vectors, range(len(documents)),
            lambda query, depth: engine.index.search(query[None], depth)[0][1].tolist(), 5,
        )  # fmt: skip
    row = result["results"][0]
    assert (row["recall"], row["queries"], row["origin"], row["excluded_at_most"]) == (1.0, 45, "documents", 2)
    assert set(row["latency_ms"]) == {"search"}
    assert [line[0].split()[0] for line in next(recall_tables(result)).rows] == [
        "recall",
        "queries",
        "index",
        "size",
        "search,",
    ]
    assert oracle == [1.0] * 45


def test_recall_takes_embeddings_of_real_queries(setup: Setup, tmp_path: Path) -> None:
    with SearchEngine(setup.given) as one, SearchEngine(setup.encoded) as other:
        for engine in (one, other):
            row = evaluate_recall(engine, k=5, file=setup.queries)["results"][0]
            assert (row["recall"], row["queries"], row["origin"]) == (1.0, 12, "file")
        with pytest.raises(ConfigError, match=r"so no titles can be encoded\. Fix: leave out origin"):
            evaluate_recall(one, origin="titles")
        np.save(tmp_path / "q.npy", np.ones((1, 3)))
        with pytest.raises(EvaluationError, match="vectors of 3 numbers"):
            evaluate_recall(one, file=tmp_path / "q.npy")
        (tmp_path / "q.txt").write_text("whales\n")
        with pytest.raises(ConfigError, match="no text can be encoded here"):
            evaluate_recall(one, file=tmp_path / "q.txt")


# --- what needs texts


@pytest.mark.parametrize(
    "command",
    [
        ["tune", "INDEX"],
        ["query", "INDEX", "whales"],
        ["evaluate", "sts", "sts-folder", "--index", "INDEX"],
        ["evaluate", "layers", "sts-folder", "--index", "INDEX"],
        ["evaluate", "rte", "val.jsonl", "--index", "INDEX"],
    ],
    ids=lambda words: "-".join(words[:2]),
)
def test_commands_that_encode_texts_say_that_they_cannot(
    setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    lay_out(tmp_path)
    monkeypatch.chdir(tmp_path)
    done = isotrope(*(str(setup.given) if word == "INDEX" else word for word in command))
    assert done.returncode == 1
    assert "came with the corpus, so no text can be encoded here." in done.stderr
    assert "Traceback" not in done.stderr


def test_tuning_names_the_way_out(setup: Setup) -> None:
    with pytest.raises(ConfigError, match=r"evaluate_retrieval\(INDEX, RetrievalOptions\(BEIR_FOLDER, query_vectors="):
        run_tune(Target.of_index(setup.given), TuneOptions((str(setup.given),)))


# --- report, inspect, de-duplication


def test_a_report_leaves_out_what_was_never_encoded(setup: Setup, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with SearchEngine(setup.given) as engine:
        write_report(engine, tmp_path / "report.html", ReportOptions(recall=True))
    page = (tmp_path / "report.html").read_text()
    assert "the embeddings came with the corpus" in page
    assert "truncated" not in page
    assert "Tokens per document" not in page
    assert "recall@10" in page


def kept_rows(setup: Setup, path: Path) -> list[dict[str, Any]]:
    """Write the kept documents at a threshold that drops some, and read them back."""
    result = deduplicate_index(setup.given, 0.5)
    assert 0 < len(result.kept) < 60
    write_kept(path, result.index, result.kept)
    if path.suffix == ".parquet":
        rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
        return rows
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
def test_survivors_keep_their_embeddings(setup: Setup, tmp_path: Path, ending: str) -> None:
    rows = kept_rows(setup, tmp_path / f"kept.{ending}")
    index = Index.open(setup.given)
    stored: dict[str, npt.NDArray[np.floating]] = dict(
        zip(index.documents.all_ids(), index.embeddings(np.arange(60)), strict=True)
    )
    assert all(np.array_equal(np.float32(row["vector"]), stored[row["id"]]) for row in rows)
    config = index.config
    build_index(read_corpus(tmp_path / f"kept.{ending}", config=config.corpus), tmp_path / "again", config)
    again = Index.open(tmp_path / "again")
    assert list(again.documents.all_ids()) == [row["id"] for row in rows]
    assert next(again.documents.all_documents()).metadata == {}


def test_survivors_with_embeddings_do_not_fit_every_format(setup: Setup, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot store the embeddings of the corpus\. Fix: name a \.parquet"):
        kept_rows(setup, tmp_path / "kept.csv")


# --- on the command line


def test_the_whole_way_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    documents = without_text()
    np.save("X.npy", np.stack([document.vector for document in documents if document.vector is not None]))
    numbered = isotrope("build", "X.npy", "numbered", "--set", "encoder.kind=vectors")
    assert "write a list beside X.npy: X.ids.txt with one id per line" in numbered.stderr
    assert "or X.ids.jsonl, .csv or .parquet with one row per vector" in numbered.stderr
    Path("X.ids.txt").write_text("".join(f"{document.id}\n" for document in documents))
    build = isotrope("build", "X.npy", "my-index", "--set", "encoder.kind=vectors", "--set", "encoder.model=ours")
    assert build.returncode == 0, build.stderr
    assert "embeddings  40 from the corpus, 0 reused" in build.stdout
    assert "indexed as they are" in build.stderr
    shown = isotrope("inspect", "my-index").stdout
    assert "none: the embeddings came with the corpus" in shown
    assert "ours" in shown
    assert isotrope("verify", "my-index").returncode == 0
    assert "40 embeddings of documents" in isotrope("evaluate", "recall", "my-index", "-k", "3").stdout
    fused = isotrope("query", "my-index", "--queries", "X.npy", "--hybrid")
    assert "--hybrid compares words, and embeddings contain none. Fix: leave out --hybrid." in fused.stderr
    rows = [{"id": document.id, "emb": vector_of(document)} for document in documents]
    write_lines(Path("docs.jsonl"), rows)
    again = isotrope("build", "docs.jsonl", "my-index", "--vector-column", "emb", "--set", "encoder.model=ours")
    assert "up to date" in again.stdout, again.stderr
    write_lines(Path("more.jsonl"), [{"id": "d0", "vector": rows[0]["emb"]}, {"id": "new", "vector": [1, 2, 3, 4, 5]}])
    added = isotrope("add", "my-index", "more.jsonl")
    assert "1 new, 0 replaced, 1 unchanged" in added.stdout, added.stderr
    assert "1 from the corpus" in added.stdout
    dedup = isotrope("dedup", "docs.jsonl", "--vector-column", "emb", "--threshold", "0.9999", "--kept", "kept.jsonl")
    assert dedup.returncode == 0, dedup.stderr
    assert Path("kept.jsonl").read_text() == Path("docs.jsonl").read_text()


def test_the_commands_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = examples(page("how-to/vectors").replace("\\\n", " "))
    lay_out(tmp_path)
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(0).normal(size=(120, 6)).astype(np.float32)
    for name, file, count in (("vectors", "corpus.jsonl", 120), ("questions", "queries.jsonl", 12)):
        lines = (tmp_path / "scifact" / file).read_text().splitlines()
        save_array(name, rows[:count], [json.loads(line)["_id"] for line in lines])
    Path("dumps").mkdir()
    pq.write_table(pa.table({"id": ["a", "b", "c"], "embedding": rows[:3].tolist()}), "dumps/a.parquet")
    exec(block(page("how-to/vectors"), "python", "mine.ids.jsonl"), {})  # noqa: S102
    assert len(calls) == 8
    for call in calls:
        done = isotrope(*call)
        assert done.returncode == 0, (call, done.stderr)


def save_array(name: str, rows: npt.NDArray[np.float32], ids: list[str]) -> None:
    np.save(f"{name}.npy", rows)
    Path(f"{name}.ids.txt").write_text("\n".join(ids))


def vector_of(document: Document) -> list[float]:
    assert document.vector is not None
    rows: list[float] = document.vector.tolist()
    return rows


def test_bad_rows_are_left_out_and_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows: list[dict[str, Any]] = [{"id": document.id, "vector": vector_of(document)} for document in without_text()]
    rows[7]["vector"] = [0] * 5
    rows[9]["vector"].pop()
    write_lines(Path("docs.jsonl"), rows)
    refused = isotrope("build", "docs.jsonl", "my-index", "--vector-column", "vector")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert 'docs.jsonl:8: the vector "vector" is all zero, and has no direction (id "d7")' in refused.stderr
    done = isotrope("build", "docs.jsonl", "my-index", "--vector-column", "vector", "--on-error", "skip")
    assert "2 rows were skipped (2 vector); see my-index.rejects.jsonl" in done.stderr, done.stderr
    assert len(SearchEngine("my-index")) == 38
