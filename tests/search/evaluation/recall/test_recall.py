"""`isotrope evaluate recall`: correct answers, excluded rows, drawn queries, and errors."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer import BuildConfig, Document, build_index
from indexer.errors import ConfigError, CorruptIndexError, EvaluationError
from indexer.hashing import canonical_sha256, hash_id
from indexer.recipe.config import EncoderConfig
from indexer.recipe.index_config import StoreConfig
from indexer.store.manifest import load_manifest
from search import SearchEngine
from search.evaluation.recall.drawn_queries import draw_queries
from search.evaluation.recall.recall import duplicates_of, evaluate_recall, exact_recall
from search.index import LiveRows
from tests.directories import snapshot
from tests.documents import DOCUMENTS
from tests.oracles import held_out_recall
from tests.search.cli.test_cli import isotrope

WORDS = [
    "whale", "bridge", "bread", "star", "river", "clock", "bee", "glass", "map", "sand",
    "deep", "old", "steel", "dance", "light", "stone", "wind", "red", "cold",
]  # fmt: skip
APPROXIMATE = ["index.type=IVF16,Flat", "index.recall=0.05"]


def corpus() -> list[Document]:
    """200 documents with titles; each of the last 20 repeats an earlier one under another id and title or text."""
    draw = random.Random(7)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(3, 9))) for _ in range(180)]
    first = [Document(f"d{n}", text, title=" ".join(draw.choices(WORDS, k=2))) for n, text in enumerate(texts)]
    return first + [Document(f"copy{n}", first[n % 5].text, title=first[n % 5].title) for n in range(20)]


Built = Callable[..., Path]


@pytest.fixture(scope="module")
def built(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Built:
    """An index of a corpus (by default the 200 documents) with some settings, built once per module."""
    made: dict[tuple[str, ...], Path] = {}
    encoder = EncoderConfig(model=str(tiny_model("bert")), max_length=32, precision="float32")
    config = BuildConfig(encoder=encoder, store=StoreConfig(part_documents=64))

    def build(*settings: str, documents: list[Document] | None = None) -> Path:
        key = (*settings, repr(documents))
        if key not in made:
            made[key] = tmp_path_factory.mktemp("recall") / "index"
            build_index(documents or corpus(), made[key], config.with_overrides(settings))
        return made[key]

    return build


def measured(index: Path, *arguments: Any, **named: Any) -> dict[str, Any]:
    """The only row of a result, and its notes."""
    result = evaluate_recall(SearchEngine(index), *arguments, **named)
    row: dict[str, Any] = result["results"][0]
    return row | {"notes": result["notes"]}


@pytest.mark.parametrize("k", [pytest.param(1, marks=pytest.mark.check), 10])
@pytest.mark.parametrize("origin", ["titles", "sentences", "halves"])
def test_recall_of_an_approximate_index_equals_the_oracle(built: Built, k: int, origin: Any) -> None:
    index = built(*APPROXIMATE)
    row = measured(index, k, origin=origin, sample=60)
    engine = SearchEngine(index)
    queries = draw_queries(LiveRows(engine.index), origin, 60)
    documents = corpus()
    texts = [f"{document.title} {document.text}" for document in documents]
    expected = held_out_recall(
        engine.embed(texts, "document"),
        texts,
        engine.embed(queries.texts),
        queries.drawn_from.tolist(),
        lambda vector, depth: engine.index.search(vector[None], depth)[0][1].tolist(),
        k,
    )
    assert row["recall"] == pytest.approx(np.mean(expected))
    assert 0 < row["recall"] < 1
    assert row["low"] < row["recall"] < row["high"]
    assert (row["k"], row["queries"], row["origin"], row["exact"]) == (k, 60, origin, False)
    assert row["excluded_at_most"] == 5  # itself and four copies


def test_a_flat_index_has_recall_one_and_its_latency_is_measured(built: Built) -> None:
    row = measured(built(), 10, sample=50)
    assert (row["exact"], row["recall"], row["low"], row["high"]) == (True, 1.0, 1.0, 1.0)
    for timed in row["latency_ms"].values():
        assert 0 < timed["p50"] <= timed["p90"] <= timed["p99"]
        assert timed["queries"] == 50


def test_a_flat_index_with_other_vectors_is_not_believed(built: Built) -> None:
    engine = SearchEngine(built())
    index = engine.index.segments[0].index
    vectors = index.reconstruct_n(0, index.ntotal)
    index.reset()
    index.add(vectors[::-1].copy())
    with pytest.raises(CorruptIndexError, match=r"recall 1 by construction, but recall@10 is 0\..*verify_index"):
        evaluate_recall(engine, 10, sample=20)


@pytest.mark.parametrize(("factory", "parameter"), [("IVF16,Flat", "nprobe"), ("HNSW8", "efSearch")])
def test_search_parameters_and_bytes_are_reported(built: Built, factory: str, parameter: str) -> None:
    index = built(f"index.type={factory}", "index.recall=0.05")
    row = measured(index, 5, sample=20)
    manifest = SearchEngine(index).index.manifest
    assert row["index_type"] == factory
    assert row["search_parameters"] == [entry.search_parameters for entry in manifest.segments]
    assert parameter in row["search_parameters"][0]
    size = sum((index / entry.file).stat().st_size for entry in manifest.segments)
    assert row["bytes_per_vector"] == pytest.approx(size / 200)


class Blocks(LiveRows):
    """Vectors in place of stored rows, in small blocks."""

    def __init__(self, vectors: Any, block: int) -> None:
        self.rows, self.block = vectors, block

    def vector_blocks(self) -> Iterator[tuple[int, Any]]:
        for start in range(0, len(self.rows), self.block):
            yield start, self.rows[start : start + self.block]


@given(st.data())
def test_exact_recall_equals_sorting_every_score(data: st.DataObject) -> None:
    """Few distinct coordinates, so that many rows tie; any block size; any excluded rows."""
    draw = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    rows, k = data.draw(st.integers(4, 40)), data.draw(st.integers(1, 3))
    vectors = draw.integers(-1, 2, (rows, 3)).astype(np.float32)
    queries = draw.integers(-2, 3, (5, 3)).astype(np.float32)
    excluded = [draw.choice(rows, draw.integers(0, rows - k + 1), replace=False) for _ in queries]
    answers = np.stack([draw.permutation(np.setdiff1d(np.arange(rows), out))[:k] for out in excluded])
    found = exact_recall(Blocks(vectors, data.draw(st.integers(1, rows))), queries, answers, excluded)
    for query, answer, out, share in zip(queries, answers, excluded, found, strict=True):
        scores = {row: float(query @ vectors[row]) for row in range(rows) if row not in out}
        worst = sorted(scores.values(), reverse=True)[k - 1]
        assert share == pytest.approx(sum(scores[row] >= worst for row in answer.tolist()) / k)


def test_an_answer_the_index_could_not_give_is_a_miss() -> None:
    vectors = np.eye(4, dtype=np.float32)
    answers = np.array([[0, -1]])
    assert exact_recall(Blocks(vectors, 4), vectors[:1], answers, [np.zeros(0, np.int64)]).tolist() == [0.5]


def test_rows_that_score_as_the_last_are_as_good(built: Built) -> None:
    """Twelve equal documents: any ten of them are the ten best."""
    documents = [Document(f"same{n}", "whale song") for n in range(12)] + DOCUMENTS
    file = built(documents=documents).parent / "queries.txt"
    file.write_text("whale song\n")
    assert measured(built(documents=documents), 10, file)["recall"] == 1.0


def test_duplicates_are_rows_with_the_same_text_or_the_same_vector(built: Built) -> None:
    long = "whale bridge " * 40  # cut at 32 tokens, so what follows changes the text and not the vector
    documents = [
        *DOCUMENTS,
        Document("a", "Same words."),
        Document("b", long + "red"),
        Document("c", "Same words."),
        Document("d", long + "blue"),
    ]
    stored = LiveRows(SearchEngine(built(documents=documents)).index)
    found = duplicates_of(stored, np.array([9, 10, 0, -1]))
    assert [rows.tolist() for rows in found] == [[9, 11], [10, 12], [0], []]


def test_queries_come_from_the_smallest_id_hashes_whatever_the_order(built: Built) -> None:
    documents = corpus()
    expected = sorted(documents, key=lambda document: hash_id(document.id))[:20]
    for order in (documents, documents[::-1]):
        queries = draw_queries(LiveRows(SearchEngine(built(documents=order)).index), None, 20)
        assert queries.origin == "titles"
        assert list(queries.texts) == [document.title for document in expected]
        assert [order[row].id for row in queries.drawn_from.tolist()] == [document.id for document in expected]


def test_titles_are_drawn_if_half_the_documents_have_one(built: Built) -> None:
    def origin(titled: int) -> str:
        documents = [Document(f"d{n}", f"Text {n}. More.", title="T" if n < titled else None) for n in range(10)]
        return draw_queries(LiveRows(SearchEngine(built(documents=documents)).index)).origin

    assert (origin(5), origin(4)) == ("titles", "sentences")


def test_sentences_and_halves_are_what_they_say(built: Built) -> None:
    documents = [
        Document("a", "One two three. Four five six.", title="T"),
        Document("b", "Alone"),
        Document("c", "", title="No text"),
    ]
    stored = LiveRows(SearchEngine(built(documents=documents)).index)
    sentences, halves = draw_queries(stored, "sentences"), draw_queries(stored, "halves")
    assert set(sentences.texts) == {"One two three.", "Alone"}
    assert sentences.notes == ("no query from 1 of 3 sampled documents (no text besides the title)",)
    assert halves.texts == ("One two three.",)
    assert halves.notes == ("no query from 2 of 3 sampled documents (fewer than two words of text)",)


def test_documents_repeated_beyond_use_are_left_out_and_said(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("search.evaluation.recall.recall._MOST_DUPLICATES", 4)
    row = measured(built(), 3)
    assert row["queries"] == 175
    assert row["notes"] == ["25 queries left out: from documents that occur more than 4 times"]
    monkeypatch.setattr("search.evaluation.recall.recall._MOST_DUPLICATES", 0)
    with pytest.raises(EvaluationError, match="none is a useful query"):
        measured(built(), 3)


def test_a_file_of_queries_is_used_whole_and_excludes_nothing(built: Built, tmp_path: Path) -> None:
    file = tmp_path / "queries.txt"
    file.write_bytes("\ufeffwhales sing\r\n\r\nbread \u2028 and\r butter\n".encode())
    row = measured(built(), 10, file)
    assert (row["queries"], row["origin"], row["excluded_at_most"]) == (2, "file", 0)
    assert row["notes"] == ["1 blank line of queries.txt left out"]


def test_too_few_documents_for_k_are_said_with_the_most_that_is_possible(built: Built, tmp_path: Path) -> None:
    documents = [*DOCUMENTS, Document("again", DOCUMENTS[0].text, title=DOCUMENTS[0].title)]
    index, file = built(documents=documents), tmp_path / "queries.txt"
    file.write_text("whales\n")
    assert measured(index, 10, file)["recall"] == 1.0
    with pytest.raises(EvaluationError, match=r"contains 10 documents\. Fix: pass at most k=10\."):
        measured(index, 11, file)
    assert measured(index, 8)["recall"] == 1.0
    with pytest.raises(
        EvaluationError, match=r'8 of them besides "(d0|again)", .*duplicates \(1\)\. Fix: pass at most k=8'
    ):
        measured(index, 9)
    with pytest.raises(EvaluationError, match="nothing to measure"):
        measured(built(documents=[Document("one", "alone"), Document("two", "alone")]), 1)


def test_bad_settings_are_refused(built: Built) -> None:
    with pytest.raises(ConfigError, match="k is 0"):
        measured(built(), 0)
    with pytest.raises(ConfigError, match="sample is 0"):
        measured(built(), 1, sample=0)
    with pytest.raises(EvaluationError, match=r"has a query \(no title\).*origin"):
        measured(built(documents=[Document("a", "x"), Document("b", "y")]), 1, origin="titles")


def test_a_damaged_embedding_is_found_before_it_is_used(tiny_config: BuildConfig, tmp_path: Path) -> None:
    build_index(DOCUMENTS, tmp_path / "index", tiny_config)
    file = next((tmp_path / "index").glob("parts/*/embeddings.npy"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptIndexError, match=r"embeddings\.npy"):
        measured(tmp_path / "index", 2)


def test_the_command_writes_a_result_and_leaves_the_index_alone(built: Built, tmp_path: Path) -> None:
    index = built(*APPROXIMATE)
    before = snapshot(index)
    for run in ("a", "b"):
        done = isotrope("evaluate", "recall", index, "--sample", "30", "-k", "5", "-o", tmp_path / f"{run}.json")
        assert done.returncode == 0, done.stderr
        assert done.stdout.split()[:2] == ["measured", "recall@5"]
        assert "nprobe" in done.stdout
        assert "30 from documents: titles" in done.stdout
    assert snapshot(index) == before
    first, second = (json.loads((tmp_path / f"{run}.json").read_text()) for run in ("a", "b"))
    assert {"command", "created", "versions", "encoder", "protocol", "index"} <= first["provenance"].keys()
    for result in (first, second):
        assert result["results"][0].pop("latency_ms")
    assert first["results"] == second["results"]


def test_the_command_reports_as_json_and_says_what_was_cut(built: Built, tmp_path: Path) -> None:
    file = tmp_path / "queries.txt"
    file.write_text("whale " * 100 + "\n")
    done = isotrope("evaluate", "recall", built(), "--queries", file, "--json")
    result = json.loads(done.stdout)
    assert result["notes"] == ["1 query is longer than 32 tokens and truncated"]
    assert done.stderr == "note: 1 query is longer than 32 tokens and truncated\n"
    assert list(result["provenance"]["data"]) == ["queries.txt"]
    manifest = load_manifest(built())
    assert result["provenance"]["index"] == {"generation": 1, "manifest": canonical_sha256(manifest.to_dict())}
    assert result["provenance"]["recipe"] == manifest.config
    shown = isotrope("evaluate", "recall", built(), "--queries", file)
    assert "by construction" in shown.stdout
    assert "and truncated" in shown.stderr


def test_a_limit_of_the_models_own_is_said_as_a_number(built: Built, tmp_path: Path) -> None:
    file = tmp_path / "queries.txt"
    file.write_text("whale " * 200 + "\n")
    row = measured(built("encoder.max_length=0"), 3, file)
    assert row["notes"] == ["1 query is longer than 128 tokens and truncated"]


def test_mistakes_on_the_command_line_are_one_clear_line(built: Built, tmp_path: Path) -> None:
    for arguments, message in [
        (["-k", "0"], "k is 0"),
        (["--queries", str(tmp_path / "none.txt")], "cannot be read"),
        (["--queries", "q", "--draw", "titles"], "leave out --draw and --sample"),
        (["--queries", "q", "--sample", "5"], "leave out --draw and --sample"),
        (["--sample", "0"], "sample is 0"),
    ]:
        done = isotrope("evaluate", "recall", built(), *arguments)
        assert (done.returncode, message in done.stderr) == (1, True), done.stderr
    assert isotrope("evaluate", "recall", tmp_path / "none").returncode == 1
