"""Models exported to ONNX, as other exporters write them.

folder = export_onnx(model, tmp_path / "exported")   # config, tokenizer and onnx/model.onnx; no safetensors
"""

import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path

import onnx
import torch

from indexer.models.hub import quiet_transformers

BERT_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
SIZES = {0: "rows", 1: "tokens"}
_TRACED = (2, 5)  # rows and tokens


def export_onnx(
    model: Path,
    folder: Path,
    inputs: Sequence[str] = BERT_INPUTS,
    output: str = "last_hidden_state",
    any_size: bool = True,
) -> Path:
    """Copy `model` to `folder`, its weights as onnx/model.onnx with these inputs and the token states as `output`."""
    import transformers

    with quiet_transformers():
        loaded = transformers.AutoModel.from_pretrained(model, local_files_only=True).eval()

    class States(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = loaded

        def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
            states: torch.Tensor = self.model(**dict(zip(inputs, tensors, strict=True))).last_hidden_state
            return states

    shutil.copytree(model, folder)
    (folder / "model.safetensors").unlink()
    (folder / "onnx").mkdir()
    with torch.no_grad(), warnings.catch_warnings(action="ignore"):
        torch.onnx.export(
            States().eval(),
            tuple(torch.ones(_TRACED, dtype=torch.int64) for _ in inputs),
            folder / "onnx/model.onnx",
            input_names=list(inputs),
            output_names=[output],
            dynamic_axes=dict.fromkeys((*inputs, output), SIZES) if any_size else None,
            dynamo=False,
        )
    return folder


def move_tensors(file: Path, name: str = "model.onnx_data") -> Path:
    """Move the tensors of an ONNX file into a file beside it; return that file."""
    model = onnx.load(file)
    onnx.save_model(model, file, save_as_external_data=True, location=name, size_threshold=0)
    return file.parent / name


def name_tensors(file: Path, name: str) -> None:
    """Name another file as that of the tensors in an ONNX file, whatever the name."""
    model = onnx.load(file, load_external_data=False)
    entries = [entry for tensor in model.graph.initializer for entry in tensor.external_data if entry.key == "location"]
    assert entries
    for entry in entries:
        entry.value = name
    file.write_bytes(model.SerializeToString())
