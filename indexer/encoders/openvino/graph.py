"""A model as an OpenVINO graph on disk, and OpenVINO itself, imported quietly."""

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from indexer.errors import IsotropeError, MachineError, ModelError, as_argument
from indexer.models.encoder_spec import EncoderSpec
from indexer.system.cache import read_cached

if TYPE_CHECKING:
    import numpy.typing as npt

    from indexer.arrays import Int64Array
    from indexer.encoders.batching import Batch

GRAPH = "graph.xml"
_FACTS = "facts.json"
_CONVERTER = "openvino.tools.ovc"
_CONVERT = "convert_model"
_REPORTING = "openvino_telemetry"
_IMPORTING = threading.RLock()


@cache
def openvino() -> Any:
    """Return OpenVINO, imported without its converter of other frameworks' models.

    The converter takes two thirds of the import time and reports the import to OpenVINO's makers. It is imported when a
    program uses it (`openvino.convert_model`); `conversion` does not.
    """
    with _IMPORTING:
        if "openvino" in sys.modules:
            return sys.modules["openvino"]
        with not_importable(_REPORTING, _CONVERTER):
            module = import_module("openvino")
        if not hasattr(module, _CONVERT):
            vars(module)["__getattr__"] = partial(_imported_late, module)
        return module


@contextmanager
def without_reports() -> Iterator[None]:
    """Block the import of openvino_telemetry, so that OpenVINO and NNCF send no reports to their makers."""
    with _IMPORTING, not_importable(_REPORTING):
        yield


@contextmanager
def not_importable(*names: str) -> Iterator[None]:
    """Make the import of these modules raise ImportError."""
    modules: dict[str, Any] = sys.modules
    before = {name: modules[name] for name in names if name in modules}
    modules.update(dict.fromkeys(names))
    try:
        yield
    finally:
        for name in names:
            modules.pop(name, None)
        modules.update(before)


def _imported_late(module: ModuleType, name: str) -> Any:
    if name != _CONVERT:
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
    return getattr(import_module(_CONVERTER), name)


@dataclass(frozen=True)
class OpenVinoGraph:
    """A graph on disk and the facts about its model."""

    folder: Path
    dim: int
    vocabulary: int
    takes_types: bool

    @property
    def path(self) -> Path:
        """The graph's file; the file of its weights is in the same folder."""
        return self.folder / GRAPH

    @property
    def source(self) -> str:
        """The argument of `Core.compile_model`."""
        return str(self.path)

    def feed(self, batch: "Batch") -> "dict[str, Int64Array]":
        """Return the inputs for a batch."""
        return batch.graph_inputs(self.takes_types)

    def rows(self, output: "npt.NDArray[Any]", batch: "Batch") -> "npt.NDArray[Any]":
        """Return the pooled rows (keys, batch, d), which are the output."""
        return output

    def unusable(self, reason: str) -> IsotropeError:
        """Return the error for a graph that does not run."""
        return MachineError(
            f"OpenVINO cannot run {self.path} here: {reason}. "
            f"Fix: choose {as_argument('backend', 'torch', 'RunOptions')}, or delete the file."
        )


@dataclass(frozen=True)
class _Facts:
    """The stored facts of a graph; only `refused` for a model without one."""

    dim: int = 0
    vocabulary: int = 0
    takes_types: bool = False
    refused: str | None = None


def open_stored_graph(folder: Path, spec: EncoderSpec) -> OpenVinoGraph:
    """Return the graph in a folder. Raises ModelError with a fix for a refused model."""
    facts = read_cached(folder / _FACTS, _Facts)
    if facts.refused is not None:
        raise ModelError(
            f"{spec.folder}: OpenVINO cannot run this model ({facts.refused}). "
            f"Fix: choose {as_argument('backend', 'torch', 'RunOptions')}."
        )
    return OpenVinoGraph(folder, facts.dim, facts.vocabulary, facts.takes_types)


def write_graph_info(graph: OpenVinoGraph, folder: Path) -> None:
    """Write the facts that `open_stored_graph` reads into `folder`."""
    facts = {name: value for name, value in asdict(graph).items() if name != "folder"}
    (folder / _FACTS).write_text(json.dumps(facts), encoding="utf-8")


def write_refusal(folder: Path, reason: str) -> None:
    """Write the reason for a refusal into `folder` and remove the graph."""
    (folder / _FACTS).write_text(json.dumps({"refused": reason}), encoding="utf-8")
    for file in folder.glob("graph.*"):
        file.unlink()
