"""Types of metadata: inferred, merged, written and made canonical."""

import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.corpus.row import BadRow
from indexer.corpus.schema import (
    SchemaBuilder,
    drop_nulls,
    infer_schema,
    merge_schemas,
    schema_from_json,
    schema_to_json,
)
from indexer.errors import CorpusError, StoreError

EVERY_TYPE: dict[str, Any] = {
    "truth": True,
    "whole": 1,
    "fraction": 1.5,
    "words": "x",
    "bytes": b"x",
    "day": date(2020, 1, 2),
    "clock": time(1, 2, 3),
    "stamp": datetime(2020, 1, 2),
    "zoned": datetime(2020, 1, 2, tzinfo=UTC),
    "money": Decimal("12.50"),
    "list": [1, 2],
    "nulls": [None],
    "struct": {"a": {"b": [{"c": "x"}]}},
}


def conflict(*values: Any) -> str:
    """Return the message for the last value after the others, each at a place f:1, f:2 and so on."""
    types = SchemaBuilder()
    *fitting, last = values
    for number, value in enumerate(fitting, 1):
        types.observe({"v": value}, f"f:{number}")
    with pytest.raises(BadRow) as caught:
        types.observe({"v": last}, f"f:{len(values)}")
    assert caught.value.reason == "type"
    return str(caught.value)


def test_every_type_is_found_described_and_stored(tmp_path: Path) -> None:
    schema = infer_schema([EVERY_TYPE])
    described = schema_to_json(schema)
    assert described == {
        "truth": "bool",
        "whole": "int64",
        "fraction": "float64",
        "words": "string",
        "bytes": "binary",
        "day": "date32",
        "clock": "time64[us]",
        "stamp": "timestamp[us]",
        "zoned": "timestamp[us, tz=UTC]",
        "money": "decimal128(4, 2)",
        "list": {"list": "int64"},
        "nulls": {"list": "null"},
        "struct": {"struct": {"a": {"struct": {"b": {"list": {"struct": {"c": "string"}}}}}}},
    }
    assert schema_from_json(json.loads(json.dumps(described))) == schema
    pq.write_table(pa.Table.from_pylist([EVERY_TYPE], schema), tmp_path / "a.parquet")
    stored = pq.read_table(tmp_path / "a.parquet")
    assert drop_nulls(stored.to_pylist()[0]) == EVERY_TYPE
    assert schema_to_json(stored.schema) == described


TYPES = st.recursive(
    st.sampled_from(
        [
            *(pa.bool_(), pa.int64(), pa.float64(), pa.string(), pa.binary(), pa.null(), pa.date32(), pa.time64("us")),
            *(pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.timestamp("us", "Europe/Paris")),
            pa.decimal128(38, 3),
        ]
    ),
    lambda inner: (
        inner.map(pa.list_)
        | st.dictionaries(st.text(), inner, min_size=1, max_size=3).map(lambda fields: pa.struct(list(fields.items())))
    ),
    max_leaves=5,
)
SCHEMAS = st.dictionaries(st.text(), TYPES, max_size=4).map(lambda fields: pa.schema(list(fields.items())))


@settings(max_examples=50, deadline=None)
@given(SCHEMAS)
def test_a_described_schema_is_parsed_back(schema: pa.Schema) -> None:
    assert schema_from_json(json.loads(json.dumps(schema_to_json(schema)))) == schema


@settings(max_examples=50, deadline=None)
@given(SCHEMAS)
def test_merging_a_schema_with_itself_changes_nothing(schema: pa.Schema) -> None:
    assert merge_schemas([schema, schema]) == schema


@pytest.mark.parametrize(
    "form", ["float", "decimal128(x)", {"list": "string", "struct": {}}, {"map": "string"}, 7, None]
)
def test_unknown_descriptions_are_refused(form: Any) -> None:
    with pytest.raises(StoreError, match="unknown type of a metadata column"):
        schema_from_json({"v": form})


def test_types_that_are_never_stored_are_not_described() -> None:
    with pytest.raises(StoreError, match="cannot be stored as Arrow type duration"):
        schema_to_json(pa.schema([("v", pa.duration("s"))]))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2.5], pa.float64()),
        ([2.5, 1], pa.float64()),
        ([2**53, 0.5], pa.float64()),
        ([2**63 - 1, -(2**63)], pa.int64()),
        ([[], [1], [2.5]], pa.list_(pa.float64())),
        ([[None], ["x"]], pa.list_(pa.string())),
        ([[1, None, 2.5]], pa.list_(pa.float64())),
        ([{"a": 1}, {"b": "x"}, {"a": 0.5}], pa.struct([("a", pa.float64()), ("b", pa.string())])),
        ([[{"a": 1}, {"b": 2}]], pa.list_(pa.struct([("a", pa.int64()), ("b", pa.int64())]))),
        ([Decimal("1.25"), Decimal("100")], pa.decimal128(5, 2)),
        ([Decimal("1E+3")], pa.decimal128(4, 0)),
        ([Decimal("0.001")], pa.decimal128(4, 3)),
    ],
)
def test_types_that_merge_without_loss(values: list[Any], expected: pa.DataType) -> None:
    schema = infer_schema({"v": value} for value in values)
    assert schema == pa.schema([("v", expected)])
    stored = pa.array(values, expected).to_pylist()
    assert [drop_nulls({"v": value}) for value in stored] == [{"v": value} for value in values]


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (1, "x", "contains text at f:2, but whole numbers at f:1"),
        (True, 1, "contains whole numbers at f:2, but true or false at f:1"),
        (1.5, True, "contains true or false at f:2, but numbers at f:1"),
        ([1], 1, "contains whole numbers at f:2, but lists at f:1"),
        ({"a": 1}, "x", "contains text at f:2, but objects at f:1"),
        (datetime(2020, 1, 1), datetime(2020, 1, 1, tzinfo=UTC), "times with a zone at f:2, but times without a zone"),
        (date(2020, 1, 1), datetime(2020, 1, 1), "times without a zone at f:2, but dates at f:1"),
        (Decimal(1), 1, "contains whole numbers at f:2, but decimals at f:1"),
        (2**53 + 1, 0.5, "whole number beyond 2**53 at f:1, but fractions at f:2"),
        (0.5, -(2**53) - 1, "whole number beyond 2**53 at f:2, but fractions at f:1"),
    ],
)
def test_conflicts_name_both_places_and_the_way_out(first: Any, second: Any, said: str) -> None:
    message = conflict(first, second)
    assert said in message
    assert 'Fix: set corpus.columns = {"v": "string"}' in message


def test_conflicts_inside_nested_values_name_the_field_and_the_column() -> None:
    message = conflict({"a": {"b": 1}}, {"a": {"b": "x"}})
    assert message.startswith('metadata column "v.a.b" contains text at f:2, but whole numbers at f:1. ')
    assert 'corpus.columns = {"v": "string"}' in message
    assert "text at f:1, but whole numbers at f:1" in conflict([1, "x"])


def test_a_wide_number_is_remembered_through_other_whole_numbers() -> None:
    assert "beyond 2**53 at f:2, but fractions at f:4" in conflict(1, 2**60, 3, 0.5)


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, Decimal("1e40"), Decimal("NaN"), object(), {"a": (1, 2)}])
def test_values_without_a_type_are_refused(value: Any) -> None:
    assert 'Fix: set corpus.columns = {"v": "string"}' in conflict(value)


def test_a_refused_document_leaves_no_trace() -> None:
    types = SchemaBuilder()
    types.observe({"a": 1}, "f:1")
    with pytest.raises(BadRow):
        types.observe({"new": "x", "a": "y"}, "f:2")
    assert types.schema() == pa.schema([("a", pa.int64())])


def test_conflicts_are_corpus_errors_also_between_parts() -> None:
    parts = [infer_schema([{"v": 1}]), infer_schema([{"w": 1}]), infer_schema([{"v": "x"}])]
    with pytest.raises(CorpusError, match=r'"v" contains text at part 2, but whole numbers at part 0'):
        merge_schemas(parts)
    assert merge_schemas(parts[:2]) == pa.schema([("v", pa.int64()), ("w", pa.int64())])


SCALARS = st.sampled_from([None, True, 1, 2**53, 2**60, 0.5, "x"])
ROWS = st.lists(
    st.dictionaries(st.sampled_from("abc"), SCALARS | st.lists(SCALARS, max_size=2), max_size=3), max_size=6
)


@settings(max_examples=100, deadline=None)
@given(ROWS, st.integers(0, 6))
def test_parts_merge_to_the_schema_of_the_whole(rows: list[dict[str, Any]], cut: int) -> None:
    rows = [drop_nulls(row) for row in rows]
    try:
        whole = infer_schema(rows)
    except BadRow:
        return  # other tests cover conflicts
    assert merge_schemas([infer_schema(rows[:cut]), infer_schema(rows[cut:])]) == whole


def test_canonical_metadata_has_no_nulls_but_in_lists() -> None:
    messy = {
        "a": None,
        "b": {"c": None},
        "d": {"e": {"f": None}, "g": 1},
        "h": [None, {"i": None, "j": 2}, {}],
        "k": [],
    }
    assert drop_nulls(messy) == {"d": {"g": 1}, "h": [None, {"j": 2}, None], "k": []}


VALUES = st.recursive(
    st.none() | st.integers() | st.text(),
    lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(), v, max_size=3),
    max_leaves=8,
)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.text(), VALUES, max_size=3))
def test_canonical_is_idempotent(metadata: dict[str, Any]) -> None:
    assert drop_nulls(drop_nulls(metadata)) == drop_nulls(metadata)
