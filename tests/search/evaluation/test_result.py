"""Results: one form and one scale, as strict JSON; other files are rejected."""

import html
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.errors import EvaluationError
from search.evaluation.result import Kind, Result, read_result, write_result
from search.evaluation.tables import interval_text, tables_of
from search.result_files import to_json

KEPT = Path(__file__).parents[3] / "docs/results"
SHOWN = {
    "hybrid-cacm-static.json": ("retrieval", "51.17 [43.84, 59.12]"),
    "hybrid-cacm.json": ("retrieval", "56.21 [49.07, 64.07]"),
    "hybrid-scifact-static.json": ("retrieval", "69.74 [65.80, 73.71]"),
    "hybrid-scifact.json": ("retrieval", "72.94 [69.25, 76.88]"),
    "retrieval-cacm.json": ("retrieval", "nDCG@10"),
    "retrieval-scifact.json": ("retrieval", "nDCG@10"),
    "sts-methods-minilm.json": ("methods", "sd over seeds"),
    "sts-methods-static.json": ("methods", "sd over seeds"),
    "sts.json": ("sts", "77.76 [76.86, 78.48]"),
    "tune-cacm-index.json": ("tune", "hybrid.weight=0.5"),
    "tune-cacm-labelled.json": ("tune", "chosen"),
    "tune-cacm-layers.json": ("tune", "chosen"),
    "tune-cacm-static.json": ("tune", "hybrid.weight=0.3"),
    "tune-scifact-index.json": ("tune", "hybrid.weight=0.5"),
    "tune-scifact-labelled.json": ("tune", "chosen"),
    "tune-scifact-layers.json": ("tune", "chosen"),
    "tune-scifact-static.json": ("tune", "hybrid.weight=0.2"),
}
"""Every file with its kind and a text from its tables."""


def written(result: Result) -> str:
    """All texts of its tables."""
    tables = tables_of(result)
    cells = [cell for table in tables for row in (table.columns, *table.rows) for cell in row]
    return " ".join([*(table.caption for table in tables), *cells, *(one for table in tables for one in table.remarks)])


def test_every_kept_result_is_expected_here() -> None:
    assert {path.name for path in KEPT.glob("*.json")} == set(SHOWN)


@pytest.mark.parametrize("name", SHOWN)
def test_every_kept_result_is_read_and_laid_out(name: str) -> None:
    result = read_result(KEPT / name)
    kind, shown = SHOWN[name]
    assert (result.kind, result.source) == (kind, name)
    tables = tables_of(result)
    assert shown in written(result)
    assert all(len(row) == len(table.columns) for table in tables for row in table.rows)
    stored = json.loads((KEPT / name).read_text(encoding="utf-8"))
    assert (stored["kind"], stored["unit"]) == (kind, "fraction")
    assert {key: result[key] for key in stored if key != "notes"} == {k: v for k, v in stored.items() if k != "notes"}


def test_a_result_is_a_mapping_with_the_keys_of_its_file(tmp_path: Path) -> None:
    result = Result("layers", {"command": "x"}, [{"layers": [0], "spearman": 0.5}], [], ["mind"],
                    {"layers": [0], "best": [], "paper": {}})  # fmt: skip
    write_result(tmp_path / "r.json", result)
    stored = json.loads((tmp_path / "r.json").read_text())
    assert stored == dict(result) == result.to_dict()
    assert list(stored) == ["kind", "unit", "provenance", "results", "comparisons", "layers", "best", "paper", "notes"]
    assert read_result(tmp_path / "r.json").to_dict() == stored
    assert len(result) == 9
    assert "table" not in result


def test_a_number_that_json_lacks_is_null_printed_and_in_a_file(tmp_path: Path) -> None:
    result = Result("recall", {"k": 1}, [{"recall": math.nan, "low": -math.inf, "high": 1.0, "latency_ms": {}}])
    write_result(tmp_path / "r.json", result)
    found: dict[str, Any] = {"recall": None, "low": None, "high": 1.0, "latency_ms": {}}
    assert json.loads((tmp_path / "r.json").read_text())["results"] == [found]
    assert json.loads(to_json(result))["results"] == [found]
    assert read_result(tmp_path / "r.json").results == [found]


@pytest.mark.parametrize(
    ("content", "kind"),
    [({"results": [{"accuracy": 1.0}]}, "other"), ({"results": [{"spearman": 0.8}], "kind": "sts"}, "sts")],
)
def test_a_file_says_its_kind(content: dict[str, Any], kind: str, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(json.dumps({"provenance": {}} | content))
    result = read_result(tmp_path / "r.json")
    assert (result.kind, result["unit"]) == (kind, "fraction")


def test_a_kind_without_what_it_adds_is_refused(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(json.dumps({"provenance": {}, "results": [{}], "kind": "tune"}))
    with pytest.raises(EvaluationError, match='its kind is "tune", but it has no "frontier"'):
        read_result(tmp_path / "r.json")


def test_a_figure_is_said_with_its_interval() -> None:
    assert interval_text({"value": 0.82034, "low": 0.79691, "high": 0.8405}) == "82.03 [79.69, 84.05]"
    assert interval_text({"value": 0.82034, "low": None, "high": None}) == "82.03"
    assert interval_text({"value": -0.001, "low": -0.02, "high": 0.01}, form="+.1f") == "-0.1 [-2.0, +1.0]"
    assert interval_text({"value": None}) == "undefined"
    assert interval_text({}) == interval_text(None) == ""


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
KEYS = ["spearman", "task", "latency_ms", "search", "measure", "low", "high", "value", "recall", "k", "encoder",
        "search_parameters", "index_type", "notes", "setting", "difference"]  # fmt: skip


@settings(max_examples=20)
@given(st.lists(st.dictionaries(st.sampled_from(KEYS), JSON | st.fixed_dictionaries({"search": JSON})), min_size=1))
def test_any_rows_can_be_laid_out(rows: list[dict[str, Any]]) -> None:
    kind: Kind
    for kind in ("sts", "retrieval", "recall", "divergence", "rte", "words", "other"):
        result = Result(kind, {}, rows, rows)
        assert all(isinstance(name, str) for name in result.encoders)
        for laid_out in tables_of(result):
            assert all(len(row) == len(laid_out.columns) for row in laid_out.rows)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        (b"", "Input data was truncated; expected a result file of an evaluation"),
        (b"\xff\xfe\x00", "JSON is malformed.* a .toml file is a recipe"),
        (b"[1]", "Expected `object`, got `array`; expected a result file"),
        (b'"x"', "Expected `object`, got `str`"),
        (b'{"name": 1}', "missing required field `provenance`"),
        (b"{}", "missing required field `provenance`"),
        (b'{"provenance": {}, "results": []}', "are empty"),
        (b'{"provenance": {}, "results": [1]}', r"Expected `object`, got `int` - at `\$\.results\[0\]`"),
        (b'{"unit": "percent", "provenance": {}, "results": [{}]}', r"Invalid enum value 'percent' - at `\$\.unit`"),
        (b'{"provenance": 1, "results": [{}]}', r"got `int` - at `\$\.provenance`"),
        (b"[" * 100_000, "nested deeper than 64 levels"),
        (b'{"provenance": {"index": []}, "results": [{}]}', r"got `array` - at `\$\.provenance\.index`"),
        (b'{"provenance": {}, "results": [{"spearman": 1}, {"spearman": "high"}]}', r"at `\$\.results\[1\]\.spearman`"),
        (b'{"provenance": {}, "results": [{"measure": {"MAP": 1}}]}', r"at `\$\.results\[0\]\.measure\[\.\.\.\]`"),
        (b'{"provenance": {}, "results": [{"latency_ms": {"search": [1]}}]}', r"\.latency_ms\[\.\.\.\]`"),
        (b'{"kind": "words", "provenance": {}, "results": [{"covered": {}}]}', r"at `\$\.results\[0\]\.covered`"),
        (b'{"kind": "rte", "provenance": {}, "results": [{"best": 1}]}', r"at `\$\.results\[0\]\.best`"),
        (b'{"provenance": {}, "results": [{}], "comparisons": [{"difference": "x"}]}', r"`\$\.comparisons\[0\]\.diff"),
        (b'{"provenance": {}, "results": [{}], "notes": [{}]}', r"at `\$\.notes\[0\]`"),
    ],
)
def test_a_file_that_is_no_result_is_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "r.json").write_bytes(content)
    with pytest.raises(EvaluationError, match=rf"r\.json: .*{message}"):
        read_result(tmp_path / "r.json")


def test_notebooks_show_the_tables_the_remarks_and_the_notes() -> None:
    result = read_result(KEPT / "tune-cacm-index.json")
    page = html.unescape(result._repr_html_())
    for table in tables_of(result):
        assert page.count(f"<caption>{table.caption}</caption>") == 1
        assert all(f">{cell}</td>" in page for row in table.rows for cell in row)
        assert all(f"<p>{remark}</p>" in page for remark in table.remarks)
    assert result.notes
    assert all(f"<p>{note}</p>" in page for note in result.notes)
    assert repr(result) == f"Result(Tuning: {len(result.results)} rows)"
