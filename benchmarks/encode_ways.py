"""Ways to encode texts, each as its users would write it, for processes of `benchmarks.children`.

Each way imports the libraries that it needs; ways of other projects also run where Isotrope is not installed.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Encode = Callable[[Sequence[str]], Any]  # texts to rows (n, d)
_VERSIONED = ("sentence-transformers", "transformers", "torch", "optimum-intel", "openvino", "onnxruntime")
_BATCH = 32  # the default of sentence-transformers


@dataclass(frozen=True)
class Way:
    """A row of the table. `numbers` is the number type of most products; `reference` is its float32 counterpart."""

    name: str
    numbers: str  # float32, bfloat16, int8
    opener: Callable[..., Encode]
    settings: dict[str, Any]
    reference: str
    peer: bool = False  # may need other versions of libraries


class Runner:
    """A loaded way with its texts."""

    def __init__(self, name: str, folder: str, threads: int, sample: Sequence[str], max_length: int) -> None:
        way = WAYS[name]
        self._encode = way.opener(folder, threads, sample=sample, max_length=max_length, **way.settings)
        self._texts: dict[str, Sequence[str]] = {}

    def hold(self, mix: str, texts: Sequence[str], warm_up: int) -> None:
        """Store the texts of a mix, and encode the first `warm_up` once."""
        self._texts[mix] = texts
        self._encode(texts[:warm_up])

    def run(self, mix: str) -> float:
        """Encode the texts of a mix. Returns seconds."""
        start = time.perf_counter()
        self._encode(self._texts[mix])
        return time.perf_counter() - start

    def versions(self) -> dict[str, str]:
        """Return the versions of the libraries in this process's environment."""
        from importlib.metadata import PackageNotFoundError, version

        versions = {}
        for name in _VERSIONED:
            with suppress(PackageNotFoundError):
                versions[name] = version(name)
        return versions

    def embeddings(self, texts: Sequence[str]) -> Any:
        """Return rows (n, d) float32 of some texts."""
        import numpy as np

        return np.asarray(self._encode(texts), np.float32)


def sentence_transformers(
    folder: str, threads: int, sample: Sequence[str], max_length: int, backend: Any = "torch", **model: Any
) -> Encode:
    """Load `SentenceTransformer(folder).encode` with its default batch size; `numbers` names a type of torch."""
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    if numbers := model.pop("numbers", ""):
        model["torch_dtype" if _is_old_transformers() else "dtype"] = getattr(torch, numbers)
    if backend == "openvino":
        model["ov_config"] = {**model.get("ov_config", {}), "INFERENCE_NUM_THREADS": str(threads)}
    if backend == "onnx":
        model["session_options"] = _onnx_options(threads)
        model["provider"] = "CPUExecutionProvider"
    loaded = SentenceTransformer(
        folder, device="cpu", local_files_only=True, backend=backend, model_kwargs=model or None
    )
    loaded.max_seq_length = max_length
    return lambda texts: loaded.encode(list(texts), batch_size=_BATCH, show_progress_bar=False)


def hugging_face(folder: str, threads: int, sample: Sequence[str], max_length: int) -> Encode:
    """Load the loop of many tutorials: batches of 32 in order, padded, masked mean."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    torch.set_num_threads(threads)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder).eval()

    def encode(texts: Sequence[str]) -> Any:
        rows = []
        with torch.inference_mode():
            for start in range(0, len(texts), _BATCH):
                batch = list(texts[start : start + _BATCH])
                inputs = tokenizer(batch, padding=True, truncation=True, max_length=max_length, return_tensors="pt")
                states = model(**inputs).last_hidden_state
                mask = inputs["attention_mask"].unsqueeze(-1)
                rows.append((states * mask).sum(1) / mask.sum(1))
        return torch.cat(rows).numpy()

    return encode


def isotrope(folder: str, threads: int, sample: Sequence[str], max_length: int, precision: str, backend: str) -> Encode:
    """Load Isotrope's encoder; int8 is calibrated on `sample` first."""
    from indexer.encoders.load import open_encoder
    from indexer.models.resolution import resolve_spec
    from indexer.recipe.config import EncoderConfig
    from indexer.recipe.run_options import RunOptions

    config = EncoderConfig(model=folder, max_length=max_length, precision=precision)  # type: ignore[arg-type]
    options = RunOptions(device="cpu", backend=backend, threads=threads)  # type: ignore[arg-type]
    spec = resolve_spec(config)
    if precision == "int8":
        spec = _calibrated(spec, sample)
    encoder = open_encoder(spec, options)
    return lambda texts: encoder.encode(texts, "document")


def _calibrated(spec: Any, sample: Sequence[str]) -> Any:
    """Return the encoder with its int8 state in a temporary folder, which is not removed."""
    from importlib import import_module
    from tempfile import mkdtemp

    from indexer.models.model_files import file_sha256
    from indexer.models.resolution import with_fitted_state

    calibration: Any = import_module("indexer.encoders.int8")
    folder = Path(mkdtemp(prefix="isotrope-int8-"))
    calibration.quantise(spec, sample, folder)
    return with_fitted_state(spec, folder, {path.name: file_sha256(path) for path in sorted(folder.iterdir())})


def _is_old_transformers() -> bool:
    from importlib.metadata import version

    return int(version("transformers").split(".")[0]) < 5


def _onnx_options(threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return options


BASE = "sentence-transformers"
_OURS = "isotrope float32, torch"
_PLAIN = {"ov_config": {"INFERENCE_PRECISION_HINT": "f32"}}
_HALF = {"ov_config": {"INFERENCE_PRECISION_HINT": "bf16"}}
_LIST = [
    Way(BASE, "float32", sentence_transformers, {}, BASE),
    Way(f"{BASE} bfloat16", "bfloat16", sentence_transformers, {"numbers": "bfloat16"}, BASE),
    Way(f"{BASE} OpenVINO float32", "float32", sentence_transformers, {"backend": "openvino", **_PLAIN}, BASE, True),
    Way(f"{BASE} OpenVINO bfloat16", "bfloat16", sentence_transformers, {"backend": "openvino", **_HALF}, BASE, True),
    Way(f"{BASE} ONNX float32", "float32", sentence_transformers, {"backend": "onnx"}, BASE, True),
    Way("Hugging Face loop", "float32", hugging_face, {}, _OURS),
    Way(_OURS, "float32", isotrope, {"precision": "float32", "backend": "torch"}, _OURS),
    Way("isotrope float32, OpenVINO", "float32", isotrope, {"precision": "float32", "backend": "openvino"}, _OURS),
    Way("isotrope bfloat16, torch", "bfloat16", isotrope, {"precision": "bfloat16", "backend": "torch"}, _OURS),
    Way("isotrope bfloat16, OpenVINO", "bfloat16", isotrope, {"precision": "bfloat16", "backend": "openvino"}, _OURS),
    Way("isotrope int8, OpenVINO", "int8", isotrope, {"precision": "int8", "backend": "openvino"}, _OURS),
]
WAYS = {way.name: way for way in _LIST}
