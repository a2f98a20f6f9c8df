"""Embeddings in a corpus: their files, their formats, and an error for every bad one."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer import BuildConfig, add_documents, build_index
from indexer.corpus.corpus import read_corpus
from indexer.corpus.document import Document
from indexer.corpus.query_file import read_query_vectors
from indexer.corpus.records import documents_of
from indexer.errors import ConfigError, CorpusError
from indexer.recipe.config import EncoderConfig
from indexer.recipe.corpus_config import CorpusConfig
from search.dedup.kept_documents import check_kept
from tests.indexer.corpus.corpus_files import check, jsonl, refusal, without_bad_rows, write

WITH_VECTORS = CorpusConfig(vector_column="vector")
NAN, INF = float("nan"), float("inf")
GOOD = [[1.0, 0.5, -2.0], [0.0, 3.0, 0.25]]


def parquet(folder: Path, column: pa.Array, ids: list[str] | None = None) -> Path:
    """Write a file with only ids and vectors."""
    path = folder / "docs.parquet"
    names = ids or [chr(ord("a") + place) for place in range(len(column))]
    pq.write_table(pa.table({"id": pa.array(names), "vector": column}), path)
    return path


def array(folder: Path, rows: Any, ids: str | None = None, name: str = "X") -> Path:
    """Write X.npy and X.ids.txt, with the given ids or a letter each."""
    np.save(folder / f"{name}.npy", np.asarray(rows, np.float32) if isinstance(rows, list) else rows)
    letters = "".join(f"{chr(ord('a') + place)}\n" for place in range(len(rows)))
    write(folder, f"{name}.ids.txt", letters if ids is None else ids)
    return folder / f"{name}.npy"


def read(*sources: Path, **options: Any) -> list[Document]:
    return list(read_corpus(*sources, config=options.pop("config", WITH_VECTORS), **options))


def vectors(documents: list[Document]) -> npt.NDArray[np.float32]:
    """Return the vectors of documents, stacked."""
    return np.stack([document.vector for document in documents if document.vector is not None])


# --- good vectors


LIST_TYPES = [
    pa.list_(pa.float32()),
    pa.list_(pa.float64()),
    pa.list_(pa.float16()),
    pa.list_(pa.int32()),
    pa.large_list(pa.float32()),
    pa.list_(pa.float32(), 3),
    pa.list_(pa.float16(), 3),
]


@pytest.mark.parametrize("kind", LIST_TYPES, ids=str)
@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_lists_of_numbers_of_any_type_are_vectors(tmp_path: Path, kind: pa.DataType, ending: str) -> None:
    rows = [[1, 2, 4], [0, 3, 0], [-8, 16, 32]]
    column = pa.array(rows if pa.types.is_integer(kind.value_type) else np.array(rows, "f2").tolist(), kind)
    table = pa.table({"id": ["a", "b", "c"], "vector": column})
    path = tmp_path / f"docs.{ending}"
    if ending == "parquet":
        pq.write_table(table, path)
    else:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
    found = read(path)
    assert [document.id for document in found] == ["a", "b", "c"]
    assert vectors(found).tolist() == rows
    assert all(document.vector is not None and document.vector.dtype == np.float32 for document in found)
    assert all((document.text, document.title, document.metadata) == ("", None, {}) for document in found)


def test_tensors_of_one_axis_are_vectors(tmp_path: Path) -> None:
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(np.array(GOOD, np.float32))
    assert vectors(read(parquet(tmp_path, tensors))).tolist() == GOOD
    matrices = pa.FixedShapeTensorArray.from_numpy_ndarray(np.ones((2, 3, 3), np.float32))
    message = refusal(parquet(tmp_path, matrices), config=WITH_VECTORS)
    assert 'the column "vector" contains tensors of shape (3, 3); expected one axis' in message


@given(
    rows=st.lists(st.lists(st.floats(-(2.0**59), 2.0**59, width=32), min_size=2, max_size=2).filter(any), min_size=1),
    batch=st.integers(1, 5),
    fixed=st.booleans(),
)
def test_rows_keep_their_vectors_however_the_file_is_cut(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[float]], batch: int, fixed: bool
) -> None:
    """Slices of Arrow columns share one buffer of numbers, of which each must read its own part."""
    path = tmp_path_factory.mktemp("cut") / "docs.arrow"
    kind = pa.list_(pa.float32(), 2) if fixed else pa.list_(pa.float32())
    table = pa.table({"id": [str(row) for row in range(len(rows))], "vector": pa.array(rows, kind)})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        for start in range(0, len(rows), batch):
            writer.write_table(table.slice(start, batch))
    assert np.array_equal(vectors(read(path)), np.array(rows, np.float32))


def test_json_lines_hold_vectors_as_lists(tmp_path: Path) -> None:
    path = write(tmp_path, "docs.jsonl", '{"id": "a", "vector": [1, 0.5, -2]}\n{"id": "b", "vector": [0, 3, 0.25]}\n')
    assert vectors(read(path)).tolist() == GOOD


def test_csv_holds_vectors_as_json(tmp_path: Path) -> None:
    path = write(tmp_path, "docs.csv", 'id,vector\na,"[1, 0.5, -2]"\nb,"[0, 3, 0.25]"\n')
    assert 'is text; expected a list of numbers (id "a"). Fix: set corpus.columns = {"vector": "json"}' in refusal(
        path, config=WITH_VECTORS
    )
    config = CorpusConfig(vector_column="vector", columns={"vector": "json"})
    assert vectors(read(path, config=config)).tolist() == GOOD


def test_texts_titles_and_metadata_come_along_and_a_text_may_be_blank(tmp_path: Path) -> None:
    path = jsonl(tmp_path, '{"_id": "b", "title": "T", "text": " ", "year": 2000, "vector": [1, 2]}')
    lines = path.read_text().replace('"text": "first"', '"text": "first", "vector": [1, 1]')
    write(tmp_path, "docs.jsonl", lines.replace('"text": "last"', '"text": null, "vector": [2, 1]'))
    first, second, third = read(path)
    assert (first.text, second.text, third.text) == ("first", " ", "")
    assert (second.title, second.metadata) == ("T", {"year": 2000})


def test_another_column_can_hold_them(tmp_path: Path) -> None:
    path = write(tmp_path, "docs.jsonl", '{"id": "a", "emb": [1, 2], "vector": [9, 9]}\n')
    (document,) = read(path, config=CorpusConfig(vector_column="emb"))
    assert document.vector is not None
    assert document.vector.tolist() == [1, 2]
    assert document.metadata == {"vector": [9, 9]}


def test_without_a_vector_column_lists_of_numbers_are_metadata(tmp_path: Path) -> None:
    path = write(tmp_path, "docs.jsonl", '{"id": "a", "text": "x", "vector": [1, 2]}\n')
    (document,) = read(path, config=CorpusConfig())
    assert (document.vector, document.metadata) == (None, {"vector": [1, 2]})


# --- arrays


@pytest.mark.parametrize("kind", ["<f2", "<f4", "<f8", ">f4", ">f8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_any_float_type_and_order(tmp_path: Path, kind: str, order: Any) -> None:
    path = array(tmp_path, np.asarray(GOOD, np.dtype(kind), order=order))
    found = read(path)
    assert [document.id for document in found] == ["a", "b"]
    assert vectors(found).tolist() == GOOD
    assert vectors(found).dtype == np.float32


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet", "txt.gz", "jsonl.gz"])
def test_the_list_of_ids_may_be_of_any_format(tmp_path: Path, ending: str) -> None:
    path = array(tmp_path, GOOD)
    (tmp_path / "X.ids.txt").unlink()
    table = {"id": ["a", "b"], "text": ["one", "two"], "year": [1, 2]}
    lines = "".join(json.dumps({"id": i, "text": t, "year": y}) + "\n" for i, t, y in zip(*table.values(), strict=True))
    contents = {"jsonl": lines, "csv": "id,text,year\na,one,1\nb,two,2\n", "txt.gz": "a\nb\n", "jsonl.gz": lines}
    if ending == "parquet":
        pq.write_table(pa.table(table), tmp_path / "X.ids.parquet")
    else:
        data = contents[ending].encode()
        write(tmp_path, f"X.ids.{ending}", gzip.compress(data) if ending.endswith(".gz") else data)
    found = read(path)
    assert vectors(found).tolist() == GOOD
    assert [document.id for document in found] == ["a", "b"]
    assert [document.text for document in found] == (["", ""] if ending == "txt.gz" else ["one", "two"])


def test_a_compressed_array_is_read(tmp_path: Path) -> None:
    path = array(tmp_path, GOOD)
    packed = write(tmp_path, "X.npy.gz", gzip.compress(path.read_bytes()))
    path.unlink()
    assert vectors(read(packed)).tolist() == GOOD


def test_a_folder_reads_arrays_and_not_their_lists(tmp_path: Path) -> None:
    array(tmp_path, GOOD)
    array(tmp_path, [[7.0, 7.0, 7.0]], "z\n", name="Y")
    assert [document.id for document in read(tmp_path)] == ["a", "b", "z"]
    both = read_corpus(tmp_path / "X.npy", tmp_path / "X.ids.txt", config=WITH_VECTORS)
    assert [document.id for document in both] == ["a", "b"]


def test_a_folder_with_arrays_is_read_as_before_where_no_vectors_are_wanted(tmp_path: Path) -> None:
    array(tmp_path, GOOD)
    (tmp_path / "X.ids.txt").unlink()
    write(tmp_path, "docs.jsonl", '{"id": "a", "text": "x"}\n')
    corpus = read_corpus(tmp_path)
    assert [document.id for document in corpus] == ["a"]
    assert corpus.report.ignored_files == [str(tmp_path / "X.npy")]


def test_an_array_is_refused_where_no_vectors_are_wanted(tmp_path: Path) -> None:
    with pytest.raises(
        CorpusError, match=r"X\.npy: an array of embeddings\. Fix: use them with config\.encoder\.kind = .vectors"
    ):
        read_corpus(array(tmp_path, GOOD))


def test_blank_lines_of_a_list_stand_for_no_vector(tmp_path: Path) -> None:
    assert [document.id for document in read(array(tmp_path, GOOD, "\na\n\n b\n\n"))] == ["a", " b"]


@pytest.mark.parametrize(
    ("ids", "found"), [("a\n", "1 rows"), ("", "0 rows"), ("a\nb\nc\n", "more than 2 rows"), ("a\nb\nc\nd\n", "more")]
)
@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_a_list_of_another_length_is_never_taken(tmp_path: Path, ids: str, found: str, on_error: Any) -> None:
    with pytest.raises(CorpusError, match=f"X.npy: 2 vectors, but .*X.ids.txt has {found}"):
        read(array(tmp_path, GOOD, ids), on_error=on_error)


def test_a_bad_row_of_the_list_takes_its_vector_with_it(tmp_path: Path) -> None:
    path = array(tmp_path, [[1, 1], [2, 2], [3, 3]])
    (tmp_path / "X.ids.txt").unlink()
    write(tmp_path, "X.ids.jsonl", '{"id": "a"}\n\nnot json\n{"id": "c"}\n')
    assert f"{path}:2: {tmp_path / 'X.ids.jsonl'}:3: not a JSON object" in refusal(path, config=WITH_VECTORS)
    kept, reasons, entries = without_bad_rows(path, config=WITH_VECTORS)
    assert (kept, reasons, entries[0]["line"]) == (["a", "c"], {"malformed": 1}, 2)
    assert vectors(read(path, on_error="skip")).tolist() == [[1, 1], [3, 3]]


def test_several_lists_are_refused(tmp_path: Path) -> None:
    path = array(tmp_path, GOOD)
    write(tmp_path, "X.ids.jsonl", "")
    assert "several lists of ids (X.ids.jsonl and X.ids.txt); expected one" in refusal(path, config=WITH_VECTORS)


@pytest.mark.parametrize("id_column", ["", "name"])
def test_rows_without_a_list_are_numbered_from_0_across_arrays(tmp_path: Path, id_column: str) -> None:
    np.save(tmp_path / "X.npy", np.array(GOOD, np.float32))
    np.save(tmp_path / "Y.npy", np.array([*GOOD, [0, 0, 0], *GOOD], np.float32))
    config = CorpusConfig(vector_column="vector", id_column=id_column)
    corpus = read_corpus(tmp_path, config=config, on_error="skip")
    for _ in range(2):
        found = list(corpus)
        assert [document.id for document in found] == ["0", "1", "2", "3", "5", "6"]
        assert vectors(found).tolist() == 3 * GOOD
        assert (corpus.report.numbered, corpus.report.made_ids, corpus.report.rejected) == (7, 0, {"vector": 1})


def test_numbered_rows_are_added_only_to_an_empty_index(tmp_path: Path) -> None:
    np.save(tmp_path / "X.npy", np.array(GOOD, np.float32))
    recipe = BuildConfig(encoder=EncoderConfig(kind="vectors"))
    corpus = read_corpus(tmp_path / "X.npy", config=recipe.corpus)
    build_index([], tmp_path / "index", recipe)
    assert add_documents(corpus, tmp_path / "index").added == 2
    with pytest.raises(
        CorpusError, match=r"would replace documents of .*index with the same ids\. Fix: write X\.ids\.txt"
    ):
        add_documents(corpus, tmp_path / "index")


def test_a_list_with_vectors_of_its_own_is_refused(tmp_path: Path) -> None:
    path = array(tmp_path, GOOD)
    (tmp_path / "X.ids.txt").unlink()
    write(tmp_path, "X.ids.jsonl", '{"id": "a", "vector": [1]}\n{"id": "b", "vector": [1]}\n')
    assert 'has a column "vector", but the vectors come from' in refusal(path, config=WITH_VECTORS)


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        (np.ones(3, np.float32), "an array of type float32 and shape (3,); expected an array (n, d) of float16"),
        (np.ones((2, 3, 4), np.float32), "shape (2, 3, 4); expected"),
        (np.ones((2, 3), np.int32), "type int32"),
        (np.ones((2, 0), np.float32), "shape (2, 0)"),
        (np.ones((2, 3), np.complex64), "type complex64"),
        (np.array([["a"], ["b"]]), "expected an array (n, d)"),
    ],
)
def test_arrays_that_are_no_embeddings_are_refused(tmp_path: Path, rows: Any, what: str) -> None:
    message = refusal(array(tmp_path, rows), config=WITH_VECTORS)
    assert what in message
    assert message.endswith("Fix: write it with numpy.save.")


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (lambda data: data[:-4], "truncated: the header states 2 vectors, the file has 1"),
        (lambda data: data[:20], "not a readable .npy file"),
        (lambda data: b"PK" + data, "not a readable .npy file"),
        (lambda data: b"", "not a readable .npy file"),
        (lambda data: data.replace(b"'descr'", b"'descz'"), "not a readable .npy file"),
        (lambda data: data.replace(b"(2, 3)", b"(2, -3"), "not a readable .npy file"),
    ],
)
def test_damaged_arrays_are_broken_files(tmp_path: Path, damage: Any, what: str) -> None:
    path = array(tmp_path, GOOD)
    path.write_bytes(damage(path.read_bytes()))
    message = refusal(path, config=WITH_VECTORS)
    assert message.startswith(f"{path}:1: {what}"), message
    assert "the rest of the file is skipped" in message


def test_a_pickled_array_is_never_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "X.npy", np.array([[{}]], object), allow_pickle=True)
    write(tmp_path, "X.ids.txt", "a\n")
    assert "an array of type object" in refusal(tmp_path / "X.npy", config=WITH_VECTORS)


def test_a_list_of_ids_is_part_of_the_corpus_and_never_written_over(tmp_path: Path) -> None:
    path = array(tmp_path, GOOD)
    with pytest.raises(ConfigError, match="is part of the corpus; rejects needs another file"):
        read_corpus(path, config=WITH_VECTORS, on_error="skip", rejects=tmp_path / "X.ids.txt")
    with pytest.raises(ConfigError, match=r"is an input of this run\. Fix: name another file"):
        check_kept(tmp_path / "X.ids.txt", corpus=read_corpus(path, config=WITH_VECTORS))


# --- bad vectors, each in every format that can contain it

JSON_ROWS = [
    ("null", 'the vector "vector" is null'),
    ("[]", 'the vector "vector" is empty'),
    ("[0, 0.0]", 'the vector "vector" is all zero, and has no direction'),
    ("[1e-60, 0]", 'the vector "vector" is all zero in float32, and has no direction'),
    ("[1, 1e30]", 'the vector "vector" contains 1e+30 at position 2, beyond 1e+18'),
    ("[1, 2, 3]", "the vector has 3 numbers, but that at {path}:1 has 2"),
    ("[1]", "the vector has 1 number, but that at {path}:1 has 2"),
    ("[1, null]", 'the vector "vector" is a list with null at position 2; expected a list of numbers'),
    ("[true, 1]", 'the vector "vector" is a list with true or false at position 1; expected a list of numbers'),
    ('["1", "2"]', 'the vector "vector" is a list with text at position 1; expected a list of numbers'),
    ("[[1, 2]]", 'the vector "vector" is a list with a list at position 1; expected a list of numbers'),
    ('{"0": 1}', 'the vector "vector" is an object; expected a list of numbers'),
    ("7", 'the vector "vector" is a number; expected a list of numbers'),
    ("[1, 1" + "0" * 400 + "]", "contains a whole number beyond the range of a 64-bit float"),
]


@pytest.mark.parametrize(("value", "what"), JSON_ROWS)
def test_bad_vectors_in_json_are_refused_with_line_and_id(tmp_path: Path, value: str, what: str) -> None:
    row = '{{"_id": "{}", "vector": {}}}\n'
    path = write(tmp_path, "docs.jsonl", row.format("a", "[1, 2]") + row.format("b", value) + row.format("c", "[3, 4]"))
    what = what.format(path=path)
    check(path, "vector", what, document_id="b", config=WITH_VECTORS)


def test_a_row_without_the_column_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "docs.jsonl", '{"_id": "a", "vector": [1]}\n{"_id": "b", "vectors": [1]}\n')
    assert (
        'the vector column "vector" is missing (did you mean "vectors"?); columns found: "_id", "vectors"'
        in refusal(path, config=WITH_VECTORS)
    )
    table = parquet(tmp_path, pa.array(GOOD))
    message = refusal(table, config=CorpusConfig(vector_column="emb"))
    assert message.endswith("Fix: set corpus.vector_column to the name of the embedding column.")


ARROW_ROWS: list[tuple[list[float | None] | None, str]] = [
    (None, 'the vector "vector" is null'),
    ([], 'the vector "vector" is empty'),
    ([1.0, NAN], 'the vector "vector" contains NaN at position 2'),
    ([-INF, 0.0], 'the vector "vector" contains infinity at position 1'),
    ([0.0, 0.0], 'the vector "vector" is all zero, and has no direction'),
    ([1.0, None], 'the vector "vector" contains null at position 2'),
    ([1.0], "the vector has 1 number, but that at {path}:1 has 2"),
]


@pytest.mark.parametrize(("value", "what"), ARROW_ROWS)
def test_bad_vectors_in_parquet_are_refused_with_row_and_id(
    tmp_path: Path, value: list[float | None] | None, what: str
) -> None:
    path = parquet(tmp_path, pa.array([[1.0, 2.0], value, [3.0, 4.0]], pa.list_(pa.float32())))
    check(path, "vector", what.format(path=path), document_id="b" if value != [1.0, None] else None,
          config=WITH_VECTORS)  # fmt: skip


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ([1.0, NAN], "contains NaN at position 2"),
        ([INF, 1.0], "contains infinity at position 1"),
        ([0.0, 0.0], "is all zero, and has no direction"),
        ([1e300, 0.0], "contains 1e+300 at position 1, beyond 1e+18"),
    ],
)
def test_bad_vectors_in_arrays_are_refused_with_row_and_id(tmp_path: Path, value: list[float], what: str) -> None:
    path = array(tmp_path, np.array([[1.0, 2.0], value, [3.0, 4.0]]))
    check(path, "vector", f'the vector "vector" {what}', document_id="b", config=WITH_VECTORS)


def test_a_refused_row_does_not_say_how_long_vectors_are(tmp_path: Path) -> None:
    rows = [("a", "[0, 0, 0]"), ("b", "[1, 2]"), ("c", "[3, 4]")]
    path = write(tmp_path, "docs.jsonl", "".join(f'{{"_id": "{i}", "vector": {v}}}\n' for i, v in rows))
    assert [document.id for document in read(path, on_error="skip")] == ["b", "c"]


def test_lengths_must_agree_across_files(tmp_path: Path) -> None:
    array(tmp_path, GOOD)
    array(tmp_path, [[1.0, 2.0]], "z\n", name="Y")
    message = refusal(tmp_path, config=WITH_VECTORS)
    assert f"Y.npy:1: the vector has 2 numbers, but that at {tmp_path / 'X.npy'}:1 has 3" in message


# --- documents from a program


def given_documents(*documents: Document, config: CorpusConfig = WITH_VECTORS) -> list[Document]:
    return list(documents_of(documents, config))


def test_documents_may_hand_over_lists_and_arrays_of_any_type() -> None:
    wide = np.array([1.0, 2.0])
    found = given_documents(Document("a", "", vector=[1, 2]), Document("b", "", vector=wide))  # type: ignore[arg-type]
    assert vectors(found).tolist() == [[1, 2], [1, 2]]
    wide[0] = 9
    assert vectors(found).tolist() == [[1, 2], [1, 2]], "what was checked is what is kept"


@pytest.mark.parametrize(
    ("vector", "what"),
    [
        (None, 'document 2 (id "b"): the vector "vector" is null'),
        (np.ones(3), "the vector has 3 numbers, but that at document 1 has 2"),
        (np.ones((1, 2)), "is an array of type float64 and shape (1, 2)"),
        (np.array([1.0, NAN]), "contains NaN at position 2"),
        (np.zeros(2), "is all zero"),
    ],
)
def test_documents_with_bad_vectors_are_refused(vector: Any, what: str) -> None:
    with pytest.raises(CorpusError) as caught:
        given_documents(Document("a", "", vector=np.ones(2, np.float32)), Document("b", "text", vector=vector))
    assert what in str(caught.value)


def test_a_vector_is_refused_where_the_encoder_makes_its_own() -> None:
    with pytest.raises(CorpusError, match="it has a vector, but the encoder of the recipe computes the vectors"):
        given_documents(Document("a", "text", vector=np.ones(2, np.float32)), config=CorpusConfig())


def test_documents_are_equal_whatever_their_vectors_are() -> None:
    assert Document("a", "x", vector=np.ones(2, np.float32)) == Document("a", "x")
    assert "vector" not in repr(Document("a", "x", vector=np.ones(2, np.float32)))


# --- files of queries


def test_a_file_of_query_vectors_is_read_as_it_is(tmp_path: Path) -> None:
    np.save(tmp_path / "q.npy", np.array(GOOD))
    assert read_query_vectors(tmp_path / "q.npy", 3).tolist() == GOOD
    np.save(tmp_path / "one.npy", np.array(GOOD[0], np.float16))
    assert read_query_vectors(tmp_path / "one.npy", 3).tolist() == GOOD[:1]


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        (np.ones((2, 4)), "vectors of 4 numbers; expected 3"),
        (np.ones((0, 3)), "no query; expected at least one row"),
        (np.ones((2, 3), np.int64), "an array of type int64"),
        (np.array([[1, 1, 1], [1, NAN, 1]]), ':2: the vector "query" contains NaN at position 2'),
        (np.zeros((1, 3)), ':1: the vector "query" is all zero'),
    ],
)
def test_a_bad_file_of_query_vectors_is_refused(tmp_path: Path, rows: npt.NDArray[Any], what: str) -> None:
    np.save(tmp_path / "q.npy", rows)
    with pytest.raises(ConfigError) as caught:
        read_query_vectors(tmp_path / "q.npy", 3, where="--vector: ")
    assert str(caught.value).startswith(f"--vector: {tmp_path / 'q.npy'}")
    assert what in str(caught.value)


def test_a_file_of_query_vectors_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"q\.npy: cannot be read: No such file"):
        read_query_vectors(tmp_path / "q.npy", 3)
