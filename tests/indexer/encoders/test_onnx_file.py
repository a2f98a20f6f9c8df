"""The names of files with external data in an ONNX file, against the package onnx; any other bytes are a ModelError."""

from contextlib import suppress
from pathlib import Path

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from indexer.errors import ModelError
from indexer.models.onnx_file import external_files


def tensor(location: str) -> TensorProto:
    made = TensorProto(name=location, data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL)
    made.external_data.add(key="offset", value="0")
    made.external_data.add(key="location", value=location)
    return made


def model() -> onnx.ModelProto:
    """Return a model with tensors at every place of the format."""
    constant = helper.make_node("Constant", [], ["c"], value=tensor("of-a-node"))
    inner = helper.make_graph([constant], "inner", [], [], [tensor("of-an-inner-graph")])
    branch = helper.make_node("If", ["x"], ["y"], then_branch=inner)
    listed = helper.make_node("Listed", [], ["l"])
    listed.attribute.add(name="tensors", type=onnx.AttributeProto.TENSORS).tensors.append(tensor("of-a-list"))
    listed.attribute.add(name="graphs", type=onnx.AttributeProto.GRAPHS).graphs.append(
        helper.make_graph([], "listed", [], [], [tensor("of-a-listed-graph")])
    )
    sparse = onnx.SparseTensorProto(values=tensor("of-values"), indices=tensor("of-indices"), dims=[2])
    attribute = listed.attribute.add(name="sparse", type=onnx.AttributeProto.SPARSE_TENSOR)
    attribute.sparse_tensor.CopyFrom(onnx.SparseTensorProto(values=tensor("of-a-sparse-attribute")))
    inside = TensorProto(name="location", data_type=TensorProto.FLOAT, dims=[2], raw_data=b"\x0a\x08location")
    graph = helper.make_graph([constant, branch, listed], "location", [], [], [tensor("model.onnx_data"), inside])
    graph.sparse_initializer.append(sparse)
    made = helper.make_model(graph, producer_name="location")
    called = helper.make_node("Constant", [], ["d"], value=tensor("of-a-function"))
    made.functions.append(helper.make_function("domain", "f", [], [], [called], []))
    made.training_info.add().algorithm.CopyFrom(helper.make_graph([], "trained", [], [], [tensor("of-training")]))
    return made


def written(folder: Path, data: bytes) -> Path:
    (folder / "model.onnx").write_bytes(data)
    return folder / "model.onnx"


def test_tensors_are_found_at_every_place(tmp_path: Path) -> None:
    assert external_files(written(tmp_path, model().SerializeToString())) == sorted([
        "model.onnx_data", "of-a-function", "of-a-list", "of-a-listed-graph", "of-a-node", "of-a-sparse-attribute",
        "of-an-inner-graph", "of-indices", "of-training", "of-values",
    ])  # fmt: skip


def test_a_file_without_external_data_names_none(tmp_path: Path) -> None:
    empty = helper.make_model(helper.make_graph([], "g", [], []))
    assert external_files(written(tmp_path, empty.SerializeToString())) == []


@given(st.data())
def test_bytes_that_are_cut_or_changed_are_a_model_error_or_names(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = bytearray(model().SerializeToString())
    for _ in range(data.draw(st.integers(0, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    path = written(tmp_path_factory.getbasetemp(), bytes(whole[: data.draw(st.integers(0, len(whole)))]))
    with suppress(ModelError):
        assert all(isinstance(name, str) for name in external_files(path))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "cannot be read as ONNX"),
        (b"\x3a\x05\x00", "field 7 ends 4 bytes after its message"),
        (b"\x3b", "field 7 has the unknown wire type 3"),
        (b"\xff" * 12, "the number at byte 0 has no end"),
    ],
)
def test_other_bytes_are_refused_with_the_place(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        external_files(written(tmp_path, data))
